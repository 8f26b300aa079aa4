//! What one slot holds, taken out of an index and put into another.
//!
//! [`IndexWriter::export`] begins, and [`IndexWriter::export_some`] goes on a bounded step at a time, between the events of other
//! slots. Between the first step and the last no event of the slot itself may be applied: then all parts are of one moment.
//! [`Import`] makes events of the parts, so that a rebuilt slot is what the same events from an engine would have made of it, with
//! its holes, its copies and its names, by which the engine's next events speak of the blocks.
//!
//! A slot's blocks come as [`Stretch`]es, parents before children. Places on the way to a block that the slot itself does not
//! hold are in them by their content alone.

use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Applied, IndexWriter, copies::Copies};
use crate::{
    event::{EngineHash, Event, Removed, Stored, StoredBlock, Tier},
    hash::BlockHash,
    slot::Slot,
};

/// The most blocks of a stretch.
pub const STRETCH_BLOCKS: usize = 512;

/// Consecutive blocks of a chain, [`STRETCH_BLOCKS`] at most.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// What the first one follows.
    pub parent: Parent,
    /// All of them.
    pub contents: Vec<BlockHash>,
    /// Those that the slot holds, by name; a block may have several.
    pub held: Vec<Held>,
}

/// What a stretch follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parent {
    /// The start of all prompts.
    Start,
    /// A block of the slot, by its name.
    Named(EngineHash),
    /// A block that the slot does not hold, by the stretch that has it, counted from 0, and its offset there.
    Unheld {
        /// Which stretch.
        stretch: u32,
        /// Which of its blocks.
        offset: u32,
    },
}

/// A block under one of its names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Which block of the stretch.
    pub offset: u32,
    /// What the slot calls it.
    pub name: EngineHash,
    /// Copies by tier, in order of [`Tier::ALL`].
    pub copies: [u32; 4],
}

/// A block that waits for its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waits {
    /// What the slot calls it.
    pub name: EngineHash,
    /// The parent's name and the block's content, where they were said.
    pub below: Option<(EngineHash, BlockHash)>,
    /// Copies by tier.
    pub copies: [u32; 4],
}

/// A part of what a slot holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    /// Blocks with their places.
    Stretch(Stretch),
    /// A block without one. The oldest comes first, and all come after the stretches.
    Waits(Waits),
}

impl Part {
    /// Its blocks, as a measure of the work that it is.
    #[must_use]
    pub fn blocks(&self) -> usize {
        match self {
            Self::Stretch(stretch) => stretch.contents.len(),
            Self::Waits(_) => 1,
        }
    }
}

/// Puts the parts of an export into an index, as what a slot holds that held nothing before.
///
/// Until [`Import::finish`] has said that it is through, the slot may hold more than was exported: nothing of it may be credited.
#[derive(Debug)]
pub struct Import {
    slot: Slot,
    /// Makes names for what the slot does not hold but its blocks hang behind. No engine chooses it.
    seed: u64,
    stretches: u32,
    /// Blocks under such names, which go at the end.
    unheld: Vec<EngineHash>,
}

impl Import {
    /// An import for a slot; `seed` is random.
    #[must_use]
    pub const fn new(slot: Slot, seed: u64) -> Self {
        Self { slot, seed, stretches: 0, unheld: Vec::new() }
    }

    /// Puts the next part in.
    ///
    /// # Panics
    /// As [`IndexWriter::apply`].
    pub fn put(&mut self, writer: &mut IndexWriter, part: &Part) -> Applied {
        let mut to = To { writer, slot: self.slot, applied: Applied::default() };
        match part {
            Part::Stretch(stretch) => self.put_stretch(&mut to, stretch),
            Part::Waits(waits) => put_waiting(&mut to, waits),
        }
        to.applied
    }

    /// Takes out, up to `most` blocks at a time, what was only needed to build the rest; whether there is more to do.
    ///
    /// # Panics
    /// As [`IndexWriter::apply`].
    pub fn finish(&mut self, writer: &mut IndexWriter, most: usize) -> bool {
        let left = self.unheld.len().saturating_sub(most);
        let hashes: SmallVec<_> = self.unheld.drain(left..).collect();
        if !hashes.is_empty() {
            writer.apply(
                self.slot,
                &Event::Removed(Removed { tier: Tier::Gpu, hashes, remaining_copies: None }),
            );
        }
        left > 0
    }

