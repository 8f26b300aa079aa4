//! How often a block is held.

use crate::event::Tier;

/// How often a block lies in each tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::index) struct Copies([u32; 4]);

impl From<[u32; 4]> for Copies {
    fn from(copies: [u32; 4]) -> Self {
        Self(copies)
    }
}

impl From<Copies> for [u32; 4] {
    fn from(copies: Copies) -> Self {
        copies.0
    }
}

impl Copies {
    pub(in crate::index) fn one(tier: Tier) -> Self {
        let mut copies = Self::default();
        copies.0[tier.index()] = 1;
        copies
    }

    pub(in crate::index) fn of(&self, tier: Tier) -> u32 {
        self.0[tier.index()]
    }

    pub(in crate::index) fn set(&mut self, tier: Tier, copies: u32) {
        self.0[tier.index()] = copies;
    }

    pub(in crate::index) fn add(&mut self, other: Self) {
        for (mine, more) in self.0.iter_mut().zip(other.0) {
            *mine = mine.saturating_add(more);
        }
    }

    /// Tiers with at least one copy.
    pub(in crate::index) fn tiers(self) -> impl Iterator<Item = Tier> {
        Tier::ALL.into_iter().filter(move |&tier| self.of(tier) > 0)
    }

    pub(in crate::index) fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }
}
