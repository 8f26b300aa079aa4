//! A lookup that has seen its like before allocates nothing.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod counting_allocator;

use std::num::NonZeroUsize;

use crate::counting_allocator::allocations;
use kvroute::{
    event::{EngineHash, Event, Removed, Stored, StoredBlock, Tier},
    hash::BlockHash,
    index::{PrefixIndex, Scratch},
    slot::Slot,
};

#[test]
fn a_warm_lookup_allocates_nothing() {
    let (index, mut writers) = PrefixIndex::new(NonZeroUsize::new(3).unwrap());
    let prompt: Vec<_> = (0..200).map(BlockHash).collect();
    let slots: Vec<_> = (0..64).map(|i| Slot { index: i * 1_021, generation: 0 }).collect();
    for (i, &slot) in slots.iter().enumerate() {
        let writer = &mut writers[slot.index as usize % 3];
        // Depths of all kinds, every second one with a hole, some continued in slower tiers.
        for (tier, range) in
            [(Tier::Gpu, 0..3 * i), (Tier::Host, 3 * i..3 * i + i % 5), (Tier::Disk, 0..i % 7)]
        {
            let block = |&at: &u64| StoredBlock { engine: EngineHash(at), content: Some(BlockHash(at)) };
            let blocks: Vec<_> =
                (range.start as u64..range.end as u64).collect::<Vec<_>>().iter().map(block).collect();
            let parent = range.start.checked_sub(1).map(|at| EngineHash(at as u64));
            writer.apply(slot, &Event::Stored(Stored { tier, parent, blocks: blocks.into() }));
        }
        if i % 2 == 0 {
            let hashes = vec![EngineHash(i as u64)];
            let removed = Removed { tier: Tier::Gpu, hashes: hashes.into(), remaining_copies: None };
            writer.apply(slot, &Event::Removed(removed));
        }
    }

    let mut scratch = Scratch::new();
    let cold = allocations(|| assert!(!index.overlap(&prompt, &mut scratch).is_empty()));
    assert!(cold > 0, "the counter counts");
    let warm = allocations(|| {
        for depth in (0..=prompt.len()).rev() {
            let overlaps = index.overlap(&prompt[..depth], &mut scratch);
            assert_eq!(overlaps.is_empty(), depth == 0);
        }
    });
    assert_eq!(warm, 0);
    let overlaps = index.overlap(&prompt, &mut scratch);
    assert!(overlaps.levels().count() > 10, "many levels");
    assert!(overlaps.extensions().len() > 10, "slower tiers too");
}
