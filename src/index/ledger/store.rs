//! Where stored blocks go, at once or later.

use std::collections::BTreeSet;

use super::Ledger;
use crate::{
    event::{EngineHash, Stored, StoredBlock, Tier},
    hash::BlockHash,
    index::{
        Applied,
        copies::Copies,
        pending::Waiter,
        raw::{GPU, Interval, NO_SEAT},
        tree::{Place, Point, Stopped},
    },
};

impl Ledger {
    pub(super) fn store(&mut self, number: u32, stored: &Stored, applied: &mut Applied) {
        let simple = stored.tier == Tier::Gpu
            && self.pending.len() == 0
            && self.holders[number as usize].oddities.has_no_names();
        let done = if simple { self.store_chain(number, stored, applied) } else { 0 };
        let mut parent = match done {
            0 => stored.parent,
            done => Some(stored.blocks[done - 1].engine),
        };
        for block in &stored.blocks[done..] {
            self.store_block(number, stored.tier, parent, *block, applied);
            // Lets waiting blocks catch up now: a store of many blocks equals many stores of one.
            self.settle(applied);
            parent = Some(block.engine);
        }
    }

    /// As [`Self::store`], for a slot that may not hold more than it does: blocks of which it knows the names are
    /// stored, which adds copies or moves them, and others are passed over.
    pub(super) fn store_known(&mut self, number: u32, stored: &Stored, applied: &mut Applied) {
        let slot = self.holders[number as usize].slot;
        let mut parent = stored.parent;
        for block in &stored.blocks {
            let name = block.engine;
            if self.own(number, name).is_some() || self.pending.get(slot, name).is_some() {
                self.store_block(number, stored.tier, parent, *block, applied);
                self.settle(applied);
            } else {
                applied.refused += 1;
            }
            parent = Some(name);
        }
    }

    /// Stores as many leading blocks as it can as regular ones, stretch by stretch; how many.
    fn store_chain(&mut self, number: u32, stored: &Stored, applied: &mut Applied) -> usize {
        let blocks = &stored.blocks[..];
        let Some(mut point) = self.point_below(number, stored.parent) else { return 0 };
        let Some(seat) = self.seat(number, GPU) else { return 0 };
        let mut done = 0;
        while done < blocks.len() {
            let same = self.same(point, &blocks[done..]);
            if same.blocks > 0 {
                let held = Interval { start: point.offset, end: point.offset + same.blocks as u32 };
                if !self.tree.has_room(point.run, GPU) {
                    return done;
                }
                self.hold_regular(number, seat, point.run, held, applied);
                done += same.blocks;
                point.offset = held.end;
            }
            // The block that comes next, if any, does not follow here under its name.
            let Some(StoredBlock { content: Some(content), .. }) = blocks.get(done) else { return done };
            if same.is_elsewhere {
                return done;
            }
            if let Some(run) = self.tree.child(point, content.0) {
                point = Point { run, offset: 0 };
                continue;
            }
            let new = &blocks[done..];
            let new = &new[..new.iter().position(|block| block.content.is_none()).unwrap_or(new.len())];
            let made = self.tree.make(GPU, seat, point, new, true);
            applied.stored += made.count as u32;
            self.count(number, Tier::Gpu, made.count as i64);
            done += made.count;
            match made.stopped {
                None | Some(Stopped::RunIsFull) => point = made.last.next(),
                Some(Stopped::NameIsTaken | Stopped::NoRoom) => return done,
            }
        }
        done
    }

    /// Where blocks go whose first one follows `parent`; `None` if that is not known.
    #[inline(always)]
    fn point_below(&self, number: u32, parent: Option<EngineHash>) -> Option<Point> {
        let Some(parent) = parent else { return Some(Point::START) };
        let holder = &self.holders[number as usize];
        let seat = holder.seats[GPU];
        // The usual case: the slot holds the parent itself, under the name that everybody uses.
        if holder.oddities.has_no_names()
            && seat != NO_SEAT
            && let Some(place) = self.tree.named(parent.0)
            && self.tree.holds(GPU, seat, place)
        {
            return Some(place.next());
        }
        self.known(number, parent).map(Place::next)
    }

