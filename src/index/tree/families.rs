//! Each run's place among runs; the writer's own.

use std::ops::{Index, IndexMut};

/// Families in a piece. Pieces never move: moving millions of families at once would hold up the writer.
const PIECE: usize = 1 << 10;

#[derive(Clone, Copy, Default)]
pub(super) struct Family {
    pub(super) first_child: u32,
    /// Siblings, in no order. Of a run that is free, `next` is the next free one.
    pub(super) next: u32,
    pub(super) previous: u32,
    /// No child hangs behind this offset. With [`Family::LOOSE`]: perhaps none hangs at it either, because one went.
    pub(super) floor: u32,
}

impl Family {
    pub(super) const LOOSE: u32 = 1 << 31;

    pub(super) fn floor(self) -> u32 {
        self.floor & !Self::LOOSE
    }
}

/// Families by the numbers of their runs, and which numbers are free. Number 0 is no run.
pub(super) struct Families {
    pieces: Vec<Box<[Family; PIECE]>>,
    first_free: u32,
    free: u32,
}

impl Families {
    pub(super) fn new() -> Self {
        Self { pieces: vec![Self::piece()], first_free: 0, free: 0 }
    }

    fn piece() -> Box<[Family; PIECE]> {
        Box::new([Family::default(); PIECE])
    }

    /// Makes room for the family of a run that is one more than there ever were.
    pub(super) fn add(&mut self, run: u32) {
        if run as usize / PIECE == self.pieces.len() {
            self.pieces.push(Self::piece());
        }
    }

    /// The number of a run that is no more.
    pub(super) fn take_free(&mut self) -> Option<u32> {
        let run = self.first_free;
        if run == 0 {
            return None;
        }
        self.first_free = self[run as usize].next;
        self.free -= 1;
        Some(run)
    }

    pub(super) fn give_back(&mut self, run: u32) {
        self[run as usize].next = self.first_free;
        self.first_free = run;
        self.free += 1;
    }

    /// How many numbers are free.
    pub(super) fn free(&self) -> u32 {
        self.free
    }
}

impl Index<usize> for Families {
    type Output = Family;

    #[inline(always)]
    fn index(&self, run: usize) -> &Family {
        &self.pieces[run / PIECE][run % PIECE]
    }
}

impl IndexMut<usize> for Families {
    #[inline(always)]
    fn index_mut(&mut self, run: usize) -> &mut Family {
        &mut self.pieces[run / PIECE][run % PIECE]
    }
}
