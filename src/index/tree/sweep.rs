//! Marks of seats that were left are swept out of the runs, a little at a time.

use super::{Marking, Tree};
use crate::index::raw::{GPU, Mark, SeatSet, Who};

/// Blocks that one step gives up at most: their names are taken out of the name table one by one.
const BLOCKS: u32 = 256;

/// Which seats are being swept out, and how far that is.
#[derive(Default)]
pub(in crate::index) struct Sweep {
    /// Seats that the current pass looks for, by tier.
    going: [SeatSet; 4],
    /// Seats left since it began: the next pass's.
    next: [SeatSet; 4],
    /// The run to look at, and the one to end before; both 0 between passes.
    at: u32,
    end: u32,
    /// A run of whose tail only a part was given up; 0 if there is none.
    rest: u32,
}

impl Sweep {
    /// Adds a seat that was left.
    pub(in crate::index) fn add(&mut self, tier: usize, seat: u32) {
        self.next[tier].add_seat(seat);
    }

    /// Whether there is nothing to do.
    pub(in crate::index) fn is_done(&self) -> bool {
        self.at == self.end && self.rest == 0 && self.next.iter().all(|seats| seats.0.is_empty())
    }
}

impl Tree {
    /// Sweeps about `runs` runs; yields the seats of each tier that are free now, when a pass ends.
    pub(in crate::index) fn sweep(&mut self, sweep: &mut Sweep, runs: u32) -> Option<[SeatSet; 4]> {
        if sweep.is_done() {
            return None;
        }
        if sweep.at == sweep.end && sweep.rest == 0 {
            sweep.going = std::mem::take(&mut sweep.next);
            (sweep.at, sweep.end) = (1, self.next_run);
        }
        for _ in 0..runs {
            if sweep.at == sweep.end && sweep.rest == 0 {
                break;
            }
            let run = if sweep.rest == 0 { sweep.at } else { sweep.rest };
            let rest = self.sweep_run(run, &sweep.going);
            if sweep.rest == 0 {
                sweep.at += 1;
            }
            sweep.rest = rest;
            if rest != 0 {
                return None;
            }
        }
        (sweep.at == sweep.end && sweep.rest == 0).then(|| std::mem::take(&mut sweep.going))
    }

    /// The run to go on with: itself, an ancestor, or 0 if it is through.
    fn sweep_run(&mut self, run: u32, going: &[SeatSet; 4]) -> u32 {
        if self.length(run) == 0 {
            return 0;
        }
        let mut marking = self.marking(run);
        if self.unmark_all(&mut marking, going) {
            self.publish(run, &marking, None);
        }
        self.shrink_by(run, BLOCKS).unwrap_or(0)
    }

    /// Takes seats out of all marks; whether there were any.
    fn unmark_all(&mut self, marking: &mut Marking, going: &[SeatSet; 4]) -> bool {
        let mut whole = self.whole_seats(marking);
        let before = whole.len();
        going[GPU].0.iter().for_each(|&(word, bits)| whole.take(word, bits));
        let mut changed = whole.len() < before;
        if changed {
            whole.0.retain(|&(_, bits)| bits != 0);
            self.set_whole(marking, &whole);
        }
        if !Self::has_marks(marking) {
            return changed;
        }
        for list in [GPU, GPU + 1] {
            let marks: Vec<Mark> = self.marks_of(marking, list).collect();
            let left: Vec<Mark> =
                marks.iter().filter_map(|&mark| self.without(marking, mark, going)).collect();
            if left != marks {
                self.set_list(marking, list, &left);
                changed = true;
            }
        }
        changed
    }

    /// A mark without the seats that go, if any stay.
    fn without(&mut self, marking: &mut Marking, mark: Mark, going: &[SeatSet; 4]) -> Option<Mark> {
        let going = &going[mark.tier()];
        let set = match mark.who() {
            Who::Seat(seat) => return (!going.has(seat)).then_some(mark),
            Who::Set(set) => set,
        };
        let mut seats = SeatSet::default();
        self.shared.marks.read_set(set, &mut seats);
        let before = seats.len();
        going.0.iter().for_each(|&(word, bits)| seats.take(word, bits));
        if seats.len() == before {
            return Some(mark);
        }
        seats.0.retain(|&(_, bits)| bits != 0);
        Self::drop_piece(marking, set);
        let who = self.who_of(&seats)?;
        Some(Mark::new(mark.tier(), mark.interval(), who))
    }
}
