//! A lookup: from a prompt to the slots that hold its beginning.
//!
//! One pass reads run after run and notes the version of each. If all of them, and the shard's count of endings, are
//! the same afterwards, then everything that was read was true at one moment (when the last child was not
//! found, or the last header was read), and the answer is that moment's. Otherwise the pass is dropped and another one
//! begins.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::{
    child_table::Found,
    compare::agree,
    marks::{GPU, Mark, SeatSet, Who},
    prefetch,
    run::{NO_SEATS, Run, halves},
    seat_table::{NO_SEAT, SeatTable},
    shared::{CONTENT, Shared},
    sync::{fence, spin_loop, yield_now},
};
use crate::hash::BlockHash;

/// What a pass needs besides the answer; reused, so that it allocates nothing once warm.
#[derive(Default, Debug)]
pub(in crate::index) struct Path {
    pub(super) steps: Vec<Step>,
    /// Seats that hold everything so far.
    alive: SeatSet,
    /// Seats that hold what matters of the current run.
    through: SeatSet,
    pub(super) group: SeatSet,
    /// Passes that were dropped, ever.
    pub(in crate::index) retries: u64,
}

impl Path {
    /// The sets change places during a pass; so each gets the room that any of them has needed.
    #[inline(always)]
    fn even_out(&mut self) {
        let sets = [&mut self.alive, &mut self.through, &mut self.group];
        let most = sets.iter().map(|set| set.0.capacity()).max().unwrap_or(0);
        for set in sets {
            if set.0.capacity() < most {
                set.0.reserve_exact(most - set.0.len());
            }
        }
    }
}

/// A run on the way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) run: u32,
    version: u64,
    /// Position of the run's first block in the prompt, and how many blocks of the run the prompt goes through.
    pub(super) position: u32,
    pub(super) matched: u32,
}

/// The pass met a change.
struct Torn;

/// Where a prompt goes on: after `offset` blocks of a run, with the block `next`.
#[derive(Clone, Copy)]
struct Exit {
    parent: u32,
    offset: u32,
    next: u64,
    /// Of all that, in the child table.
    hash: u64,
}

/// What was read of a run's header when it was found.
#[derive(Clone, Copy)]
struct Head {
    number: u32,
    version: u64,
    /// Where its contents begin, and how many they are.
    start: u32,
    length: u32,
}

/// After this many dropped passes in a row a reader gives its core away: the writer may be waiting for one, in the
/// middle of a change.
const PATIENCE: u32 = 16;

/// Blocks of a run that are compared before its likely child is asked for: by then the table's answer is there.
const GLANCE: usize = 64;
/// Bytes whose address is translated at once, and how many such pages of a run are asked for ahead.
const PAGE: usize = 4_096;
const PAGES: usize = 16;

/// Where a pass puts what it finds. A pass that is dropped leaves things behind: the sink is wound back before the next one.
pub(in crate::index) trait Sink {
    /// Whether slots may be put here again with more blocks, and the last time counts. Then everybody is put here at once who
    /// holds what was found so far, while the memory brings what comes next; and nothing is asked of slower tiers.
    const IS_DENSE: bool;

    /// These seats, as sparse words, hold `depth` blocks.
    fn seats(&mut self, table: &SeatTable, depth: u32, seats: &[(u32, u64)]);

    /// This seat, whose number has `moved` away from its slot's or not, holds exactly `depth` blocks.
    fn seat(&mut self, table: &SeatTable, depth: u32, seat: u32, moved: bool);

    /// What slower tiers add; only asked for if there are any.
    fn extend(&mut self, shared: &Shared, path: &mut Path);

    /// Forgets what the last pass put here.
    fn wind_back(&mut self);
}

