//! New blocks.

use std::sync::atomic::Ordering::Relaxed;

use super::{
    Family, Place, Point, Tree,
    hold::{joined, only},
};
use crate::{
    event::StoredBlock,
    index::raw::{CHUNK, CONTENT, GPU, Interval, MAX_RUN, NAME, NO_SEATS, halves},
};

/// What came of making blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::index) struct Made {
    /// How many were made.
    pub(in crate::index) count: usize,
    /// Where the last one is.
    pub(in crate::index) last: Place,
    /// Why not all, if so.
    pub(in crate::index) stopped: Option<Stopped>,
}

/// Why blocks were not made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::index) enum Stopped {
    /// The run is full; the rest goes below it.
    RunIsFull,
    /// The next block's name leads to another block.
    NameIsTaken,
    /// There is no memory that the index may use.
    NoRoom,
}

/// Content of a block that has one.
fn content(block: &StoredBlock) -> u64 {
    block.content.map_or(0, |content| content.0)
}

impl Tree {
    /// Makes blocks at a point where the first one's content does not follow yet, held by one seat. All have
    /// contents. With `mapped`, their names lead to them; it stops before a name that leads elsewhere.
    pub(in crate::index) fn make(
        &mut self,
        tier: usize,
        seat: u32,
        point: Point,
        blocks: &[StoredBlock],
        mapped: bool,
    ) -> Made {
        if tier != GPU {
            self.shared.note_slower();
        }
        if self.can_append(tier, seat, point) {
            self.append(tier, seat, point, blocks, mapped)
        } else {
            self.make_run(tier, seat, point, blocks, mapped)
        }
    }

    /// Whether a chain may go on in the run itself: the point is its end, and whoever else holds the whole run is one of
    /// the few that can be marked as holding its present length, for which there is room.
    fn can_append(&self, tier: usize, seat: u32, Point { run, offset }: Point) -> bool {
        if run == 0 || offset >= MAX_RUN || offset != self.length(run) {
            return false;
        }
        let header = self.shared.runs.get(run);
        let (set, _) = halves(header.gpu.load(Relaxed));
        if tier == GPU && set == 0 && header.whole.load(Relaxed) == only(seat) {
            return true;
        }
        let family = &self.families[run as usize];
        let open = set == 0 && (family.first_child == 0 || family.floor() < offset);
        open && self.holds(tier, seat, Place { run, offset: offset - 1 })
            && (tier != GPU || self.shared.is_whole(header, set, seat))
            && [GPU, tier].into_iter().all(|tier| self.has_room(run, tier))
    }

    fn append(&mut self, tier: usize, seat: u32, point: Point, blocks: &[StoredBlock], mapped: bool) -> Made {
        let Point { run, offset: length } = point;
        let blocks = &blocks[..blocks.len().min((MAX_RUN - length) as usize)];
        if !self.make_room(run, blocks.len() as u32) {
            return nothing(point, Stopped::NoRoom);
        }
        let count = self.fill(run, length, blocks, mapped);
        if count == 0 {
            return nothing(point, Stopped::NameIsTaken);
        }
        let start = self.shared.runs.get(run).extent().0;
        let end = length + count as u32;
        let array = u64::from(start) << 32 | u64::from(end);
        let header = self.shared.runs.get(run);
        if tier == GPU && header.whole.load(Relaxed) == only(seat) {
            header.change(|header| header.array.store(array, Relaxed));
        } else {
            self.mark_longer(tier, seat, run, array);
        }
        self.places += count as u64;
        made(count, Place { run, offset: end - 1 }, blocks.len(), end >= MAX_RUN)
    }

