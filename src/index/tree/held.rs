//! Which blocks of which runs a slot holds, for whoever looks at all runs.

use std::sync::atomic::Ordering::Relaxed;

use super::Tree;
use crate::index::raw::{GPU, NO_SEAT, halves};

impl Tree {
    /// One more than the largest number that a run ever had.
    pub(in crate::index) fn next_run(&self) -> u32 {
        self.next_run
    }

    /// The run that a run hangs behind, 0 if it begins prompts, and behind how many blocks of it.
    pub(in crate::index) fn above(&self, run: u32) -> (u32, u32) {
        halves(self.shared.runs.get(run).link.load(Relaxed))
    }

    /// Up to where the slot with these seats, by tier, holds blocks of a run, and how many marks it took to tell.
    pub(in crate::index) fn held_by(&self, run: u32, seats: &[u32; 4]) -> (u32, usize) {
        let length = self.length(run);
        if length == 0 {
            return (0, 0);
        }
        if seats[GPU] != NO_SEAT && self.is_whole(run, seats[GPU]) {
            return (length, 0);
        }
        let marking = self.marking(run);
        let (mut held, mut looked) = (0, 0);
        for list in [GPU, GPU + 1] {
            for mark in self.marks_of(&marking, list) {
                looked += 1;
                let seat = seats[mark.tier()];
                if seat != NO_SEAT && mark.end() > held && self.shared.marks.who_has(mark.who(), seat) {
                    held = mark.end();
                }
            }
        }
        (held, looked)
    }
}
