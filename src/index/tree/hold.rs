//! One seat holds blocks, or no longer does.

use std::sync::atomic::Ordering::Relaxed;

use smallvec::SmallVec;

use super::{Place, Tree, marking::list_footprint};
use crate::{
    event::EngineHash,
    index::raw::{CHUNK, GPU, Interval, NAME, SeatSet, halves},
};

/// Blocks of a run by their offsets, as disjoint intervals, ascending.
type Intervals = SmallVec<[Interval; 4]>;

/// Marks that a list may have before holding is refused. Removals may still add some: a hole makes two of one.
const MARKS: usize = (CHUNK - CHUNK / 8) as usize;
/// Words for the sets of seats that change with a list: three of the largest.
const SETS: u32 = CHUNK / 8;
/// The part of the arena of marks, one in so many, that is kept for removals, which are never refused.
const KEPT: usize = 64;

impl Tree {
    /// Whether a seat holds a block.
    #[inline(always)]
    pub(in crate::index) fn holds(&self, tier: usize, seat: u32, place: Place) -> bool {
        place.offset < self.length(place.run) && self.shared.holds(place.run, tier, seat, place.offset)
    }

    /// Whether any seat of which `counts` says so holds a block.
    pub(in crate::index) fn is_held(&self, place: Place, mut counts: impl FnMut(usize, u32) -> bool) -> bool {
        let marking = self.marking(place.run);
        if self.whole_seats(&marking).seats().any(|seat| counts(GPU, seat)) {
            return true;
        }
        let mut seats = SeatSet::default();
        [GPU, GPU + 1].into_iter().any(|list| {
            self.marks_of(&marking, list).any(|mark| {
                if !(mark.start() <= place.offset && place.offset < mark.end()) {
                    return false;
                }
                seats.0.clear();
                self.shared.marks.read_who(mark.who(), &mut seats);
                seats.seats().any(|seat| counts(mark.tier(), seat))
            })
        })
    }

    /// Whether there is room for one more mark on a run, whose list may have to be written anew for it.
    pub(in crate::index) fn has_room(&self, run: u32, tier: usize) -> bool {
        let arena = &self.shared.marks;
        let marks = self.marks_of(&self.marking(run), tier).len();
        let words = (list_footprint(marks as u32 + 1) + SETS).min(CHUNK);
        marks < MARKS && self.marks.has_room(arena, words, arena.limit() / KEPT)
    }

    /// Which of the blocks `wanted` of a run a seat holds.
    pub(in crate::index) fn held_within(
        &self,
        run: u32,
        tier: usize,
        seat: u32,
        wanted: Interval,
    ) -> Intervals {
        if tier == GPU && self.is_whole(run, seat) {
            return SmallVec::from_slice(&[wanted]);
        }
        let marking = self.marking(run);
        let mut held = self.touching(&marking, tier, seat, wanted);
        held.retain(|interval| {
            interval.start = interval.start.max(wanted.start);
            interval.end = interval.end.min(wanted.end);
            interval.start < interval.end
        });
        held
    }

    /// From now on a seat holds the blocks `more` of a run.
    pub(in crate::index) fn hold(&mut self, tier: usize, seat: u32, run: u32, more: Interval) {
        if tier == GPU && self.is_whole(run, seat) {
            return;
        }
        if tier != GPU {
            self.shared.note_slower();
        }
        let mut marking = self.marking(run);
        let gone = self.touching(&marking, tier, seat, more);
        let new = joined(&gone, more);
        if gone[..] == [new] {
            return;
        }
        if tier == GPU && new == (Interval { start: 0, end: self.length(run) }) {
            self.remark(&mut marking, tier, seat, &gone, &[]);
            self.add_whole(&mut marking, seat);
        } else {
            self.remark(&mut marking, tier, seat, &gone, &[new]);
        }
        self.publish(run, &marking, None);
    }

