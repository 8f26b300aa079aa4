//! Planning a change of a run's marks, and making it visible at once.
//!
//! Sets and lists that grow are written anew into words that nobody reads yet; all that remains for the window in which
//! readers have to wait is a few stores.

use std::{ops::Range, sync::atomic::Ordering::Relaxed};

use smallvec::SmallVec;

use super::Tree;
use crate::index::raw::{CHUNK, GPU, Interval, Mark, NO_SEAT, NO_SEATS, SeatSet, Who};

/// Marks that a change in place may move: readers wait meanwhile.
const MOVED: usize = 8;

/// The new header of a run, and what else changes with it.
pub(super) struct Marking {
    pub(super) whole: u64,
    /// Set of whole holders.
    set: u32,
    /// Lists of marks: of the GPU, and of slower tiers.
    lists: [u32; 2],
    /// Words of pieces in use that change.
    stores: SmallVec<[(u32, u64); 4]>,
    /// Pieces that nobody needs afterwards.
    needless: SmallVec<[u32; 4]>,
}

/// Which list has the marks of a tier.
fn list_of(tier: usize) -> usize {
    usize::from(tier != GPU)
}

/// Words of a piece for a list of `length` marks, with room for a few more, so that it does not move at each mark.
pub(super) fn list_footprint(length: u32) -> u32 {
    length + 3 + length / 2
}

/// The inline form of up to four seats, ascending.
fn inline(seats: impl Iterator<Item = u32>) -> u64 {
    let mut word = NO_SEATS;
    for (at, seat) in seats.enumerate() {
        word = word & !(0xffff << (at * 16)) | u64::from(seat) << (at * 16);
    }
    word
}

impl Tree {
    pub(super) fn marking(&self, run: u32) -> Marking {
        let run = self.shared.runs.get(run);
        let gpu = run.gpu.load(Relaxed);
        Marking {
            whole: run.whole.load(Relaxed),
            set: (gpu >> 32) as u32,
            lists: [gpu as u32, run.slower.load(Relaxed) as u32],
            stores: SmallVec::new(),
            needless: SmallVec::new(),
        }
    }

    /// Makes a marking visible, together with another extent if one is given.
    pub(super) fn publish(&mut self, run: u32, marking: &Marking, array: Option<u64>) {
        let shared = &*self.shared;
        shared.runs.get(run).change(|run| {
            for &(index, word) in &marking.stores {
                shared.marks.word(0, index).store(word, Relaxed);
            }
            run.whole.store(marking.whole, Relaxed);
            run.gpu.store(u64::from(marking.set) << 32 | u64::from(marking.lists[0]), Relaxed);
            run.slower.store(u64::from(marking.lists[1]), Relaxed);
            if let Some(array) = array {
                run.array.store(array, Relaxed);
            }
        });
        for &handle in &marking.needless {
            self.give_piece(handle);
        }
    }

    /// The seats that hold the whole run.
    pub(super) fn whole_seats(&self, marking: &Marking) -> SeatSet {
        let mut seats = SeatSet::default();
        if marking.set != 0 {
            self.shared.marks.read_set(marking.set, &mut seats);
        } else {
            let inline = (0..4).map(|at| (marking.whole >> (at * 16)) as u32 & 0xffff);
            inline.take_while(|&seat| seat != NO_SEAT).for_each(|seat| seats.add_seat(seat));
        }
        seats
    }

    /// One more seat holds the whole run.
    pub(super) fn add_whole(&mut self, marking: &mut Marking, seat: u32) {
        if marking.set == 0 && marking.whole == NO_SEATS {
            marking.whole = inline(std::iter::once(seat));
            return;
        }
        if marking.set != 0
            && let Some(index) = self.shared.marks.set_word(marking.set, seat / 64)
        {
            let bits = self.shared.marks.word(0, index).load(Relaxed);
            marking.stores.push((index, bits | 1 << (seat % 64)));
            return;
        }
        let mut seats = self.whole_seats(marking);
        seats.add_seat(seat);
        self.set_whole(marking, &seats);
    }

    /// A seat no longer holds the whole run.
    pub(super) fn take_whole(&mut self, marking: &mut Marking, seat: u32) {
        let mut seats = self.whole_seats(marking);
        seats.take_seat(seat);
        if marking.set != 0
            && seats.len() > 4
            && let Some(index) = self.shared.marks.set_word(marking.set, seat / 64)
        {
            marking.stores.push((index, seats.word(seat / 64)));
            return;
        }
        self.set_whole(marking, &seats);
    }

    /// Exactly these seats hold the whole run.
    pub(super) fn set_whole(&mut self, marking: &mut Marking, seats: &SeatSet) {
        if marking.set != 0 {
            marking.needless.push(marking.set);
        }
        if seats.len() <= 4 {
            marking.set = 0;
            marking.whole = inline(seats.seats());
        } else {
            marking.set = self.new_set(seats);
            marking.whole = NO_SEATS;
        }
    }

