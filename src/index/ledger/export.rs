//! What one slot holds, read a step at a time while other slots go on.
//!
//! Others' events may change runs meanwhile, but not where the slot's blocks are, under which names, or how often: places stay
//! while they are held. The one thing that can come over it from outside is that a block of it that waited gets its place. Those
//! that wait when the export begins are exported as such, and passed over later.

use std::fmt;

use ahash::{AHashMap, AHashSet};
use smallvec::SmallVec;

use super::Ledger;
use crate::{
    event::EngineHash,
    hash::BlockHash,
    index::{
        copies::Copies,
        snapshot::{Held, Parent, Part, STRETCH_BLOCKS, Stretch, Waits},
        tree::Place,
    },
    slot::Slot,
};

/// Runs whose marks one step looks at, for each block that it may write.
const RUNS_A_BLOCK: usize = 4;

/// How far an export has got.
pub struct Export {
    pub(in crate::index) slot: Slot,
    number: u32,
    waits: std::vec::IntoIter<Waits>,
    /// The names of those.
    waiting: AHashSet<EngineHash>,
    /// The run to look at next, and the one to end before.
    at: u32,
    end: u32,
    /// How many blocks of each run lie on the way to what the slot holds, or are that.
    needed: AHashMap<u32, u32>,
    /// Runs that are still to be written, in any order; made once all have been looked at.
    left: Option<std::vec::IntoIter<u32>>,
    /// The run in hand comes last: it is above those before it.
    path: Vec<u32>,
    /// How much of the run in hand is written.
    written: u32,
    /// The first stretch of each run.
    stretches: AHashMap<u32, u32>,
    next_stretch: u32,
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Export").field("slot", &self.slot).finish_non_exhaustive()
    }
}

impl Ledger {
    pub(in crate::index) fn export(&self, slot: Slot) -> Export {
        let number = self.tree.shared.number(slot);
        let is_known = self.holder_is(number, slot);
        let names = if is_known { self.pending.names_of(slot) } else { Vec::new() };
        let waits: Vec<Waits> = names
            .into_iter()
            .filter_map(|name| {
                let waiting = self.pending.get(slot, name)?;
                Some(Waits { name, below: waiting.below, copies: waiting.copies.into() })
            })
            .collect();
        Export {
            slot,
            number,
            waiting: waits.iter().map(|waits| waits.name).collect(),
            waits: waits.into_iter(),
            at: 1,
            end: if is_known { self.tree.next_run() } else { 1 },
            needed: AHashMap::new(),
            left: None,
            path: Vec::new(),
            written: 0,
            stretches: AHashMap::new(),
            next_stretch: 0,
        }
    }

    /// Writes about `blocks` blocks; whether there are more.
    pub(in crate::index) fn export_some(
        &self,
        export: &mut Export,
        blocks: usize,
        out: &mut dyn FnMut(Part),
    ) -> bool {
        if !self.holder_is(export.number, export.slot) {
            return false;
        }
        let mut work = blocks;
        while work > 0 {
            let done = if export.at < export.end {
                self.look(export, work * RUNS_A_BLOCK).div_ceil(RUNS_A_BLOCK)
            } else if let Some(run) = self.next_run_to_write(export) {
                let stretch = self.stretch(export, run);
                let done = stretch.contents.len();
                out(Part::Stretch(stretch));
                done
            } else if let Some(waits) = export.waits.next() {
                out(Part::Waits(waits));
                1
            } else {
                return false;
            };
            work = work.saturating_sub(done.max(1));
        }
        true
    }

    fn holder_is(&self, number: u32, slot: Slot) -> bool {
        self.holders.get(number as usize).is_some_and(|holder| holder.is_current(slot))
    }

