//! Which seats of a tier nobody has.

use crate::index::raw::SEATS;

/// Seats that are taken, a bit each.
#[derive(Default)]
pub(super) struct FreeSeats {
    taken: Vec<u64>,
    count: u32,
}

impl FreeSeats {
    pub(super) fn is_full(&self) -> bool {
        self.count == SEATS
    }

    /// A free seat: the slot's own number if it is, so that answers can be written without looking each tenant up; otherwise
    /// one from the top, where it is nobody's first choice for long.
    pub(super) fn take(&mut self, number: u32) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        if !self.is_taken(number) {
            self.mark(number);
            return Some(number);
        }
        let mut words = (0..=SEATS / 64).rev().map(|word| (word, self.of_word(word)));
        let (word, bits) = words.find(|&(_, bits)| bits != 0)?;
        let seat = word * 64 + 63 - bits.leading_zeros();
        self.mark(seat);
        Some(seat)
    }

    pub(super) fn give_back(&mut self, seats: impl Iterator<Item = u32>) {
        for seat in seats {
            self.taken[seat as usize / 64] &= !(1 << (seat % 64));
            self.count -= 1;
        }
    }

    /// Which of 64 seats are free. The last one of all is no seat.
    fn of_word(&self, word: u32) -> u64 {
        let free = !self.taken.get(word as usize).copied().unwrap_or(0);
        if word == SEATS / 64 { free & ((1 << (SEATS % 64)) - 1) } else { free }
    }

    fn is_taken(&self, seat: u32) -> bool {
        self.taken.get(seat as usize / 64).is_some_and(|word| word >> (seat % 64) & 1 == 1)
    }

    fn mark(&mut self, seat: u32) {
        let word = seat as usize / 64;
        if self.taken.len() <= word {
            self.taken.resize(word + 1, 0);
        }
        self.taken[word] |= 1 << (seat % 64);
        self.count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seat_is_given_once_and_can_come_back() {
        let mut seats = FreeSeats::default();
        assert_eq!((seats.take(7), seats.take(7)), (Some(7), Some(SEATS - 1)));
        let mut given: Vec<u32> = (2..SEATS).map(|_| seats.take(3).unwrap()).collect();
        given.extend([7, SEATS - 1]);
        given.sort_unstable();
        assert!(given.iter().copied().eq(0..SEATS));
        assert!(seats.is_full());
        assert_eq!(seats.take(3), None);
        seats.give_back([9, 12].into_iter());
        assert_eq!((seats.take(12), seats.take(12)), (Some(12), Some(9)));
    }
}