impl Shared {
    /// Finds who holds how much of a prompt.
    #[inline]
    pub(in crate::index) fn look_up(&self, prompt: &[BlockHash], path: &mut Path, sink: &mut impl Sink) {
        if prompt.is_empty() {
            return;
        }
        let mut dropped = 0_u32;
        while self.pass(prompt, path, sink).is_err() {
            sink.wind_back();
            path.retries += 1;
            dropped += 1;
            if dropped.is_multiple_of(PATIENCE) {
                yield_now();
            } else {
                spin_loop();
            }
        }
        path.even_out();
    }

    #[inline(always)]
    fn pass<S: Sink>(&self, prompt: &[BlockHash], path: &mut Path, sink: &mut S) -> Result<(), Torn> {
        let (endings, slower) = (self.endings(), self.slower());
        if endings % 2 == 1 {
            return Err(Torn);
        }
        path.steps.clear();
        path.alive.0.clear();
        let follows_slower = slower != 0 && !S::IS_DENSE;
        self.walk(prompt, path, sink, follows_slower)?;
        if follows_slower {
            sink.extend(self, path);
        }
        // Everything read above comes before the comparisons below; see `Run::is_still`.
        fence(Acquire);
        let still = endings == self.endings() && slower == self.slower();
        let all_still = || path.steps.iter().all(|step| self.runs.get(step.run).is_still(step.version));
        if still && all_still() { Ok(()) } else { Err(Torn) }
    }

    #[inline(always)]
    fn walk<S: Sink>(
        &self,
        prompt: &[BlockHash],
        path: &mut Path,
        sink: &mut S,
        to_the_end: bool,
    ) -> Result<(), Torn> {
        let mut at = self.exit(0, 0, prompt);
        let mut position = 0;
        self.prefetch_child(at.hash);
        while let Some(head) = self.find(at)? {
            let run = self.runs.get(head.number);
            let (set, list) = halves(run.gpu.load(Relaxed));
            if list != 0 {
                prefetch(self.marks.words(0, list));
            }
            if set != 0 {
                prefetch(self.marks.words(0, set));
            }
            let wanted = &prompt[position..];
            let matched = self.compare(head, run, wanted);
            if matched == 0 {
                return Err(Torn);
            }
            let goes_on = matched < wanted.len();
            if goes_on {
                at = self.exit(head.number, matched, wanted);
                self.children.prefetch(at.hash);
            }
            let (start, matched) = (position as u32, matched as u32);
            path.steps.push(Step { run: head.number, version: head.version, position: start, matched });
            let leaves = goes_on && matched < head.length;
            let stretch = Stretch { run, set, list, position: start, matched, leaves };
            if position == 0 {
                self.enter(stretch, path, sink);
            } else if !path.alive.0.is_empty() {
                self.go_on(stretch, path, sink);
            }
            position += matched as usize;
            if goes_on {
                self.prefetch_child(at.hash);
            }
            if S::IS_DENSE {
                sink.seats(&self.seats[GPU], position as u32, &path.alive.0);
            }
            if !goes_on || (path.alive.0.is_empty() && !to_the_end) {
                break;
            }
        }
        if !S::IS_DENSE {
            sink.seats(&self.seats[GPU], position as u32, &path.alive.0);
        }
        Ok(())
    }

    /// Where a prompt leaves a run after `offset` blocks, of which `wanted` is what begins with the run.
    #[inline(always)]
    fn exit(&self, parent: u32, offset: usize, wanted: &[BlockHash]) -> Exit {
        let (offset, next) = (offset as u32, wanted[offset].0);
        Exit { parent, offset, next, hash: self.child_hash(parent, offset, next) }
    }

    /// The run in which the prompt goes on, if there is one.
    #[inline(always)]
    fn find(&self, at: Exit) -> Result<Option<Head>, Torn> {
        let link = u64::from(at.parent) << 32 | u64::from(at.offset);
        let (mut version, mut array) = (0, 0);
        let found = self.children.find(at.hash, |run| {
            let run = self.runs.get(run);
            version = run.version();
            let found = run.first.load(Relaxed) == at.next && run.link.load(Relaxed) == link;
            array = run.array.load(Relaxed);
            found
        });
        let number = match found {
            Found::Run(run) => run,
            Found::Absent => return Ok(None),
            Found::Unsure => return Err(Torn),
        };
        let (start, length) = halves(array);
        if version & 1 == 1 || length == 0 {
            return Err(Torn);
        }
        Ok(Some(Head { number, version, start, length }))
    }