    pub(super) fn is_nowhere_whole(marking: &Marking) -> bool {
        marking.set == 0 && marking.whole == NO_SEATS
    }

    /// The marks of a run in the list of `tier`.
    pub(super) fn marks_of(
        &self,
        marking: &Marking,
        tier: usize,
    ) -> impl ExactSizeIterator<Item = Mark> + '_ {
        self.shared.marks.marks(marking.lists[list_of(tier)])
    }

    /// Position of the first mark in the list of `tier` that does not begin where the run does.
    fn behind_holes(&self, marking: &Marking, tier: usize) -> usize {
        self.shared.marks.position(marking.lists[list_of(tier)], Mark::BEHIND_HOLES)
    }

    /// Where the last of the marks from the beginning ends, and the last of those behind holes; 0 where there is none.
    pub(super) fn last_ends(&self, marking: &Marking, tier: usize) -> [u32; 2] {
        let (list, behind_holes) = (marking.lists[list_of(tier)], self.behind_holes(marking, tier));
        let end = |marks: Range<usize>| {
            let last = marks.end.checked_sub(1).filter(|&last| last >= marks.start);
            last.and_then(|last| self.shared.marks.marks_at(list, last..last + 1).next()).map_or(0, Mark::end)
        };
        [end(0..behind_holes), end(behind_holes..self.shared.marks.marks(list).len())]
    }

    pub(super) fn has_marks(marking: &Marking) -> bool {
        marking.lists != [0, 0]
    }

    /// Those intervals of one seat that overlap `wanted` or touch it, in any order.
    pub(super) fn touching(
        &self,
        marking: &Marking,
        tier: usize,
        seat: u32,
        wanted: Interval,
    ) -> SmallVec<[Interval; 4]> {
        let list = marking.lists[list_of(tier)];
        let own = |mark: &Mark| {
            mark.tier() == tier
                && mark.start() <= wanted.end
                && mark.end() >= wanted.start
                && self.shared.marks.who_has(mark.who(), seat)
        };
        let marks = &self.shared.marks;
        let behind_holes = self.behind_holes(marking, tier);
        let first = marks.position(list, Mark::first_that_ends_at(wanted.start));
        // From the beginning on there is one at most: whatever comes after it in that part is of others.
        let from_beginning = marks.marks_at(list, first..behind_holes).find(own);
        let rest = marks.marks_at(list, behind_holes..usize::MAX).filter(own);
        from_beginning.into_iter().chain(rest).map(Mark::interval).collect()
    }

    /// Takes intervals of a seat away and adds others.
    pub(super) fn remark(
        &mut self,
        marking: &mut Marking,
        tier: usize,
        seat: u32,
        gone: &[Interval],
        new: &[Interval],
    ) {
        let marks = |intervals: &[Interval]| -> SmallVec<[Mark; 4]> {
            intervals.iter().map(|&interval| Mark::new(tier, interval, Who::Seat(seat))).collect()
        };
        let (gone, new) = (marks(gone), marks(new));
        if (gone.is_empty() && new.is_empty()) || self.remark_in_place(marking, tier, &gone, &new) {
            return;
        }
        let mut marks: Vec<Mark> = self.marks_of(marking, tier).collect();
        for &mark in &gone {
            self.unmark(marking, &mut marks, mark, seat);
        }
        for &mark in &new {
            self.mark(marking, &mut marks, mark, seat);
        }
        self.set_list(marking, tier, &marks);
    }

    /// The usual change, which concerns no set of seats and few marks around, without writing the list anew.
    fn remark_in_place(&self, marking: &mut Marking, tier: usize, gone: &[Mark], new: &[Mark]) -> bool {
        let list = marking.lists[list_of(tier)];
        let arena = &self.shared.marks;
        let length = arena.marks(list).len();
        let after = length + new.len() - gone.len().min(length);
        if list == 0 || after == 0 || after + 2 > arena.size_of_piece(list) as usize {
            return false;
        }
        // Marks between the first and the last that change move up or down; all to the end, if their number changes.
        let places = || gone.iter().chain(new).map(|mark| arena.position(list, mark.order()));
        let first = places().min().unwrap_or(length);
        let last = places().max().filter(|_| after == length).map_or(length, |last| (last + 1).min(length));
        if last - first > MOVED {
            return false;
        }
        let old: SmallVec<[Mark; MOVED + 4]> = arena.marks_at(list, first..last).collect();
        let mut changed = old.clone();
        let place = |marks: &[Mark], mark: Mark| marks.partition_point(|other| other.order() < mark.order());
        for &mark in gone {
            let at = place(&changed, mark);
            if changed.get(at) != Some(&mark) {
                return false;
            }
            changed.remove(at);
        }
        for &mark in new {
            let at = place(&changed, mark);
            if changed.get(at).is_some_and(|other| other.is_like(mark)) {
                return false;
            }
            changed.insert(at, mark);
        }
        let index = list + 1 + first as u32;
        let stores = (index..).zip(&changed).enumerate().filter(|&(at, (_, mark))| old.get(at) != Some(mark));
        marking.stores.extend(stores.map(|(_, (index, mark))| (index, mark.0)));
        if after != length {
            marking.stores.push((list, after as u64));
        }
        true
    }

    /// Takes a seat out of the mark that is like `gone`.
    fn unmark(&mut self, marking: &mut Marking, marks: &mut Vec<Mark>, gone: Mark, seat: u32) {
        let Ok(at) = marks.binary_search_by_key(&gone.order(), |mark| mark.order()) else { return };
        let Who::Set(set) = marks[at].who() else {
            marks.remove(at);
            return;
        };
        let mut seats = SeatSet::default();
        self.shared.marks.read_set(set, &mut seats);
        seats.take_seat(seat);
        seats.0.retain(|&(_, bits)| bits != 0);
        marking.needless.push(set);
        match self.who_of(&seats) {
            Some(who) => marks[at] = Mark::new(gone.tier(), gone.interval(), who),
            None => {
                marks.remove(at);
            }
        }
    }

    /// How a mark names these seats; `None` if there are none.
    pub(super) fn who_of(&mut self, seats: &SeatSet) -> Option<Who> {
        let first = seats.seats().next()?;
        Some(if seats.len() == 1 { Who::Seat(first) } else { Who::Set(self.new_set(seats)) })
    }

    /// Puts a seat into the mark that is like `new`, or adds that.
    fn mark(&mut self, marking: &mut Marking, marks: &mut Vec<Mark>, new: Mark, seat: u32) {
        let at = match marks.binary_search_by_key(&new.order(), |mark| mark.order()) {
            Ok(at) => at,
            Err(at) => {
                marks.insert(at, new);
                return;
            }
        };
        let mut seats = SeatSet::default();
        match marks[at].who() {
            Who::Seat(other) => seats.add_seat(other),
            Who::Set(set) => {
                self.shared.marks.read_set(set, &mut seats);
                marking.needless.push(set);
            }
        }
        seats.add_seat(seat);
        marks[at] = Mark::new(new.tier(), new.interval(), Who::Set(self.new_set(&seats)));
    }

    /// The same interval for several seats that have none there yet.
    pub(super) fn mark_all(
        &mut self,
        marking: &mut Marking,
        tier: usize,
        interval: Interval,
        seats: &SeatSet,
    ) {
        let mut marks: Vec<Mark> = self.marks_of(marking, tier).collect();
        for seat in seats.seats() {
            self.mark(marking, &mut marks, Mark::new(tier, interval, Who::Seat(seat)), seat);
        }
        self.set_list(marking, tier, &marks);
    }

    /// Exactly these marks, in order, make up the list of `tier`.
    pub(super) fn set_list(&mut self, marking: &mut Marking, tier: usize, marks: &[Mark]) {
        debug_assert!(marks.is_sorted_by_key(|mark| mark.order()), "found by where they end");
        let list = &mut marking.lists[list_of(tier)];
        if *list != 0 {
            marking.needless.push(*list);
        }
        *list = if marks.is_empty() { 0 } else { self.new_list(marks) };
    }

    /// Forgets a piece once the marking is visible.
    pub(super) fn drop_piece(marking: &mut Marking, handle: u32) {
        marking.needless.push(handle);
    }

    fn new_set(&mut self, seats: &SeatSet) -> u32 {
        let handle = self.take_piece(seats.footprint());
        if handle != 0 {
            self.shared.marks.write_set(handle, seats);
        }
        handle
    }

    fn new_list(&mut self, marks: &[Mark]) -> u32 {
        let handle = self.take_piece(list_footprint(marks.len() as u32).min(CHUNK));
        if handle != 0 {
            self.shared.marks.write_list(handle, marks);
        }
        handle
    }

    /// Handle of a new piece. 0, which forgets the marks that were to go there, only if the arena is full: whoever adds holders asks
    /// [`Tree::has_room`] before, and what that keeps back is for removals.
    fn take_piece(&mut self, words: u32) -> u32 {
        let Some((index, size)) = self.marks.take(&self.shared.marks, words) else {
            debug_assert!(false, "the arena of marks is full");
            return 0;
        };
        self.shared.marks.word(0, index).store(u64::from(size), Relaxed);
        index + 1
    }

    fn give_piece(&mut self, handle: u32) {
        let size = self.shared.marks.size_of_piece(handle);
        self.marks.give(&self.shared.marks, handle - 1, size);
    }
}