    /// A run gets longer by blocks that only one seat holds: for the others its present length becomes a part.
    fn mark_longer(&mut self, tier: usize, seat: u32, run: u32, array: u64) {
        let (length, end) = (self.length(run), array as u32);
        let mut marking = self.marking(run);
        let mut others = self.whole_seats(&marking);
        if tier == GPU {
            others.take_seat(seat);
            marking.whole = only(seat);
        } else {
            marking.whole = NO_SEATS;
            let more = Interval { start: length, end };
            let gone = self.touching(&marking, tier, seat, more);
            self.remark(&mut marking, tier, seat, &gone, &[joined(&gone, more)]);
        }
        let present = Interval { start: 0, end: length };
        match (others.len(), others.seats().next()) {
            (0, _) | (_, None) => {}
            (1, Some(other)) => self.remark(&mut marking, GPU, other, &[], &[present]),
            _ => self.mark_all(&mut marking, GPU, present, &others),
        }
        self.publish(run, &marking, Some(array));
    }

    /// Makes sure that a run's array has room for `more` blocks, moving it if need be.
    fn make_room(&mut self, run: u32, more: u32) -> bool {
        let header = self.shared.runs.get(run);
        let ((start, length), capacity) = (header.extent(), header.capacity());
        if length + more <= capacity {
            return true;
        }
        let hash = self.shared.hash_of(run);
        self.shared.children.prefetch(hash);
        let wanted = (length + more + (length / 8).max(4)).min(CHUNK);
        let Some((to, size)) = self.blocks.take(&self.shared.blocks, wanted) else { return false };
        for plane in [CONTENT, NAME] {
            let from = self.shared.blocks.cells(plane, start, length);
            let to = self.shared.blocks.cells(plane, to, length);
            to.iter().zip(from).for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
        }
        let header = self.shared.runs.get(run);
        header.change(|header| {
            header.array.store(u64::from(to) << 32 | u64::from(length), Relaxed);
            header.set_capacity(size);
        });
        self.children.moved(&self.shared.children, hash, run, to);
        self.blocks.give(&self.shared.blocks, start, capacity);
        true
    }

    fn make_run(
        &mut self,
        tier: usize,
        seat: u32,
        point: Point,
        blocks: &[StoredBlock],
        mapped: bool,
    ) -> Made {
        let blocks = &blocks[..blocks.len().min(MAX_RUN as usize)];
        let length = blocks.len() as u32;
        let Some(run) = self.free_run() else { return nothing(point, Stopped::NoRoom) };
        let Some((start, size)) =
            self.blocks.take(&self.shared.blocks, (length + length / 16 + 2).min(CHUNK))
        else {
            self.families.give_back(run);
            return nothing(point, Stopped::NoRoom);
        };
        // Nobody finds the run before it is in the child table, but a reader may still look at what it was.
        let header = self.shared.runs.get(run);
        header.change(|header| {
            header.link.store(u64::from(point.run) << 32 | u64::from(point.offset), Relaxed);
            header.first.store(content(&blocks[0]), Relaxed);
            header.whole.store(if tier == GPU { only(seat) } else { NO_SEATS }, Relaxed);
            header.gpu.store(0, Relaxed);
            header.slower.store(0, Relaxed);
            header.set_capacity(size);
            header.note_exit(0);
            header.array.store(u64::from(start) << 32, Relaxed);
        });
        let count = self.fill(run, 0, blocks, mapped);
        if count == 0 {
            self.blocks.give(&self.shared.blocks, start, size);
            self.families.give_back(run);
            return nothing(point, Stopped::NameIsTaken);
        }
        let header = self.shared.runs.get(run);
        header.change(|header| header.array.store(u64::from(start) << 32 | count as u64, Relaxed));
        if tier != GPU {
            let mut marking = self.marking(run);
            self.remark(&mut marking, tier, seat, &[], &[Interval { start: 0, end: count as u32 }]);
            self.publish(run, &marking, None);
        }
        self.places += count as u64;
        self.join_family(run, point);
        let hash = self.shared.child_hash(point.run, point.offset, content(&blocks[0]));
        let shared = &*self.shared;
        self.children.insert(&shared.children, hash, (run, start), |run| shared.hash_of(run));
        made(count, Place { run, offset: count as u32 - 1 }, blocks.len(), count as u32 == MAX_RUN)
    }

