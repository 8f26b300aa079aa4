//! What slower tiers add to a lookup.

use std::sync::atomic::Ordering::Relaxed;

use super::{
    marks::{GPU, Mark},
    seat_table::NO_SEAT,
    shared::Shared,
    walk::{Path, Step},
};
use crate::{
    event::Tier,
    index::{Extension, overlap::Answer},
    slot::Slot,
};

impl Shared {
    /// What slower tiers add: to slots with a GPU overlap, and to those that hold the first block in a slower tier only.
    pub(super) fn extend(&self, path: &mut Path, answer: &mut Answer) {
        let first_level = answer.first_level;
        let Answer { levels, slots, extensions, .. } = answer;
        let mut seen = 0;
        for level in &levels[first_level..] {
            for &slot in &slots[level.slots()] {
                self.extend_slot(path, slot, level.depth, extensions);
                seen += 1;
            }
        }
        let Some(&first) = path.steps.first() else { return };
        let list = self.runs.get(first.run).slower.load(Relaxed) as u32;
        let on_gpu = seen > 0;
        for tier in [Tier::Host, Tier::Disk, Tier::External] {
            let begins = |mark: &Mark| mark.tier() == tier.index() && mark.start() == 0 && mark.end() > 0;
            for mark in self.marks.marks(list).filter(begins) {
                path.group.0.clear();
                self.marks.read_who(mark.who(), &mut path.group);
                for seat in path.group.seats() {
                    if !self.seats[tier.index()].is_live(seat) {
                        continue;
                    }
                    let slot = self.seats[tier.index()].tenant(seat);
                    // A slot is taken up at the fastest tier in which it holds the first block, so that it is taken up once.
                    let faster = (0..tier.index()).any(|faster| match faster {
                        GPU => on_gpu && self.holds_first_on_gpu(first, slot),
                        faster => self.reach(&path.steps, faster, slot, 0) > 0,
                    });
                    if !faster {
                        self.extend_slot(path, slot, 0, extensions);
                    }
                }
            }
        }
    }

    fn holds_first_on_gpu(&self, first: Step, slot: Slot) -> bool {
        let seat = self.seats[GPU].seat_of(self.number(slot));
        seat != NO_SEAT && self.holds(first.run, GPU, seat, 0)
    }

    fn extend_slot(&self, path: &Path, slot: Slot, from: u32, extensions: &mut Vec<Extension>) {
        let mut depth = from;
        for tier in [Tier::Host, Tier::Disk, Tier::External] {
            let blocks = self.reach(&path.steps, tier.index(), slot, depth);
            if blocks > 0 {
                extensions.push(Extension { slot, tier, blocks });
                depth += blocks;
            }
        }
    }

    /// How many consecutive blocks of the prompt, from position `from` on, a slot holds in a slower tier.
    fn reach(&self, steps: &[Step], tier: usize, slot: Slot, from: u32) -> u32 {
        let seat = self.seats[tier].seat_of(self.number(slot));
        if seat == NO_SEAT {
            return 0;
        }
        let mut position = from;
        let first = steps.partition_point(|step| step.position + step.matched <= from);
        for step in &steps[first..] {
            let list = self.runs.get(step.run).slower.load(Relaxed) as u32;
            let offset = position - step.position;
            let end = self.end_of(list, tier, seat, offset).min(step.matched);
            position += end.saturating_sub(offset);
            if end < step.matched {
                break;
            }
        }
        position - from
    }
}
