//! The answer of a lookup: which slots hold how much of a prompt.
//!
//! The GPU part comes as *level sets*: a few depths, each with the slots that hold exactly that many leading
//! blocks. That is how the index finds them, and a fleet has far fewer depths than slots. What slower
//! tiers add beyond a slot's GPU depth comes as a short list of extensions.

use super::reference::PlaceId;
use crate::{event::Tier, slot::Slot};

/// How many leading blocks of a prompt one slot holds. The tiers add up: `host` counts blocks that follow
/// the `gpu` ones, `disk` those that follow the host's, and so on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Overlap {
    /// Leading blocks in GPU memory.
    pub gpu: u32,
    /// Blocks beyond those, in host memory.
    pub host: u32,
    /// Blocks beyond those, on disk.
    pub disk: u32,
    /// Blocks beyond those, in an external store.
    pub external: u32,
}

impl Overlap {
    /// Leading blocks held in any tier.
    #[must_use]
    pub const fn total(&self) -> u32 {
        self.gpu + self.host + self.disk + self.external
    }

    fn tier_mut(&mut self, tier: Tier) -> &mut u32 {
        match tier {
            Tier::Gpu => &mut self.gpu,
            Tier::Host => &mut self.host,
            Tier::Disk => &mut self.disk,
            Tier::External => &mut self.external,
        }
    }
}

/// The memory that lookups work in and answer into; one a thread, reused, so that a warm lookup
/// allocates nothing.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(super) levels: Vec<Level>,
    pub(super) slots: Vec<Slot>,
    pub(super) extensions: Vec<Extension>,
    /// Slots still matching while a lookup walks down; left empty between lookups.
    pub(super) alive: Vec<Slot>,
    /// The places of the prompt's blocks in the shard being read, as far as they exist.
    pub(super) path: Vec<PlaceId>,
}

impl Scratch {
    /// An empty scratch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    pub(super) fn clear(&mut self) {
        self.levels.clear();
        self.slots.clear();
        self.extensions.clear();
        self.alive.clear();
        self.path.clear();
    }

    /// Adds a level of the slots in `slots`; an empty one is left out.
    pub(super) fn push_level(&mut self, depth: u32, slots: impl IntoIterator<Item = Slot>) {
        let start = self.slots.len();
        self.slots.extend(slots);
        if self.slots.len() > start {
            self.levels.push(Level { depth, start, end: self.slots.len() });
        }
    }
}

/// Slots `start..end` of the scratch hold exactly `depth` leading blocks on their GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Level {
    pub(super) depth: u32,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// What one slower tier of one slot adds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extension {
    /// Whose tier.
    pub slot: Slot,
    /// Which tier; never [`Tier::Gpu`].
    pub tier: Tier,
    /// Consecutive blocks beyond those of all faster tiers; never 0.
    pub blocks: u32,
}

/// The result of [`PrefixIndex::overlap`](super::PrefixIndex::overlap), borrowed from the scratch.
///
/// Slots that hold nothing of the prompt do not appear.
#[derive(Clone, Copy, Debug)]
pub struct Overlaps<'a> {
    pub(super) scratch: &'a Scratch,
}

impl<'a> Overlaps<'a> {
    /// The GPU level sets: depths of at least 1 with the slots that hold exactly that many leading blocks.
    /// Each slot appears at most once; the depths come in no particular order.
    pub fn levels(&self) -> impl Iterator<Item = (u32, &'a [Slot])> + use<'a> {
        let scratch = self.scratch;
        scratch.levels.iter().map(|level| (level.depth, &scratch.slots[level.start..level.end]))
    }

    /// What slower tiers add, in order of tier for each slot. A slot may appear here without being in any
    /// level: it then holds nothing on its GPU.
    #[must_use]
    pub fn extensions(&self) -> &'a [Extension] {
        &self.scratch.extensions
    }

    /// Whether no slot holds anything of the prompt.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.scratch.levels.is_empty() && self.scratch.extensions.is_empty()
    }

    /// Writes every slot's overlap to `dense[slot.index]`, zeroing the rest. Slots beyond the end of
    /// `dense` are left out; generations are the caller's to compare (an index only answers with live ones).
    pub fn to_dense(&self, dense: &mut [Overlap]) {
        dense.fill(Overlap::default());
        for (depth, slots) in self.levels() {
            for slot in slots {
                if let Some(overlap) = dense.get_mut(slot.index as usize) {
                    overlap.gpu = depth;
                }
            }
        }
        for extension in self.extensions() {
            if let Some(overlap) = dense.get_mut(extension.slot.index as usize) {
                *overlap.tier_mut(extension.tier) = extension.blocks;
            }
        }
    }

    /// The overlap of one slot. Linear in the size of the answer: for many slots use [`Self::to_dense`].
    #[must_use]
    pub fn of(&self, slot: Slot) -> Overlap {
        let gpu = self.levels().find(|(_, slots)| slots.contains(&slot)).map_or(0, |(depth, _)| depth);
        let mut overlap = Overlap { gpu, ..Overlap::default() };
        for extension in self.extensions().iter().filter(|extension| extension.slot == slot) {
            *overlap.tier_mut(extension.tier) = extension.blocks;
        }
        overlap
    }
}