    /// How many blocks of a run begin `wanted`: none only if the run has changed meanwhile, since the first is known to agree.
    /// It is compared again because runs are aligned. What probably comes next is asked for on the way.
    #[inline(always)]
    fn compare(&self, head: Head, run: &Run, wanted: &[BlockHash]) -> usize {
        let within = wanted.len().min(head.length as usize);
        let contents = self.blocks.words(CONTENT, head.start);
        // A page's first lines come late: its address has to be translated, and nothing else foresees them.
        let into_page = contents.addr() % PAGE;
        for ahead in (PAGE..into_page + within * size_of::<u64>()).step_by(PAGE).take(PAGES) {
            prefetch(contents.wrapping_byte_add(ahead - into_page));
        }
        let likely = run.likely_exit() as usize;
        let is_ahead = likely != 0 && likely <= within && likely < wanted.len();
        let likely = is_ahead.then(|| self.exit(head.number, likely, wanted));
        if let Some(likely) = likely {
            self.children.prefetch(likely.hash);
        }
        let glance = within.min(GLANCE);
        // SAFETY: array words are stored as one, so `length` words from `start` lie in one chunk.
        let matched = unsafe { agree(&wanted[..glance], contents) };
        if matched < glance || glance == within {
            return matched;
        }
        if let Some(likely) = likely {
            self.prefetch_child(likely.hash);
        }
        // SAFETY: as above.
        glance + unsafe { agree(&wanted[glance..within], contents.add(glance)) }
    }

    /// Asks for the header and the first contents of the run that probably has this hash.
    #[inline(always)]
    fn prefetch_child(&self, hash: u64) {
        if let Some((run, start)) = self.children.guess(hash) {
            prefetch(self.runs.get(run));
            let contents = self.blocks.words(CONTENT, start);
            prefetch(contents);
            prefetch(contents.wrapping_add(8));
        }
    }

    /// Whole holders of a run into `path.through`.
    #[inline(always)]
    fn whole(&self, run: &Run, set: u32, through: &mut SeatSet) {
        through.0.clear();
        if set != 0 {
            return self.marks.read_set(set, through);
        }
        let mut seats = run.whole.load(Relaxed);
        while seats != NO_SEATS {
            let seat = seats as u32 & 0xffff;
            if seat == NO_SEAT {
                break;
            }
            match through.0.last_mut() {
                Some((word, bits)) if *word == seat / 64 => *bits |= 1 << (seat % 64),
                _ => through.0.push((seat / 64, 1 << (seat % 64))),
            }
            seats = seats >> 16 | 0xffff << 48;
        }
    }

    /// The first run: whoever holds its first block begins here.
    #[inline(always)]
    fn enter(&self, stretch: Stretch<'_>, path: &mut Path, sink: &mut impl Sink) {
        let Path { alive, group, .. } = path;
        self.whole(stretch.run, stretch.set, alive);
        for mark in self.marks.marks(stretch.list).filter(|mark| mark.start() == 0) {
            let depth = mark.end().min(stretch.matched);
            let through = stretch.passes(mark);
            match mark.who() {
                Who::Seat(seat) => {
                    if through {
                        alive.add(seat / 64, 1 << (seat % 64));
                    } else if let Some(moved) = self.seats[GPU].standing(seat) {
                        sink.seat(&self.seats[GPU], depth, seat, moved);
                    }
                }
                Who::Set(set) => {
                    group.0.clear();
                    self.marks.read_set(set, group);
                    if through {
                        alive.unite(group);
                    } else {
                        self.keep_live(group);
                        sink.seats(&self.seats[GPU], depth, &group.0);
                    }
                }
            }
        }
        self.keep_live(alive);
    }