    fn free_run(&mut self) -> Option<u32> {
        if let Some(run) = self.families.take_free() {
            return Some(run);
        }
        let run = self.next_run;
        if !self.shared.runs.make(run) {
            return None;
        }
        self.next_run += 1;
        self.families.add(run);
        Some(run)
    }

    fn join_family(&mut self, run: u32, point: Point) {
        let mut family = Family::default();
        if point.run != 0 {
            self.shared.runs.get(point.run).note_exit(point.offset);
            let parent = &mut self.families[point.run as usize];
            if parent.first_child == 0 || parent.floor() <= point.offset {
                parent.floor = point.offset;
            }
            family.next = std::mem::replace(&mut parent.first_child, run);
            if family.next != 0 {
                self.families[family.next as usize].previous = run;
            }
        }
        self.families[run as usize] = family;
    }

    /// Writes blocks behind the present end of a run, where nobody reads, and maps their names; how many.
    fn fill(&mut self, run: u32, from: u32, blocks: &[StoredBlock], mapped: bool) -> usize {
        let start = self.shared.runs.get(run).extent().0 + from;
        let [contents, names] =
            [CONTENT, NAME].map(|plane| self.shared.blocks.cells(plane, start, blocks.len() as u32));
        for ((block, to_content), to_name) in blocks.iter().zip(contents).zip(names) {
            to_content.store(content(block), Relaxed);
            to_name.store(block.engine.0, Relaxed);
        }
        if !mapped {
            for (offset, _) in (from..).zip(blocks) {
                self.unmapped.insert(Place { run, offset }, ());
            }
            return blocks.len();
        }
        if let [block] = blocks {
            return usize::from(self.names.insert(block.engine.0, run, from, &*self.shared).is_ok());
        }
        let chain = blocks.iter().map(|block| block.engine.0);
        self.names.insert_chain(chain, run, from, &*self.shared)
    }
}

fn nothing(point: Point, why: Stopped) -> Made {
    let Point { run, offset } = point;
    Made { count: 0, last: Place { run, offset }, stopped: Some(why) }
}

fn made(count: usize, last: Place, wanted: usize, full: bool) -> Made {
    let stopped = match count < wanted {
        true => Some(Stopped::NameIsTaken),
        false => full.then_some(Stopped::RunIsFull),
    };
    Made { count, last, stopped }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{event::EngineHash, hash::BlockHash, index::raw::Shared};

    fn blocks(numbers: &[u64]) -> Vec<StoredBlock> {
        let block = |&number| StoredBlock { engine: EngineHash(number), content: Some(BlockHash(number)) };
        numbers.iter().map(block).collect()
    }

    #[test]
    fn a_run_that_others_hold_is_not_made_longer_where_marks_have_no_room() {
        let shared = Arc::new(Shared::new(1, 7));
        let mut tree = Tree::new(Arc::clone(&shared), 7);
        let run = tree.make(GPU, 0, Point::START, &blocks(&[1, 2]), true).last.run;
        for seat in [1, 2] {
            tree.hold(GPU, seat, run, Interval { start: 0, end: 2 });
        }
        assert!(tree.has_room(run, GPU));
        while tree.marks.take(&shared.marks, CHUNK).is_some() {}
        // Words are free, in a piece that is too short for what would change.
        tree.marks.give(&shared.marks, 0, 4);
        assert!(!tree.has_room(run, GPU));

        let made = tree.make(GPU, 0, Point { run, offset: 2 }, &blocks(&[3]), true);
        assert!(made.count == 1 && made.last.run != run, "{made:?}");
        let second = Place { run, offset: 1 };
        for seat in [0, 1, 2] {
            assert!(tree.holds(GPU, seat, second), "seat {seat}");
            assert_eq!(tree.holds(GPU, seat, made.last), seat == 0, "seat {seat}");
        }
    }
}
