//! Blocks that nobody holds go.

use std::sync::atomic::Ordering::Relaxed;

use super::{Family, Marking, Place, Tree};
use crate::{
    event::EngineHash,
    index::raw::{GPU, Mark, NAME, NO_SEATS, Names, SeatSet, Who, halves},
};

/// How many names ahead of a chain's removal the entry, the run and the words of a block are asked for.
pub(in crate::index) const AHEAD: [usize; 3] = [24, 14, 7];

impl Tree {
    /// Gives up the tail of a run that nobody holds any more, and the run itself if nothing is left, and so on for its
    /// ancestors.
    pub(super) fn shrink(&mut self, run: u32) {
        self.shrink_by(run, u32::MAX);
    }

    /// As [`Self::shrink`], but gives up no more than `most` blocks; the run in which more are to go, which may be an
    /// ancestor.
    pub(super) fn shrink_by(&mut self, mut run: u32, mut most: u32) -> Option<u32> {
        loop {
            let marking = self.marking(run);
            if !Self::is_nowhere_whole(&marking) {
                return None;
            }
            let length = self.length(run);
            let [on_gpu, slower] = [GPU, GPU + 1].map(|list| self.last_ends(&marking, list));
            let held = on_gpu.into_iter().chain(slower).max().unwrap_or(0);
            let needed = if held < length { held.max(self.floor(run, held)) } else { held };
            if needed < length {
                let left = needed.max(length.saturating_sub(most));
                most -= length - left;
                let held_to_the_end = left > 0 && on_gpu[0] == left;
                self.cut(run, left, held_to_the_end.then_some(marking));
                if left > needed {
                    return Some(run);
                }
            }
            if needed > 0 {
                return None;
            }
            match self.remove_run(run) {
                0 => return None,
                parent => run = parent,
            }
        }
    }

    /// Shortens a run to `left` blocks. A `marking` says that nobody holds the whole run and somebody all that is left: those
    /// hold the whole run from now on.
    pub(super) fn cut(&mut self, run: u32, left: u32, marking: Option<Marking>) {
        let (start, length) = self.shared.runs.get(run).extent();
        for offset in left..length {
            let place = Place { run, offset };
            if self.unmapped.is_empty() || self.unmapped.remove(&place).is_none() {
                self.names.remove(self.shared.name(run, offset), run, offset);
            }
        }
        self.places -= u64::from(length - left);
        let array = u64::from(start) << 32 | u64::from(left);
        match marking {
            Some(mut marking) => {
                self.promote(&mut marking, left);
                self.publish(run, &marking, Some(array));
            }
            None => self.shared.runs.get(run).change(|run| run.array.store(array, Relaxed)),
        }
    }

    /// Shortens a run by its last `count` blocks, which only those hold who hold the whole run. `names` may say what is
    /// looked up next: theirs, from the last one on, and others.
    #[inline(always)]
    pub(super) fn cut_last(&mut self, run: u32, count: usize, names: &[EngineHash]) {
        let (start, length) = self.shared.runs.get(run).extent();
        let left = length - count as u32;
        for (at, offset) in (left..length).rev().enumerate() {
            if at > 0 {
                self.ask_behind_chain(at, count, names);
            }
            let place = Place { run, offset };
            if !self.has_unmapped() || self.unmapped.remove(&place).is_none() {
                let name = self.shared.blocks.word(NAME, start + offset).load(Relaxed);
                self.names.remove(name, run, offset);
            }
        }
        self.places -= count as u64;
        let array = u64::from(start) << 32 | u64::from(left);
        self.shared.runs.get(run).change(|run| run.array.store(array, Relaxed));
    }

    /// While the first `count` of some names, of one run, are dealt with: asks for what later ones need.
    #[inline(always)]
    fn ask_behind_chain(&self, at: usize, count: usize, names: &[EngineHash]) {
        if let Some(name) = names.get(at + AHEAD[0]) {
            self.ask_for_entry(name.0);
        }
        if let Some(name) = names.get(count) {
            if at == count.saturating_sub(AHEAD[1]).max(1) {
                self.ask_for_run_of(name.0);
            }
            if at == count.saturating_sub(AHEAD[2]).max(2) {
                self.ask_for_block_of(name.0);
            }
        }
    }

    /// Marks on the first `length` blocks become marks on the whole run.
    fn promote(&mut self, marking: &mut Marking, length: u32) {
        let (all, marks): (Vec<Mark>, Vec<Mark>) =
            self.marks_of(marking, GPU).partition(|mark| mark.start() == 0 && mark.end() == length);
        self.set_list(marking, GPU, &marks);
        let mut seats = SeatSet::default();
        // Marks that are alike are one.
        for mark in all {
            self.shared.marks.read_who(mark.who(), &mut seats);
            if let Who::Set(set) = mark.who() {
                Self::drop_piece(marking, set);
            }
        }
        self.set_whole(marking, &seats);
    }

    /// The offset behind which no child hangs; exact if it matters, which it does from `held` on.
    fn floor(&mut self, run: u32, held: u32) -> u32 {
        let family = self.families[run as usize];
        if family.first_child == 0 {
            return 0;
        }
        if family.floor & Family::LOOSE == 0 || family.floor() <= held {
            return family.floor();
        }
        let (mut child, mut floor) = (family.first_child, 0);
        while child != 0 {
            floor = floor.max(self.offset_in_parent(child));
            child = self.families[child as usize].next;
        }
        self.families[run as usize].floor = floor;
        floor
    }

    fn offset_in_parent(&self, run: u32) -> u32 {
        halves(self.shared.runs.get(run).link.load(Relaxed)).1
    }

    /// Frees an empty run without children; its parent's number.
    fn remove_run(&mut self, run: u32) -> u32 {
        let header = self.shared.runs.get(run);
        let (parent, offset) = halves(header.link.load(Relaxed));
        let hash = self.shared.hash_of(run);
        self.children.remove(&self.shared.children, hash, run);
        let (start, capacity) = (header.extent().0, header.capacity());
        header.change(|header| {
            header.link.store(u64::MAX, Relaxed);
            header.array.store(0, Relaxed);
            header.whole.store(NO_SEATS, Relaxed);
        });
        self.blocks.give(&self.shared.blocks, start, capacity);
        self.leave_family(run, parent, offset);
        self.families.give_back(run);
        parent
    }

    fn leave_family(&mut self, run: u32, parent: u32, offset: u32) {
        if parent == 0 {
            return;
        }
        if offset == self.families[parent as usize].floor() {
            self.families[parent as usize].floor |= Family::LOOSE;
        }
        let Family { next, previous, .. } = self.families[run as usize];
        match previous {
            0 => self.families[parent as usize].first_child = next,
            previous => self.families[previous as usize].next = next,
        }
        if next != 0 {
            self.families[next as usize].previous = previous;
        }
    }
}