    fn put_stretch(&mut self, to: &mut To<'_>, stretch: &Stretch) {
        let number = self.stretches;
        self.stretches += 1;
        let mut names: Vec<Option<EngineHash>> = vec![None; stretch.contents.len()];
        let mut others: Vec<Held> = Vec::new();
        let mut first: Vec<Held> = Vec::new();
        for held in &stretch.held {
            let Some(name) = names.get_mut(held.offset as usize) else { continue };
            if held.copies == [0; 4] {
                continue;
            }
            if name.is_some() {
                others.push(*held);
            } else {
                *name = Some(held.name);
                first.push(*held);
            }
        }
        let above = match stretch.parent {
            Parent::Start => None,
            Parent::Named(name) => Some(name),
            Parent::Unheld { stretch, offset } => Some(self.unheld_name(stretch, offset)),
        };
        let names: Vec<EngineHash> = (0..)
            .zip(names)
            .map(|(offset, name)| {
                name.unwrap_or_else(|| {
                    let name = self.unheld_name(number, offset);
                    self.unheld.push(name);
                    name
                })
            })
            .collect();
        let block =
            |(&engine, &content): (&EngineHash, &BlockHash)| StoredBlock { engine, content: Some(content) };
        let blocks = names.iter().zip(&stretch.contents).map(block).collect();
        to.apply(&Event::Stored(Stored { tier: Tier::Gpu, parent: above, blocks }));
        for held in first {
            to.set_copies(held.name, held.copies);
        }
        for held in others {
            let offset = held.offset as usize;
            let parent = if offset == 0 { above } else { Some(names[offset - 1]) };
            let block = StoredBlock { engine: held.name, content: Some(stretch.contents[offset]) };
            let blocks = [block].into_iter().collect();
            to.apply(&Event::Stored(Stored { tier: Tier::Gpu, parent, blocks }));
            to.set_copies(held.name, held.copies);
        }
    }

    fn unheld_name(&self, stretch: u32, offset: u32) -> EngineHash {
        let place = u64::from(stretch) << 32 | u64::from(offset);
        EngineHash(xxh3_64_with_seed(&place.to_le_bytes(), self.seed))
    }
}

fn put_waiting(to: &mut To<'_>, waits: &Waits) {
    let mut copies = Copies::from(waits.copies);
    let Some(tier) = copies.tiers().next() else { return };
    let (parent, content) =
        waits.below.map_or((None, None), |(parent, content)| (Some(parent), Some(content)));
    let blocks = [StoredBlock { engine: waits.name, content }].into_iter().collect();
    to.apply(&Event::Stored(Stored { tier, parent, blocks }));
    if copies.of(tier) == 1 {
        copies.set(tier, 0);
    }
    for tier in copies.tiers() {
        to.set_tier(waits.name, tier, copies.of(tier));
    }
}

/// Where events go.
struct To<'a> {
    writer: &'a mut IndexWriter,
    slot: Slot,
    applied: Applied,
}

impl To<'_> {
    fn apply(&mut self, event: &Event) {
        self.applied += self.writer.apply(self.slot, event);
    }

    /// A block of which there is one copy, on the GPU, has these copies from now on.
    fn set_copies(&mut self, name: EngineHash, copies: [u32; 4]) {
        // The usual case.
        if copies == [1, 0, 0, 0] {
            return;
        }
        let copies = Copies::from(copies);
        for tier in copies.tiers().filter(|&tier| tier != Tier::Gpu) {
            self.set_tier(name, tier, copies.of(tier));
        }
        // Last: a block with no copy anywhere is gone.
        self.leave(name, Tier::Gpu, copies.of(Tier::Gpu));
    }

    /// A block that is known has so many copies in a tier, one at least.
    fn set_tier(&mut self, name: EngineHash, tier: Tier, copies: u32) {
        let blocks = [StoredBlock { engine: name, content: None }].into_iter().collect();
        self.apply(&Event::Stored(Stored { tier, parent: None, blocks }));
        self.leave(name, tier, copies);
    }

    fn leave(&mut self, name: EngineHash, tier: Tier, copies: u32) {
        if copies == 1 {
            return;
        }
        let hashes = [name].into_iter().collect();
        let remaining_copies = Some(vec![copies]);
        self.apply(&Event::Removed(Removed { tier, hashes, remaining_copies }));
    }
}