    /// How many of `blocks` the run has next, under the names that they carry.
    #[inline(always)]
    fn same(&self, point: Point, blocks: &[StoredBlock]) -> Same {
        let (contents, names) = self.tree.rest(point);
        let is_same = |(block, (content, name)): &(&StoredBlock, (&u64, &u64))| {
            block.content == Some(BlockHash(**content)) && block.engine.0 == **name
        };
        let mut same = blocks.iter().zip(contents.iter().zip(names)).take_while(is_same).count();
        if self.tree.has_unmapped() {
            let is_mapped = |&offset: &u32| !self.tree.is_unmapped(Place { run: point.run, offset });
            same = (point.offset..).take(same).take_while(is_mapped).count();
        }
        let differs = blocks.get(same).zip(contents.get(same));
        let is_elsewhere = differs.is_some_and(|(block, content)| block.content == Some(BlockHash(*content)));
        Same { blocks: same, is_elsewhere }
    }

    /// One more copy of each of these blocks, under the names that they carry.
    fn hold_regular(&mut self, number: u32, seat: u32, run: u32, blocks: Interval, applied: &mut Applied) {
        let held = self.tree.held_within(run, GPU, seat, blocks);
        let mut already = 0;
        for interval in &held {
            already += interval.end - interval.start;
            for offset in interval.start..interval.end {
                let oddities = &mut self.holders[number as usize].oddities;
                let place = Place { run, offset };
                let more = oddities.spare(place, Tier::Gpu).saturating_add(1);
                oddities.set_spare(place, Tier::Gpu, more);
            }
        }
        let stored = blocks.end - blocks.start - already;
        if stored > 0 {
            self.tree.hold(GPU, seat, run, blocks);
            self.count(number, Tier::Gpu, i64::from(stored));
        }
        applied.already += already;
        applied.stored += stored;
    }

    fn store_block(
        &mut self,
        number: u32,
        tier: Tier,
        parent: Option<EngineHash>,
        block: StoredBlock,
        applied: &mut Applied,
    ) {
        let (name, slot) = (block.engine, self.holders[number as usize].slot);
        let Some(content) = block.content else {
            // A name that itself waits is not looked up elsewhere: it will know its place from its parent.
            let waits = self.pending.get(slot, name).is_some();
            let known = if waits { None } else { self.known(number, name) };
            return match known {
                Some(place) => self.put_one(number, name, place, tier, applied),
                None => self.wait(number, name, None, tier, applied),
            };
        };
        match (self.point_below(number, parent), parent) {
            (Some(point), _) => match self.tree.at(point, content.0) {
                Some(place) => self.put_one(number, name, place, tier, applied),
                None => self.make_one(number, name, (point, content), Copies::one(tier), applied),
            },
            (None, Some(parent)) => {
                let again = self.own(number, name).map(|block| block.place);
                match again.filter(|&place| self.tree.content(place) == content.0) {
                    Some(place) => self.put_one(number, name, place, tier, applied),
                    None => self.wait(number, name, Some((parent, content)), tier, applied),
                }
            }
            (None, None) => {}
        }
    }

    /// One more copy of a block that exists.
    fn put_one(&mut self, number: u32, name: EngineHash, place: Place, tier: Tier, applied: &mut Applied) {
        let before = self.own(number, name).filter(|block| block.place == place);
        let already = before.is_some_and(|block| block.copies.of(tier) > 0);
        let mut copies = Copies::one(tier);
        self.take_waiting(number, name, BlockHash(self.tree.content(place)), &mut copies, applied);
        match self.put(number, name, place, copies, applied) {
            true if already => applied.already += 1,
            true => applied.stored += 1,
            false => applied.refused += 1,
        }
    }