    /// Leaves out seats that do not count.
    #[inline(always)]
    fn keep_live(&self, seats: &mut SeatSet) {
        seats.0.retain_mut(|(word, bits)| {
            *bits &= self.seats[GPU].live(*word);
            *bits != 0
        });
    }

    /// A further run: whoever does not hold its beginning stays at its position, and whoever holds only a part stops there.
    #[inline(always)]
    fn go_on<S: Sink>(&self, stretch: Stretch<'_>, path: &mut Path, sink: &mut S) {
        let Path { alive, through, group, .. } = path;
        self.whole(stretch.run, stretch.set, through);
        let all_go_on =
            stretch.list == 0 || alive.0.iter().all(|&(word, bits)| bits & !through.word(word) == 0);
        if !all_go_on {
            for mark in self.marks.marks(stretch.list).filter(|mark| mark.start() == 0) {
                let depth = stretch.position + mark.end().min(stretch.matched);
                let passes = stretch.passes(mark);
                let mut part = |word: u32, bits: u64| {
                    let bits = bits & alive.word(word);
                    if bits == 0 {
                    } else if passes {
                        through.add(word, bits);
                    } else {
                        sink.seats(&self.seats[GPU], depth, &[(word, bits)]);
                        alive.take(word, bits);
                    }
                };
                match mark.who() {
                    Who::Seat(seat) => part(seat / 64, 1 << (seat % 64)),
                    Who::Set(set) => {
                        group.0.clear();
                        self.marks.read_set(set, group);
                        group.0.iter().for_each(|&(word, bits)| part(word, bits));
                    }
                }
            }
        }
        through.keep(alive);
        if !S::IS_DENSE {
            for &(word, bits) in &alive.0 {
                sink.seats(&self.seats[GPU], stretch.position, &[(word, bits & !through.word(word))]);
            }
        }
        std::mem::swap(alive, through);
    }

    /// Where the interval of a seat that holds `offset` ends; `offset` itself if there is none.
    pub(super) fn end_of(&self, list: u32, tier: usize, seat: u32, offset: u32) -> u32 {
        let covers = |mark: &Mark| {
            mark.tier() == tier
                && mark.start() <= offset
                && offset < mark.end()
                && self.marks.who_has(mark.who(), seat)
        };
        let first = self.marks.position(list, Mark::first_that_ends_at(offset + 1));
        self.marks.marks_at(list, first..usize::MAX).find(covers).map_or(offset, Mark::end)
    }

    /// Whether a seat holds a block of a run; the run's length is the caller's to check.
    pub(in crate::index) fn holds(&self, run: u32, tier: usize, seat: u32, offset: u32) -> bool {
        let run = self.runs.get(run);
        if tier != GPU {
            return self.end_of(run.slower.load(Relaxed) as u32, tier, seat, offset) > offset;
        }
        let (set, list) = halves(run.gpu.load(Relaxed));
        if self.is_whole(run, set, seat) {
            return true;
        }
        self.end_of(list, GPU, seat, offset) > offset
    }

    #[inline(always)]
    pub(in crate::index) fn is_whole(&self, run: &Run, set: u32, seat: u32) -> bool {
        if set != 0 {
            return self.marks.set_has(set, seat);
        }
        let seats = run.whole.load(Relaxed);
        (0..4).any(|at| (seats >> (at * 16)) as u32 & 0xffff == seat)
    }
}

/// A run on the way, its holders, and how far the prompt goes into it.
#[derive(Clone, Copy)]
struct Stretch<'a> {
    run: &'a Run,
    /// Handles of the set of whole holders and of the list of other marks.
    set: u32,
    list: u32,
    /// Position of the run's first block in the prompt.
    position: u32,
    matched: u32,
    /// The prompt goes on, but not in this run.
    leaves: bool,
}

impl Stretch<'_> {
    /// Whether holders of this part of the run may go on where the prompt does.
    #[inline(always)]
    fn passes(self, mark: Mark) -> bool {
        self.leaves && mark.end() >= self.matched
    }
}
