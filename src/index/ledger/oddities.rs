//! What is out of the ordinary about a slot's blocks; nearly always nothing.

use smallvec::SmallVec;

use super::holder::Block;
use crate::{
    event::{EngineHash, Tier},
    index::{copies::Copies, split_map::SplitMap, tree::Place},
};

/// A slot's odd names, and its copies beyond the first. Boxed, so that a slot without any takes one line of memory.
#[derive(Default)]
pub(super) struct Oddities(Option<Box<Tables>>);

#[derive(Default)]
struct Tables {
    /// Blocks under odd names.
    odd: SplitMap<EngineHash, Block>,
    /// The names of each block that has odd ones.
    names: SplitMap<Place, SmallVec<[EngineHash; 2]>>,
    /// Copies beyond the first of regular blocks, by tier.
    spare: SplitMap<(Place, Tier), u32>,
}

impl Oddities {
    /// About how much memory they take.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = |tables: &Tables| tables.odd.bytes() + tables.names.bytes() + tables.spare.bytes();
        self.0.as_deref().map_or(0, bytes) as u64
    }

    /// Whether there are none.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether no block has an odd name.
    #[inline(always)]
    pub(super) fn has_no_names(&self) -> bool {
        self.0.as_ref().is_none_or(|tables| tables.odd.is_empty())
    }

    /// The block of an odd name.
    #[inline(always)]
    pub(super) fn block(&self, name: EngineHash) -> Option<Block> {
        self.0.as_ref()?.odd.get(&name).copied()
    }

    /// The names of a block, if they are odd.
    #[inline(always)]
    pub(super) fn names(&self, place: Place) -> &[EngineHash] {
        self.0.as_ref().and_then(|tables| tables.names.get(&place)).map_or(&[], SmallVec::as_slice)
    }

    pub(super) fn insert(&mut self, name: EngineHash, block: Block) {
        let tables = self.0.get_or_insert_default();
        tables.odd.insert(name, block);
        tables.names.get_or_default(block.place).push(name);
    }

    /// Changes the copies of an odd name's block; `false` if the name is not odd.
    pub(super) fn set(&mut self, name: EngineHash, copies: Copies) -> bool {
        let block = self.0.as_mut().and_then(|tables| tables.odd.get_mut(&name));
        block.is_some_and(|block| {
            block.copies = copies;
            true
        })
    }

    /// Takes an odd name out; `false` if it is not odd.
    pub(super) fn remove(&mut self, name: EngineHash) -> bool {
        let Some(tables) = &mut self.0 else { return false };
        let Some(block) = tables.odd.remove(&name) else { return false };
        if let Some(names) = tables.names.get_mut(&block.place) {
            names.retain(|other| *other != name);
            if names.is_empty() {
                tables.names.remove(&block.place);
            }
        }
        self.drop_if_empty();
        true
    }

    /// Copies of a regular block beyond the first.
    #[inline(always)]
    pub(super) fn spare(&self, place: Place, tier: Tier) -> u32 {
        self.0.as_ref().and_then(|tables| tables.spare.get(&(place, tier)).copied()).unwrap_or(0)
    }

    #[inline(always)]
    pub(super) fn set_spare(&mut self, place: Place, tier: Tier, copies: u32) {
        if copies > 0 {
            self.0.get_or_insert_default().spare.insert((place, tier), copies);
        } else if let Some(tables) = &mut self.0 {
            tables.spare.remove(&(place, tier));
            self.drop_if_empty();
        }
    }

    /// Takes all copies in one tier away; the odd names that are left without any.
    pub(super) fn clear(&mut self, tier: Tier) -> Vec<(EngineHash, Block)> {
        let Some(tables) = &mut self.0 else { return Vec::new() };
        tables.spare.retain(|&(_, of), _| of != tier);
        let mut gone = Vec::new();
        for (&name, block) in tables.odd.iter_mut() {
            block.copies.set(tier, 0);
            if block.copies.is_empty() {
                gone.push((name, *block));
            }
        }
        gone
    }

    /// All odd names; nothing is left.
    pub(super) fn take(&mut self) -> Option<SplitMap<EngineHash, Block>> {
        self.0.take().map(|tables| tables.odd)
    }

    fn drop_if_empty(&mut self) {
        let is_empty = |tables: &Tables| tables.odd.is_empty() && tables.spare.is_empty();
        if self.0.as_deref().is_some_and(is_empty) {
            self.0 = None;
        }
    }
}
