//! Who holds what of a run, beyond the four seats that fit in its header.
//!
//! Both forms lie in the arena of marks, in pieces whose first word is their size; a handle is the index of the second
//! word, so that 0 can mean none.
//!
//! * A *set* of seats: its length, that many words of 64 seats, then the words' numbers, four to a word, ascending. It is
//!   sparse: five seats out of 65,535 cost nine words, and 256 dense ones eight.
//! * A *list* of marks: its length, then one word a mark. Those from the run's beginning come first, then those behind holes;
//!   each part is ordered by where its intervals end. A seat has at most one mark in the first part, so that the writer
//!   finds a seat's marks among thousands without looking at them all.
//!
//! All accesses are relaxed: a handle comes from a header whose version was read with Acquire, and the words of a piece were
//! stored before the window that published its handle. A reader with a stale handle reads whatever lies there now, within
//! the chunk, and drops it when it finds the version changed.

use std::{ops::Range, sync::atomic::Ordering::Relaxed};

use super::{
    arena::{Arena, CHUNK},
    sync::AtomicU64,
};
use crate::event::Tier;

/// Position of the GPU among the tiers.
pub(in crate::index) const GPU: usize = Tier::Gpu.index();
/// Words of a set that covers every seat.
const SET_WORDS: u32 = 1_024;

/// Blocks `start..end` of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::index) struct Interval {
    pub(in crate::index) start: u32,
    pub(in crate::index) end: u32,
}

/// Who is marked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::index) enum Who {
    Seat(u32),
    /// Several seats with the same interval, by the handle of their set.
    Set(u32),
}

/// Some seats of a tier hold an interval of a run: end << 49 | start << 34 | tier << 32 | who.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::index) struct Mark(pub(in crate::index) u64);

impl Mark {
    const IS_SET: u32 = 1 << 31;

    pub(in crate::index) fn new(tier: usize, interval: Interval, who: Who) -> Self {
        let who = match who {
            Who::Seat(seat) => seat,
            Who::Set(handle) => handle | Self::IS_SET,
        };
        Self(
            u64::from(interval.end) << 49
                | u64::from(interval.start) << 34
                | (tier as u64) << 32
                | u64::from(who),
        )
    }

    #[inline(always)]
    pub(in crate::index) fn end(self) -> u32 {
        (self.0 >> 49) as u32
    }

    #[inline(always)]
    pub(in crate::index) fn start(self) -> u32 {
        (self.0 >> 34) as u32 & 0x7fff
    }

    #[inline(always)]
    pub(in crate::index) fn tier(self) -> usize {
        (self.0 >> 32) as usize & 3
    }

    #[inline(always)]
    pub(in crate::index) fn interval(self) -> Interval {
        Interval { start: self.start(), end: self.end() }
    }

    #[inline(always)]
    pub(in crate::index) fn who(self) -> Who {
        let who = self.0 as u32;
        // The mask keeps a seat made up from stale words within the tables.
        if who & Self::IS_SET != 0 { Who::Set(who & !Self::IS_SET) } else { Who::Seat(who & 0xffff) }
    }

    /// What lists are ordered by; no two marks of a list have the same.
    #[inline(always)]
    pub(in crate::index) fn order(self) -> u64 {
        u64::from(self.start() != 0) << 32 | self.0 >> 32
    }

    /// The least order of marks from the beginning that end at `end` or behind it.
    pub(in crate::index) fn first_that_ends_at(end: u32) -> u64 {
        u64::from(end) << 17
    }

    /// The least order of marks behind holes.
    pub(in crate::index) const BEHIND_HOLES: u64 = 1 << 32;

    /// Whether it says the same as another, of other seats.
    pub(in crate::index) fn is_like(self, other: Self) -> bool {
        self.0 >> 32 == other.0 >> 32
    }
}

/// Seats as sparse words of 64, ascending by the words' numbers.
#[derive(Clone, Default, Debug)]
pub(in crate::index) struct SeatSet(pub(in crate::index) Vec<(u32, u64)>);

impl SeatSet {
    #[inline(always)]
    fn find(&self, word: u32) -> Result<usize, usize> {
        if self.0.len() > 8 {
            return self.0.binary_search_by_key(&word, |&(number, _)| number);
        }
        match self.0.iter().position(|&(number, _)| number >= word) {
            Some(at) if self.0[at].0 == word => Ok(at),
            Some(at) => Err(at),
            None => Err(self.0.len()),
        }
    }