    /// From now on a seat does not hold a block. Whatever only that mark kept goes with it.
    pub(in crate::index) fn release(&mut self, tier: usize, seat: u32, place: Place) {
        let Place { run, offset } = place;
        if tier == GPU && self.release_last(seat, place, &[]) > 0 {
            return;
        }
        let mut marking = self.marking(run);
        if tier == GPU && self.is_whole(run, seat) {
            let all = Interval { start: 0, end: self.length(run) };
            self.take_whole(&mut marking, seat);
            self.remark(&mut marking, tier, seat, &[], &without(all, offset));
        } else {
            let block = Interval { start: offset, end: offset + 1 };
            let mut held = self.touching(&marking, tier, seat, block);
            held.retain(|interval| interval.start <= offset && offset < interval.end);
            let Some(&interval) = held.first() else { return };
            self.remark(&mut marking, tier, seat, &[interval], &without(interval, offset));
        }
        self.publish(run, &marking, None);
        self.shrink(run);
    }

    /// Whether a seat holds a whole run on the GPU.
    #[inline(always)]
    pub(super) fn is_whole(&self, run: u32, seat: u32) -> bool {
        let header = self.shared.runs.get(run);
        self.shared.is_whole(header, halves(header.gpu.load(Relaxed)).0, seat)
    }

    /// Whether a block is the last one of its run, and the one that `name` leads to.
    #[inline(always)]
    pub(in crate::index) fn ends_with(&self, place: Place, name: u64) -> bool {
        let (start, length) = self.shared.runs.get(place.run).extent();
        place.offset + 1 == length
            && self.shared.blocks.word(NAME, start + place.offset).load(Relaxed) == name
            && !self.has_unmapped()
    }

    /// The most frequent removals: the last block of a run that only this seat holds, and those before it as far as `names`,
    /// which begins with that block's, goes on with theirs. How many; 0 if it is another case.
    #[inline(always)]
    pub(in crate::index) fn release_last(&mut self, seat: u32, place: Place, names: &[EngineHash]) -> usize {
        let Place { run, offset } = place;
        let header = self.shared.runs.get(run);
        let (start, length) = header.extent();
        let family = &self.families[run as usize];
        // What has to stay: the first block, with which the run goes, and what children hang behind.
        let least = if family.first_child == 0 { 1 } else { family.floor().max(1) };
        let is_last = offset + 1 == length
            && length > least
            && header.whole.load(Relaxed) == only(seat)
            && header.gpu.load(Relaxed) == 0
            && header.slower.load(Relaxed) == 0;
        if !is_last {
            return 0;
        }
        let mut count = 1;
        // A block whose name leads elsewhere is not the one that is meant.
        if names.len() > 1 && !self.has_unmapped() {
            let own = self.shared.blocks.cells(NAME, start + least, length - least).iter().rev();
            count = own.zip(names).take_while(|(own, name)| own.load(Relaxed) == name.0).count().max(1);
        }
        self.cut_last(run, count, names);
        count
    }
}

/// The word of whole holders when there is only one.
pub(super) fn only(seat: u32) -> u64 {
    u64::MAX << 16 | u64::from(seat)
}

/// `more` and all that touches it, as one.
pub(super) fn joined(touching: &[Interval], more: Interval) -> Interval {
    touching.iter().fold(more, |all, interval| Interval {
        start: all.start.min(interval.start),
        end: all.end.max(interval.end),
    })
}

/// What is left of an interval without one of its blocks.
fn without(Interval { start, end }: Interval, offset: u32) -> Intervals {
    let parts = [Interval { start, end: offset }, Interval { start: offset + 1, end }];
    parts.into_iter().filter(|interval| interval.start < interval.end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intervals(pairs: &[(u32, u32)]) -> Intervals {
        pairs.iter().map(|&(start, end)| Interval { start, end }).collect()
    }

    #[test]
    fn what_touches_is_joined() {
        let join = |held: &[(u32, u32)], start, end| joined(&intervals(held), Interval { start, end });
        assert_eq!(join(&[], 3, 5), Interval { start: 3, end: 5 });
        assert_eq!(join(&[(7, 9), (0, 3)], 3, 7), Interval { start: 0, end: 9 });
        assert_eq!(join(&[(4, 6)], 0, 9), Interval { start: 0, end: 9 });
    }

    #[test]
    fn a_block_less_shortens_splits_or_ends_an_interval() {
        let less = |start, end, offset| without(Interval { start, end }, offset);
        assert_eq!(less(0, 3, 2), intervals(&[(0, 2)]));
        assert_eq!(less(0, 3, 0), intervals(&[(1, 3)]));
        assert_eq!(less(0, 3, 1), intervals(&[(0, 1), (2, 3)]));
        assert_eq!(less(4, 5, 4), intervals(&[]));
    }
}