    /// Looks at the marks of up to `most` runs; how many it was.
    fn look(&self, export: &mut Export, most: usize) -> usize {
        let seats = self.holders[export.number as usize].seats;
        let end = export.end.min(export.at.saturating_add(u32::try_from(most).unwrap_or(u32::MAX)));
        let mut looked = 0;
        for run in export.at..end {
            let (held, marks) = self.tree.held_by(run, &seats);
            looked += 1 + marks;
            export.at = run + 1;
            if held > 0 {
                self.need(export, run, held);
            }
            // A run may have thousands of marks.
            if looked >= most {
                break;
            }
        }
        looked
    }

    /// The first `blocks` blocks of a run are needed, and all that they hang behind.
    fn need(&self, export: &mut Export, mut run: u32, mut blocks: u32) {
        loop {
            let known = export.needed.get(&run).copied();
            if known.is_none_or(|known| known < blocks) {
                export.needed.insert(run, blocks);
            }
            let (parent, offset) = self.tree.above(run);
            // Whatever is above a run is needed as far as that hangs there since the run is.
            if known.is_some() || parent == 0 {
                return;
            }
            (run, blocks) = (parent, offset);
        }
    }

    /// The run of which the next stretch is: all that it hangs behind is written.
    fn next_run_to_write(&self, export: &mut Export) -> Option<u32> {
        let left = export.left.get_or_insert_with(|| {
            let runs: Vec<u32> = export.needed.keys().copied().collect();
            runs.into_iter()
        });
        while export.path.is_empty() {
            let run = left.next()?;
            if !export.stretches.contains_key(&run) {
                export.path.push(run);
            }
        }
        loop {
            let run = *export.path.last()?;
            let (parent, _) = self.tree.above(run);
            if parent == 0 || export.stretches.contains_key(&parent) {
                return Some(run);
            }
            export.path.push(parent);
        }
    }

    /// The next stretch of a run.
    fn stretch(&self, export: &mut Export, run: u32) -> Stretch {
        let needed = export.needed.get(&run).copied().unwrap_or(0);
        let start = export.written;
        let end = needed.min(start + STRETCH_BLOCKS as u32);
        let (above, at) = match start {
            0 => self.tree.above(run),
            _ => (run, start),
        };
        let parent = match above {
            0 => Parent::Start,
            _ => self.parent(export, Place { run: above, offset: at - 1 }),
        };
        if start == 0 {
            export.stretches.insert(run, export.next_stretch);
        }
        export.next_stretch += 1;
        export.written = end;
        if end >= needed {
            export.path.pop();
            export.written = 0;
        }
        let mut held = Vec::with_capacity((end - start) as usize);
        for offset in start..end {
            let names = self.names_at(export, Place { run, offset });
            held.extend(names.into_iter().map(|(name, copies)| Held {
                offset: offset - start,
                name,
                copies: copies.into(),
            }));
        }
        let contents = (start..end).map(|offset| BlockHash(self.tree.content(Place { run, offset })));
        Stretch { parent, contents: contents.collect(), held }
    }

    fn parent(&self, export: &Export, place: Place) -> Parent {
        if let Some(&(name, _)) = self.names_at(export, place).first() {
            return Parent::Named(name);
        }
        let first = export.stretches.get(&place.run).copied().unwrap_or(0);
        let length = STRETCH_BLOCKS as u32;
        Parent::Unheld { stretch: first + place.offset / length, offset: place.offset % length }
    }

    /// What the slot calls a block, and its copies under each name.
    fn names_at(&self, export: &Export, place: Place) -> SmallVec<[(EngineHash, Copies); 1]> {
        let oddities = &self.holders[export.number as usize].oddities;
        let odd = oddities.names(place);
        let regular = odd
            .is_empty()
            .then(|| (EngineHash(self.tree.name(place)), self.regular_copies(export.number, place)));
        let odd = odd.iter().filter_map(|&name| Some((name, oddities.block(name)?.copies)));
        let own = regular.into_iter().chain(odd);
        own.filter(|(name, copies)| !copies.is_empty() && !export.waiting.contains(name)).collect()
    }
}