    #[inline(always)]
    pub(in crate::index) fn word(&self, word: u32) -> u64 {
        self.find(word).map_or(0, |at| self.0[at].1)
    }

    #[inline(always)]
    pub(in crate::index) fn add(&mut self, word: u32, bits: u64) {
        match self.find(word) {
            Ok(at) => self.0[at].1 |= bits,
            Err(at) => self.0.insert(at, (word, bits)),
        }
    }

    #[inline(always)]
    pub(in crate::index) fn take(&mut self, word: u32, bits: u64) {
        if let Ok(at) = self.find(word) {
            self.0[at].1 &= !bits;
        }
    }

    /// Adds all seats of `other`, whose own words may be anything afterwards.
    #[inline(always)]
    pub(in crate::index) fn unite(&mut self, other: &mut Self) {
        // The longer one takes in the shorter one.
        if self.0.len() < other.0.len() {
            std::mem::swap(self, other);
        }
        other.0.iter().for_each(|&(word, bits)| self.add(word, bits));
    }

    /// Leaves those seats that are in `other` too.
    #[inline(always)]
    pub(in crate::index) fn keep(&mut self, other: &Self) {
        self.0.retain_mut(|(word, bits)| {
            *bits &= other.word(*word);
            *bits != 0
        });
    }

    pub(in crate::index) fn add_seat(&mut self, seat: u32) {
        self.add(seat / 64, 1 << (seat % 64));
    }

    pub(in crate::index) fn take_seat(&mut self, seat: u32) {
        self.take(seat / 64, 1 << (seat % 64));
    }

    pub(in crate::index) fn has(&self, seat: u32) -> bool {
        self.word(seat / 64) >> (seat % 64) & 1 == 1
    }

    pub(in crate::index) fn len(&self) -> u32 {
        self.0.iter().map(|&(_, bits)| bits.count_ones()).sum()
    }

    pub(in crate::index) fn seats(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().flat_map(|&(word, bits)| {
            let mut rest = bits;
            std::iter::from_fn(move || {
                let seat = (rest != 0).then(|| word * 64 + rest.trailing_zeros());
                rest &= rest.wrapping_sub(1);
                seat
            })
        })
    }

    /// Words that a piece for this set needs, its size word included.
    pub(in crate::index) fn footprint(&self) -> u32 {
        let words = self.0.len() as u32;
        2 + words + words.div_ceil(4)
    }
}

impl Arena<1> {
    /// Length and words of a set or a list. A length that may be stale is cut to what its chunk can hold.
    #[inline(always)]
    fn piece(&self, handle: u32) -> &[AtomicU64] {
        let length = self.word(0, handle).load(Relaxed);
        let room = u64::from(CHUNK - 1 - (handle & (CHUNK - 1)));
        // SAFETY: the words from `handle + 1` to the end of the chunk are readable.
        unsafe { std::slice::from_raw_parts(self.words(0, handle).add(1), length.min(room) as usize) }
    }