    /// A block that does not exist yet, at a point.
    fn make_one(
        &mut self,
        number: u32,
        name: EngineHash,
        at: (Point, BlockHash),
        mut copies: Copies,
        applied: &mut Applied,
    ) {
        self.take_waiting(number, name, at.1, &mut copies, applied);
        match self.make_and_put(number, name, at, copies, applied) {
            true => applied.stored += 1,
            false => applied.refused += 1,
        }
    }

    /// Copies of the same name that waited join those that arrive.
    fn take_waiting(
        &mut self,
        number: u32,
        name: EngineHash,
        content: BlockHash,
        copies: &mut Copies,
        applied: &mut Applied,
    ) {
        let slot = self.holders[number as usize].slot;
        if let Some(waiting) = self.pending.take(slot, name) {
            if waiting.may_be(content) {
                copies.add(waiting.copies);
                applied.attached += 1;
            } else {
                applied.moved += 1;
            }
        }
    }

    /// Makes a block and puts it on the account; `false` if there is no room.
    fn make_and_put(
        &mut self,
        number: u32,
        name: EngineHash,
        (point, content): (Point, BlockHash),
        copies: Copies,
        applied: &mut Applied,
    ) -> bool {
        let Some(tier) = copies.tiers().next().map(Tier::index) else { return true };
        if !self.has_room(number, point.run, copies) {
            return false;
        }
        let seat = self.holders[number as usize].seats[tier];
        let block = StoredBlock { engine: name, content: Some(content) };
        let made = self.tree.make(tier, seat, point, &[block], false);
        if made.count == 0 {
            return false;
        }
        let put = self.put(number, name, made.last, copies, applied);
        if !put {
            // The last room went into the block itself. A mark that is on no account would stay for ever.
            self.tree.release(tier, seat, made.last);
        }
        put
    }

    /// One more copy of a block whose place is not known.
    fn wait(
        &mut self,
        number: u32,
        name: EngineHash,
        below: Option<(EngineHash, BlockHash)>,
        tier: Tier,
        applied: &mut Applied,
    ) {
        applied.pending += 1;
        let slot = self.holders[number as usize].slot;
        // A placed name gets here only with other content: its block is gone, wherever the new one may lie.
        if let Some(elsewhere) = self.own(number, name) {
            self.forget(number, name, elsewhere);
            self.let_go(number, elsewhere);
            applied.moved += 1;
        }
        self.dropped += self.pending.add(slot, name, below, (tier, self.pending_limit), applied);
    }

    /// Gives a place to every waiting block whose awaited name is known by now, the oldest first: each one may make
    /// further names known.
    pub(super) fn settle(&mut self, applied: &mut Applied) {
        if self.changed.is_empty() {
            return;
        }
        let mut woken: BTreeSet<Waiter> = BTreeSet::new();
        loop {
            for name in self.changed.drain(..) {
                woken.extend(self.pending.awaits(name));
            }
            let Some(Waiter { slot, name, .. }) = woken.pop_first() else { return };
            let number = self.tree.shared.number(slot);
            let Some(&waiting) = self.pending.get(slot, name) else { continue };
            let Some(known) = self.known(number, waiting.awaited(name)) else { continue };
            self.pending.take(slot, name);
            let (point, copies) = (known.next(), waiting.copies);
            let put = match waiting.below {
                None => self.put(number, name, known, copies, applied),
                Some((_, content)) => match self.tree.at(point, content.0) {
                    Some(place) => self.put(number, name, place, copies, applied),
                    None => self.make_and_put(number, name, (point, content), copies, applied),
                },
            };
            if !put {
                applied.refused += 1;
            }
            applied.attached += 1;
        }
    }
}

/// How far stored blocks and a run agree.
struct Same {
    blocks: usize,
    /// The next block is the run's too, but its name leads elsewhere.
    is_elsewhere: bool,
}
