//! The answer of a lookup: which slots hold how much of a prompt.
//!
//! The GPU part comes as *level sets*: a few depths, each with the slots that hold exactly that many leading
//! blocks. That is how the index finds them, and a fleet has far fewer depths than slots. What slower
//! tiers add beyond a slot's GPU depth comes as a short list of extensions.

use std::ops::Range;

use ahash::AHashMap;

use super::raw::Path;
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
    pub(super) answer: Answer,
    pub(super) path: Path,
}

impl Scratch {
    /// An empty scratch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How often a lookup into this scratch met a change and read again, ever.
    #[must_use]
    pub fn retries(&self) -> u64 {
        self.path.retries
    }
}

/// What a lookup found, shard by shard.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) levels: Vec<Level>,
    pub(super) slots: Vec<Slot>,
    pub(super) extensions: Vec<Extension>,
    /// Where the shard being read begins: what comes before is complete.
    pub(super) first_level: usize,
    pub(super) first_slot: usize,
    pub(super) first_extension: usize,
}

impl Answer {
    pub(super) fn clear(&mut self) {
        self.levels.clear();
        self.slots.clear();
        self.extensions.clear();
        self.begin_shard();
    }

    /// What is there is complete.
    pub(super) fn begin_shard(&mut self) {
        self.first_level = self.levels.len();
        self.first_slot = self.slots.len();
        self.first_extension = self.extensions.len();
    }

    /// Adds a level of the slots in `slots`; an empty one is left out.
    pub(super) fn push_level(&mut self, depth: u32, slots: impl IntoIterator<Item = Slot>) {
        let start = self.begin_level(depth);
        self.slots.extend(slots);
        if self.slots.len() > start as usize {
            self.end_level(depth, start);
        }
    }

    /// Where the slots of a level begin. Slots of the same depth go into one level if they come one after the other.
    #[inline(always)]
    pub(super) fn begin_level(&mut self, depth: u32) -> u32 {
        match self.levels.last() {
            Some(level) if level.depth == depth && self.levels.len() > self.first_level => level.start,
            _ => self.slots.len() as u32,
        }
    }

    /// Ends what [`Self::begin_level`] began, with the slots added since.
    #[inline(always)]
    pub(super) fn end_level(&mut self, depth: u32, start: u32) {
        let end = self.slots.len() as u32;
        let is_own = self.levels.len() > self.first_level;
        match self.levels.last_mut() {
            Some(level) if is_own && level.start == start => level.end = end,
            _ => self.levels.push(Level { depth, start, end }),
        }
    }
}

/// Slots `start..end` of the scratch hold exactly `depth` leading blocks on their GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Level {
    pub(super) depth: u32,
    pub(super) start: u32,
    pub(super) end: u32,
}

impl Level {
    pub(super) fn slots(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
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
    pub(super) answer: &'a Answer,
}

impl<'a> Overlaps<'a> {
    /// The GPU level sets: depths of at least 1 with the slots that hold exactly that many leading blocks.
    /// Each slot appears at most once; the depths come in no particular order.
    pub fn levels(&self) -> impl Iterator<Item = (u32, &'a [Slot])> + use<'a> {
        let answer = self.answer;
        answer.levels.iter().map(|level| (level.depth, &answer.slots[level.slots()]))
    }

    /// What slower tiers add, in order of tier for each slot. A slot may appear here without being in any
    /// level: it then holds nothing on its GPU.
    #[must_use]
    pub fn extensions(&self) -> &'a [Extension] {
        &self.answer.extensions
    }

    /// Whether no slot holds anything of the prompt.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.answer.levels.is_empty() && self.answer.extensions.is_empty()
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

    /// Adds every slot's overlap to `map`, which is cleared first.
    pub fn to_map(&self, map: &mut AHashMap<Slot, Overlap>) {
        map.clear();
        for (depth, slots) in self.levels() {
            map.extend(slots.iter().map(|&slot| (slot, Overlap { gpu: depth, ..Overlap::default() })));
        }
        for extension in self.extensions() {
            *map.entry(extension.slot).or_default().tier_mut(extension.tier) = extension.blocks;
        }
    }

    /// The `top.len()` slots with most blocks on their GPU, most first, or as many as there are; returns how many.
    /// Equal depths come in any order.
    pub fn top(&self, top: &mut [(Slot, u32)]) -> usize {
        let mut found = 0;
        for (depth, slots) in self.levels() {
            for &slot in slots {
                let at = top[..found].partition_point(|&(_, other)| other >= depth);
                if at == top.len() {
                    break;
                }
                found = (found + 1).min(top.len());
                top[at..found].rotate_right(1);
                top[at] = (slot, depth);
            }
        }
        found
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
