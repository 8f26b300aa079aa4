//! Operations, one after another, as they might come from engines that err.

use proptest::prelude::*;

use crate::model::Path;

/// How engines name their blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Naming {
    /// Every slot gives a block the same name.
    Shared,
    /// Every slot has its own.
    Own,
    /// Few names for everything: they collide and move.
    Few,
}

impl Naming {
    pub(crate) fn name(self, slot: u32, path: &[u64]) -> u64 {
        let start = if matches!(self, Self::Own) { 1 + u64::from(slot) } else { 0 };
        let name = path.iter().fold(start, |name, content| {
            (name ^ content.wrapping_add(0x5851)).wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(23)
        });
        if matches!(self, Self::Few) { name % 11 } else { name }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Store {
        slot: u32,
        speaks_as: u32,
        tier: usize,
        from: Path,
        blocks: Vec<(u64, bool)>,
        odd_names: bool,
    },
    /// Held or waiting blocks of the slot, counted from the deepest.
    Remove {
        slot: u32,
        tier: usize,
        picks: Vec<usize>,
        remaining: Option<Vec<u32>>,
    },
    RemoveNamed {
        slot: u32,
        speaks_as: u32,
        tier: usize,
        path: Path,
    },
    Clear {
        slot: u32,
        tier: Option<usize>,
    },
    Retire {
        slot: u32,
    },
    NewGeneration {
        slot: u32,
    },
    StaleStore {
        slot: u32,
    },
}

pub(crate) const SLOTS: u32 = 5;
/// Sparse and descending, so that slots are met in another order than that of their indices.
pub(crate) const INDICES: [u32; SLOTS as usize] = [60_000, 13, 8, 3, 0];

pub(crate) fn content() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(0_u64), 2 => Just(1), 1 => Just(2)]
}

pub(crate) fn path(len: std::ops::Range<usize>) -> impl Strategy<Value = Path> {
    prop::collection::vec(content(), len)
}

pub(crate) fn tier() -> impl Strategy<Value = usize> {
    prop_oneof![5 => Just(0_usize), 2 => Just(1), 1 => Just(2), 1 => Just(3)]
}

/// Mostly the slot's own voice, now and then that of another.
pub(crate) fn speakers() -> impl Strategy<Value = (u32, u32)> {
    (0..SLOTS, 0..SLOTS, prop::bool::weighted(0.15))
        .prop_map(|(slot, other, foreign)| (slot, if foreign { other } else { slot }))
}

pub(crate) fn op() -> impl Strategy<Value = Op> {
    let block = (content(), prop::bool::weighted(0.85));
    let store =
        (speakers(), tier(), path(0..4), prop::collection::vec(block, 0..5), prop::bool::weighted(0.1));
    let remaining = prop::option::weighted(0.2, prop::collection::vec(0_u32..3, 0..3));
    prop_oneof![
        12 => store.prop_map(|((slot, speaks_as), tier, from, blocks, odd_names)| {
            Op::Store { slot, speaks_as, tier, from, blocks, odd_names }
        }),
        6 => (0..SLOTS, tier(), prop::collection::vec(0_usize..6, 0..4), remaining)
            .prop_map(|(slot, tier, picks, remaining)| Op::Remove { slot, tier, picks, remaining }),
        2 => (speakers(), tier(), path(1..5)).prop_map(|((slot, speaks_as), tier, path)| {
            Op::RemoveNamed { slot, speaks_as, tier, path }
        }),
        1 => (0..SLOTS, prop::option::of(tier())).prop_map(|(slot, tier)| Op::Clear { slot, tier }),
        1 => (0..SLOTS).prop_map(|slot| Op::Retire { slot }),
        1 => (0..SLOTS).prop_map(|slot| Op::NewGeneration { slot }),
        1 => (0..SLOTS).prop_map(|slot| Op::StaleStore { slot }),
    ]
}
pub(crate) fn history() -> impl Strategy<Value = Vec<(Op, [Path; 3])>> {
    let prompts = [path(0..8), path(0..8), path(0..8)];
    prop::collection::vec((op(), prompts), 1..80)
}