    /// The marks of a list; none for handle 0.
    #[inline(always)]
    pub(in crate::index) fn marks(&self, list: u32) -> impl ExactSizeIterator<Item = Mark> + '_ {
        self.marks_at(list, 0..usize::MAX)
    }

    /// Those marks of a list that stand at some positions, as far as it has so many.
    #[inline(always)]
    pub(in crate::index) fn marks_at(
        &self,
        list: u32,
        positions: Range<usize>,
    ) -> impl ExactSizeIterator<Item = Mark> + '_ {
        let words = if list == 0 { &[] } else { self.piece(list) };
        let end = positions.end.min(words.len());
        words[positions.start.min(end)..end].iter().map(|word| Mark(word.load(Relaxed)))
    }

    /// Position of the first mark of a list that does not come before `order`. Somewhere in the list, if it is stale.
    #[inline(always)]
    pub(in crate::index) fn position(&self, list: u32, order: u64) -> usize {
        let words = if list == 0 { &[] } else { self.piece(list) };
        words.partition_point(|word| Mark(word.load(Relaxed)).order() < order)
    }

    /// Adds the seats of a set to `seats`. The words of `seats` stay ascending if they were below.
    #[inline(always)]
    pub(in crate::index) fn read_set(&self, set: u32, seats: &mut SeatSet) {
        let length = self.word(0, set).load(Relaxed) as u32;
        let room = CHUNK - 1 - (set & (CHUNK - 1));
        // A stale length must not lead beyond the chunk: five words hold four of the set and their numbers.
        let length = length.min(SET_WORDS).min(room * 4 / 5) as usize;
        // SAFETY: `length + length.div_ceil(4)` words after the first lie in the chunk.
        let words =
            unsafe { std::slice::from_raw_parts(self.words(0, set).add(1), length + length.div_ceil(4)) };
        let (bits, numbers) = words.split_at(length);
        seats.0.extend(bits.iter().enumerate().map(|(at, bits)| {
            let number = numbers[at / 4].load(Relaxed) >> (at % 4 * 16);
            (number as u32 % SET_WORDS, bits.load(Relaxed))
        }));
    }

    /// Adds the seats of a mark to `seats`.
    #[inline(always)]
    pub(in crate::index) fn read_who(&self, who: Who, seats: &mut SeatSet) {
        match who {
            Who::Seat(seat) => seats.add_seat(seat),
            Who::Set(set) => self.read_set(set, seats),
        }
    }

    /// Whether a seat is among those of a mark.
    #[inline(always)]
    pub(in crate::index) fn who_has(&self, who: Who, seat: u32) -> bool {
        match who {
            Who::Seat(own) => own == seat,
            Who::Set(set) => self.set_has(set, seat),
        }
    }

    /// Whether a set has a seat.
    pub(in crate::index) fn set_has(&self, set: u32, seat: u32) -> bool {
        let word = self.set_word(set, seat / 64);
        word.is_some_and(|word| self.word(0, word).load(Relaxed) >> (seat % 64) & 1 == 1)
    }

    /// Index of the word of a set that has these 64 seats. Readers get here with stale handles, too.
    pub(in crate::index) fn set_word(&self, set: u32, word: u32) -> Option<u32> {
        // A stale length must not lead beyond the chunk.
        let room = CHUNK - 1 - (set & (CHUNK - 1));
        let length = (self.word(0, set).load(Relaxed) as u32).min(SET_WORDS).min(room * 4 / 5);
        (0..length).map(|at| set + 1 + at).find(|&index| {
            let at = index - set - 1;
            let numbers = self.word(0, set + 1 + length + at / 4).load(Relaxed);
            (numbers >> (at % 4 * 16)) as u32 & 0xffff == word
        })
    }

    /// Writes a set into a piece that nobody reads yet.
    pub(in crate::index) fn write_set(&self, set: u32, seats: &SeatSet) {
        let length = seats.0.len() as u32;
        self.word(0, set).store(u64::from(length), Relaxed);
        for (index, &(_, bits)) in (set + 1..).zip(&seats.0) {
            self.word(0, index).store(bits, Relaxed);
        }
        for (index, four) in (set + 1 + length..).zip(seats.0.chunks(4)) {
            let numbers = four.iter().rev().fold(0, |packed, &(word, _)| packed << 16 | u64::from(word));
            self.word(0, index).store(numbers, Relaxed);
        }
    }

    /// Writes a list into a piece that nobody reads yet.
    pub(in crate::index) fn write_list(&self, list: u32, marks: &[Mark]) {
        self.word(0, list).store(marks.len() as u64, Relaxed);
        for (index, mark) in (list + 1..).zip(marks) {
            self.word(0, index).store(mark.0, Relaxed);
        }
    }

    /// Words of a piece, its size word included.
    pub(in crate::index) fn size_of_piece(&self, handle: u32) -> u32 {
        self.word(0, handle - 1).load(Relaxed) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_that_ends_a_chunk_is_read_whole() {
        let arena = Arena::<1>::new(1);
        arena.grow(0);
        for words in 1..100 {
            let set = SeatSet((0..words).map(|word| (word * 3, 1 << (word % 64))).collect());
            let handle = CHUNK - (set.footprint() - 1);
            arena.write_set(handle, &set);
            let mut read = SeatSet::default();
            arena.read_set(handle, &mut read);
            assert_eq!(read.0, set.0, "{words} words");
            assert!(set.seats().all(|seat| arena.set_has(handle, seat)), "{words} words");
        }
    }
}
