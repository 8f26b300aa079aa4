//! What the index says after each kind of event, one situation a test.
//!
//! Several situations are those in which Dynamo's router documents its own behaviour; where ours differs, the
//! test says how and why. In short: theirs forgets blocks that it can no longer reach, ours is exact.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

use std::num::NonZeroUsize;

use kvroute::{
    event::{EngineHash, Event, Removed, Stored, StoredBlock, Tier},
    hash::BlockHash,
    index::{Applied, Extension, IndexWriter, Overlap, PENDING_LIMIT, PrefixIndex, Scratch, Totals},
    slot::Slot,
};

const A: Slot = Slot { index: 0, generation: 0 };
const B: Slot = Slot { index: 7, generation: 0 };
const C: Slot = Slot { index: 65_534, generation: 3 };

/// An index of one shard. A block is written `(name, content)`; content 0 stands for a block of which only the
/// name is said.
struct Fixture {
    index: PrefixIndex,
    writer: IndexWriter,
}

impl Fixture {
    fn new() -> Self {
        Self::with_pending_limit(PENDING_LIMIT)
    }

    fn with_pending_limit(limit: usize) -> Self {
        let (index, mut writers) = PrefixIndex::with_pending_limit(NonZeroUsize::MIN, limit);
        Self { index, writer: writers.pop().unwrap() }
    }

    fn store_in(&mut self, slot: Slot, tier: Tier, parent: Option<u64>, blocks: &[(u64, u64)]) -> Applied {
        self.writer.apply(slot, &stored(tier, parent, blocks))
    }

    fn store(&mut self, slot: Slot, parent: Option<u64>, blocks: &[(u64, u64)]) -> Applied {
        self.store_in(slot, Tier::Gpu, parent, blocks)
    }

    fn remove_from(&mut self, slot: Slot, tier: Tier, names: &[u64]) -> Applied {
        let hashes = names.iter().map(|&name| EngineHash(name)).collect();
        self.writer.apply(slot, &Event::Removed(Removed { tier, hashes, remaining_copies: None }))
    }

    fn remove(&mut self, slot: Slot, names: &[u64]) -> Applied {
        self.remove_from(slot, Tier::Gpu, names)
    }

    fn remove_leaving(&mut self, slot: Slot, name: u64, remaining: Vec<u32>) -> Applied {
        let (tier, hashes) = (Tier::Gpu, vec![EngineHash(name)]);
        self.writer.apply(
            slot,
            &Event::Removed(Removed { tier, hashes: hashes.into(), remaining_copies: Some(remaining) }),
        )
    }

    fn clear(&mut self, slot: Slot, tier: Option<Tier>) -> Applied {
        self.writer.apply(slot, &Event::Cleared(tier))
    }

    /// The overlap of `slot` in each tier.
    fn overlap(&self, slot: Slot, prompt: &[u64]) -> [u32; 4] {
        let prompt: Vec<_> = prompt.iter().map(|&content| BlockHash(content)).collect();
        let mut scratch = Scratch::new();
        let Overlap { gpu, host, disk, external } = self.index.overlap(&prompt, &mut scratch).of(slot);
        [gpu, host, disk, external]
    }

    fn gpu(&self, slot: Slot, prompt: &[u64]) -> u32 {
        self.overlap(slot, prompt)[0]
    }

    /// Once everything is swept that clears leave behind. Bytes are another test's business.
    fn totals(&mut self) -> Totals {
        while self.writer.tidy() {}
        Totals { bytes: 0, ..self.index.totals() }
    }

    fn assert_empty(&mut self) {
        let Totals { dropped, .. } = self.totals();
        assert_eq!(self.totals(), Totals { dropped, ..Totals::default() });
    }
}

fn stored(tier: Tier, parent: Option<u64>, blocks: &[(u64, u64)]) -> Event {
    let block = |&(name, content): &(u64, u64)| StoredBlock {
        engine: EngineHash(name),
        content: (content != 0).then_some(BlockHash(content)),
    };
    let blocks = blocks.iter().map(block).collect();
    Event::Stored(Stored { tier, parent: parent.map(EngineHash), blocks })
}

/// Names 11, 12, ... with contents 1, 2, ...: a chain from the root.
fn chain(length: u64) -> Vec<(u64, u64)> {
    (1..=length).map(|at| (10 + at, at)).collect()
}

const NOTHING: Applied = Applied {
    stored: 0,
    already: 0,
    pending: 0,
    removed: 0,
    kept: 0,
    unknown: 0,
    cleared: 0,
    moved: 0,
    attached: 0,
    dropped: 0,
    refused: 0,
    stale: false,
};

#[test]
fn a_stored_chain_counts_from_the_start_only() {
    let mut f = Fixture::new();
    assert_eq!(f.store(A, None, &chain(3)), Applied { stored: 3, ..NOTHING });
    assert_eq!(f.gpu(A, &[1, 2, 3, 4]), 3);
    assert_eq!(f.gpu(A, &[1, 2]), 2);
    assert_eq!(f.gpu(A, &[1, 9, 3]), 1);
    assert_eq!(f.gpu(A, &[2, 3]), 0);
    assert_eq!(f.gpu(A, &[]), 0);
    assert_eq!(f.gpu(B, &[1, 2, 3]), 0);
}

#[test]
fn slots_of_one_depth_share_a_level() {
    let mut f = Fixture::new();
    f.store(C, None, &chain(2));
    f.store(B, None, &chain(3));
    f.store(A, None, &chain(2));
    let mut scratch = Scratch::new();
    let overlaps = f.index.overlap(&[BlockHash(1), BlockHash(2), BlockHash(3)], &mut scratch);
    let mut levels: Vec<_> = overlaps.levels().map(|(depth, slots)| (depth, slots.to_vec())).collect();
    levels.iter_mut().for_each(|(_, slots)| slots.sort());
    levels.sort();
    assert_eq!(levels, [(2, vec![A, C]), (3, vec![B])]);
    assert!(overlaps.extensions().is_empty());
}

#[test]
fn same_content_after_other_prefixes_is_another_place() {
    let mut f = Fixture::new();
    f.store(A, None, &[(11, 1), (12, 5)]);
    f.store(B, None, &[(21, 2), (22, 5)]);
    assert_eq!((f.gpu(A, &[1, 5]), f.gpu(B, &[1, 5])), (2, 0));
    assert_eq!((f.gpu(A, &[2, 5]), f.gpu(B, &[2, 5])), (0, 2));
    assert_eq!(f.totals().places, 4);
}

#[test]
fn engines_may_name_one_place_differently() {
    let mut f = Fixture::new();
    f.store(A, None, &[(11, 1), (12, 2)]);
    f.store(B, None, &[(21, 1), (22, 2)]);
    assert_eq!(f.totals(), Totals { places: 2, blocks: [4, 0, 0, 0], ..Totals::default() });
    assert_eq!(f.remove(A, &[22]), Applied { unknown: 1, ..NOTHING });
    f.remove(B, &[22]);
    assert_eq!((f.gpu(A, &[1, 2]), f.gpu(B, &[1, 2])), (2, 1));
}

// Dynamo: a repeated identical store changes nothing. Ours counts a copy, because vLLM reports one removal a
// copy; Dynamo counts in the publisher beside the engine instead, which a direct connection does not have.
#[test]
fn a_block_stored_twice_goes_with_its_last_copy() {
    let mut f = Fixture::new();
    f.store(A, None, &chain(2));
    assert_eq!(f.store(A, None, &chain(2)), Applied { already: 2, ..NOTHING });
    assert_eq!(f.index.blocks(A), [2, 0, 0, 0]);
    assert_eq!(f.remove(A, &[12]), Applied { kept: 1, ..NOTHING });
    assert_eq!(f.gpu(A, &[1, 2]), 2);
    assert_eq!(f.remove(A, &[12]), Applied { removed: 1, ..NOTHING });
    assert_eq!(f.gpu(A, &[1, 2]), 1);
    assert_eq!(f.remove(A, &[12]), Applied { unknown: 1, ..NOTHING });
}

#[test]
fn copies_are_counted_for_each_tier_and_slot() {
    let mut f = Fixture::new();
    f.store(A, None, &chain(1));
    f.store(B, None, &chain(1));
    f.store_in(A, Tier::Host, None, &chain(1));
    assert_eq!(f.remove(A, &[11]), Applied { removed: 1, ..NOTHING });
    assert_eq!((f.overlap(A, &[1]), f.overlap(B, &[1])), ([0, 1, 0, 0], [1, 0, 0, 0]));
}

#[test]
fn the_engines_own_count_of_copies_wins() {
    let mut f = Fixture::new();
    for _ in 0..3 {
        f.store(A, None, &chain(1));
    }
    assert_eq!(f.remove_leaving(A, 11, vec![1]), Applied { kept: 1, ..NOTHING });
    assert_eq!(f.remove(A, &[11]), Applied { removed: 1, ..NOTHING });
    for _ in 0..3 {
        f.store(A, None, &chain(1));
    }
    assert_eq!(f.remove_leaving(A, 11, vec![0]), Applied { removed: 1, ..NOTHING });
    assert_eq!(
        f.remove_leaving(A, 11, vec![5]),
        Applied { unknown: 1, ..NOTHING },
        "not ours, whatever it says"
    );
    f.store(A, None, &chain(1));
    assert_eq!(f.remove_leaving(A, 11, vec![]), Applied { removed: 1, ..NOTHING }, "no count, one copy");
    f.assert_empty();
}

// Dynamo: rejected whole (`parent_block_not_found`), the blocks are lost.
#[test]
fn blocks_under_an_unknown_parent_wait_and_are_not_credited() {
    let mut f = Fixture::new();
    assert_eq!(f.store(A, Some(11), &[(12, 2), (13, 3)]), Applied { pending: 2, ..NOTHING });
    assert_eq!((f.gpu(A, &[2, 3]), f.gpu(A, &[1, 2, 3])), (0, 0));
    assert_eq!(f.totals(), Totals { pending: 2, ..Totals::default() });
    assert_eq!(f.index.blocks(A), [0; 4]);
    assert_eq!(f.store(A, None, &[(11, 1)]), Applied { stored: 1, attached: 2, ..NOTHING });
    assert_eq!(f.gpu(A, &[1, 2, 3]), 3);
    assert_eq!(f.totals().pending, 0);
}

// Dynamo: the parent must be held by the same worker. Ours knows the place from any rank: the blocks are held, and
// count once the rank holds what is above them.
#[test]
fn a_parent_that_another_rank_holds_gives_the_place() {
    let mut f = Fixture::new();
    f.store(B, None, &[(11, 1)]);
    assert_eq!(f.store(A, Some(11), &[(12, 2)]), Applied { stored: 1, ..NOTHING });
    assert_eq!((f.gpu(A, &[1, 2]), f.index.blocks(A)), (0, [1, 0, 0, 0]));
    f.store(A, None, &[(91, 1)]);
    assert_eq!(f.gpu(A, &[1, 2]), 2, "healed, under another name even");
}

#[test]
fn waiting_blocks_attach_when_another_rank_makes_the_parent_known() {
    let mut f = Fixture::new();
    f.store(A, Some(12), &[(13, 3)]);
    f.store(C, Some(13), &[(14, 4)]);
    f.store(B, Some(11), &[(12, 2)]);
    assert_eq!(f.totals().pending, 3);
    assert_eq!(f.store_in(B, Tier::Disk, None, &[(11, 1)]), Applied { stored: 1, attached: 3, ..NOTHING });
    assert_eq!(f.totals().places, 4);
    assert_eq!(f.overlap(B, &[1, 2, 3, 4]), [0, 0, 1, 0]);
    f.store(A, None, &chain(2));
    assert_eq!(f.gpu(A, &[1, 2, 3, 4]), 3);
}

#[test]
fn removals_and_clears_reach_waiting_blocks() {
    let mut f = Fixture::new();
    f.store(A, Some(11), &[(12, 2), (13, 3)]);
    f.store(A, Some(11), &[(12, 2)]);
    assert_eq!(f.remove(A, &[12]), Applied { kept: 1, ..NOTHING });
    assert_eq!(f.remove(A, &[12, 13]), Applied { removed: 2, ..NOTHING });
    assert_eq!(f.totals().pending, 0);

    f.store(A, Some(11), &[(12, 2)]);
    f.store_in(A, Tier::Host, Some(12), &[(13, 3)]);
    f.store(B, Some(11), &[(12, 2)]);
    assert_eq!(f.clear(A, Some(Tier::Host)), Applied { cleared: 1, ..NOTHING });
    assert_eq!(f.clear(A, None), Applied { cleared: 1, ..NOTHING });
    assert_eq!(f.store(C, None, &chain(1)).attached, 1, "only B's is left");
    f.store(A, None, &chain(1));
    f.store(B, None, &chain(1));
    assert_eq!((f.gpu(A, &[1, 2]), f.gpu(B, &[1, 2])), (1, 2));
}

#[test]
fn a_waiting_block_brings_its_copies_along() {
    let mut f = Fixture::new();
    f.store(A, Some(11), &[(12, 2)]);
    f.store(A, Some(11), &[(12, 2)]);
    f.store_in(A, Tier::Host, None, &[(12, 0)]);
    f.store(A, None, &chain(1));
    assert_eq!(f.index.blocks(A), [2, 1, 0, 0]);
    assert_eq!(f.remove(A, &[12]), Applied { kept: 1, ..NOTHING });
    assert_eq!(f.remove(A, &[12]), Applied { removed: 1, ..NOTHING });
    assert_eq!(f.overlap(A, &[1, 2]), [1, 1, 0, 0]);
}

#[test]
fn the_oldest_waiting_blocks_are_dropped_at_the_limit() {
    let mut f = Fixture::with_pending_limit(2);
    f.store(B, Some(91), &[(92, 2)]);
    assert_eq!(
        f.store(A, Some(11), &[(12, 2), (13, 3), (14, 4)]),
        Applied { pending: 3, dropped: 1, ..NOTHING }
    );
    assert_eq!(f.totals(), Totals { pending: 3, dropped: 1, ..Totals::default() }, "two each at most");
    assert_eq!(
        f.store(A, None, &chain(1)),
        Applied { stored: 1, ..NOTHING },
        "12 is gone, the others wait for it"
    );
    assert_eq!(f.remove(A, &[12]), Applied { unknown: 1, ..NOTHING });
    assert_eq!(f.store(B, None, &chain(2)), Applied { stored: 2, attached: 2, ..NOTHING });
    assert_eq!((f.gpu(A, &[1, 2, 3, 4]), f.index.blocks(A)), (1, [3, 0, 0, 0]));
}

#[test]
fn a_limit_of_zero_keeps_no_waiting_blocks() {
    let mut f = Fixture::with_pending_limit(0);
    assert_eq!(f.store(A, Some(11), &[(12, 2)]), Applied { pending: 1, dropped: 1, ..NOTHING });
    assert_eq!(f.store(A, None, &chain(1)), Applied { stored: 1, ..NOTHING });
}

// Dynamo: rejected, because the worker lost the parent. Ours: the parent's name is gone with the block, so the child
// waits, and counts when the parent is back. The blocks behind the hole were never lost.
#[test]
fn a_store_under_a_parent_that_the_rank_lost_waits_for_it() {
    let mut f = Fixture::new();
    f.store(A, None, &chain(3));
    f.remove(A, &[12]);
    assert_eq!(f.store(A, Some(12), &[(23, 5)]), Applied { pending: 1, ..NOTHING });
    assert_eq!(f.gpu(A, &[1, 2, 5]), 1);
    assert_eq!(f.store(A, Some(11), &[(12, 2)]), Applied { stored: 1, attached: 1, ..NOTHING });
    assert_eq!((f.gpu(A, &[1, 2, 5]), f.gpu(A, &[1, 2, 3])), (3, 3));
}

// Dynamo: `invalid_block`, or the whole store dropped. Ours has a meaning for it: the name moves to its last place.
#[test]
fn a_parent_that_appears_among_its_own_blocks_moves_down() {
    let mut f = Fixture::new();
    f.store(A, None, &chain(1));
    assert_eq!(f.store(A, Some(11), &[(12, 2), (11, 3)]), Applied { stored: 2, moved: 1, ..NOTHING });
    assert_eq!(f.gpu(A, &[1, 2, 3]), 0, "its first block is no longer held");
    f.store(A, None, &[(91, 1)]);
    assert_eq!(f.gpu(A, &[1, 2, 3]), 3);
    f.remove(A, &[91, 12, 11]);
    f.assert_empty();
}

#[test]
fn one_name_twice_in_a_store_is_held_at_its_last_place() {
    let mut f = Fixture::new();
    assert_eq!(f.store(A, None, &[(11, 1), (11, 2)]), Applied { stored: 2, moved: 1, ..NOTHING });
    assert_eq!((f.index.blocks(A), f.totals().places), ([1, 0, 0, 0], 2));
    f.remove(A, &[11]);
    f.assert_empty();
}

#[test]
fn removing_what_nobody_stored_changes_nothing() {
    let mut f = Fixture::new();
    assert_eq!(f.remove(A, &[11, 12]), Applied { unknown: 2, ..NOTHING });
    f.store(B, None, &chain(1));
    assert_eq!(f.remove(A, &[11]), Applied { unknown: 1, ..NOTHING });
    assert_eq!(f.remove_from(B, Tier::Host, &[11]), Applied { unknown: 1, ..NOTHING });
    assert_eq!(f.gpu(B, &[1]), 1);
}

// Dynamo: the blocks behind the hole are scrubbed, and removing them later is an error. Ours keeps them: they are
// still in the engine's cache, so their removal is known and filling the hole brings them back.
#[test]
fn a_hole_in_the_middle_truncates_and_heals() {
    let mut f = Fixture::new();
    f.store(A, None, &chain(4));
    assert_eq!(f.remove(A, &[12]), Applied { removed: 1, ..NOTHING });
    assert_eq!(f.gpu(A, &[1, 2, 3, 4]), 1);
    assert_eq!(f.remove(A, &[14]), Applied { removed: 1, ..NOTHING });
    f.store(A, Some(11), &[(12, 2)]);
    assert_eq!(f.gpu(A, &[1, 2, 3, 4]), 3);
}

// Dynamo: depth 1, descendants are not resurrected.
#[test]
fn a_lost_head_stored_again_brings_its_tail_back() {
    let mut f = Fixture::new();
    f.store(A, None, &chain(3));
    f.remove(A, &[11]);
    assert_eq!(f.gpu(A, &[1, 2, 3]), 0);
    f.store(A, None, &chain(1));
    assert_eq!(f.gpu(A, &[1, 2, 3]), 3);
}

// Dynamo's known gap: if another worker keeps the node alive, the remover's coverage below it is not invalidated.
#[test]
fn a_hole_is_a_hole_even_where_others_hold_the_block() {
    let mut f = Fixture::new();
    f.store(A, None, &chain(4));
    f.store(B, None, &chain(4));
    f.remove(A, &[12, 13]);
    f.store(A, Some(11), &[(12, 2)]);
    assert_eq!((f.gpu(A, &[1, 2, 3, 4]), f.gpu(B, &[1, 2, 3, 4])), (2, 4));
}

#[test]
fn empty_stores_and_removals_do_nothing() {
    let mut f = Fixture::new();
    assert_eq!(f.store(A, None, &[]), NOTHING);
    assert_eq!(f.store(A, Some(99), &[]), NOTHING);
    assert_eq!(f.remove(A, &[]), NOTHING);
    f.assert_empty();
}

// Dynamo's positional index stops at the first unknown hash and keeps the rest.
#[test]
fn a_removal_goes_on_past_unknown_hashes() {
    let mut f = Fixture::new();
    f.store(A, None, &chain(3));
    assert_eq!(f.remove(A, &[99, 13, 98, 12, 12]), Applied { removed: 2, unknown: 3, ..NOTHING });
    assert_eq!(f.gpu(A, &[1, 2, 3]), 1);
}

#[test]
fn slower_tiers_go_on_where_faster_ones_end() {
    let mut f = Fixture::new();
    f.store(A, None, &chain(2));
    f.store_in(A, Tier::Host, Some(11), &[(12, 2), (13, 3), (14, 4)]);
    f.store_in(A, Tier::External, Some(14), &[(15, 5)]);
    f.store_in(A, Tier::Disk, Some(15), &[(16, 6)]);
    assert_eq!(f.overlap(A, &[1, 2, 3, 4, 5, 6, 7]), [2, 2, 0, 1]);
    f.store_in(A, Tier::Disk, Some(14), &[(15, 5)]);
    assert_eq!(f.overlap(A, &[1, 2, 3, 4, 5, 6, 7]), [2, 2, 2, 0]);
    f.remove_from(A, Tier::Host, &[13]);
    assert_eq!(f.overlap(A, &[1, 2, 3, 4, 5, 6, 7]), [2, 0, 0, 0]);
    f.store(A, Some(12), &[(13, 3)]);
    assert_eq!(f.overlap(A, &[1, 2, 3, 4, 5, 6, 7]), [3, 1, 2, 0]);
}

#[test]
fn a_slot_may_start_in_any_tier() {
    let mut f = Fixture::new();
    f.store_in(A, Tier::Host, None, &chain(2));
    f.store_in(B, Tier::Disk, None, &chain(3));
    f.store_in(B, Tier::Host, None, &chain(1));
    f.store_in(C, Tier::External, None, &chain(1));
    assert_eq!(f.overlap(A, &[1, 2, 3]), [0, 2, 0, 0]);
    assert_eq!(f.overlap(B, &[1, 2, 3]), [0, 1, 2, 0]);
    assert_eq!(f.overlap(C, &[1, 2, 3]), [0, 0, 0, 1]);
    let mut scratch = Scratch::new();
    let overlaps = f.index.overlap(&[BlockHash(1), BlockHash(2), BlockHash(3)], &mut scratch);
    assert_eq!(overlaps.levels().count(), 0);
    let of_b: Vec<_> = overlaps.extensions().iter().filter(|extension| extension.slot == B).collect();
    let host = Extension { slot: B, tier: Tier::Host, blocks: 1 };
    let disk = Extension { slot: B, tier: Tier::Disk, blocks: 2 };
    assert_eq!(of_b, [&host, &disk], "in order of tier");
}

#[test]
fn a_block_of_which_only_the_name_is_said_goes_where_the_name_leads() {
    let mut f = Fixture::new();
    f.store(A, None, &chain(2));
    assert_eq!(f.store_in(A, Tier::Host, None, &[(12, 0), (11, 0)]), Applied { stored: 2, ..NOTHING });
    f.remove(A, &[12, 11]);
    assert_eq!(f.overlap(A, &[1, 2]), [0, 2, 0, 0], "the names live on with the copies in host memory");
    assert_eq!(
        f.store_in(B, Tier::Disk, None, &[(11, 0)]),
        Applied { stored: 1, ..NOTHING },
        "a name of A's"
    );
    assert_eq!(f.overlap(B, &[1, 2]), [0, 0, 1, 0]);
}

#[test]
fn a_name_that_leads_nowhere_yet_waits() {
    let mut f = Fixture::new();
    assert_eq!(f.store_in(A, Tier::Host, None, &[(12, 0)]), Applied { pending: 1, ..NOTHING });
    assert_eq!(f.store_in(B, Tier::Host, None, &[(12, 0)]), Applied { pending: 1, ..NOTHING });
    assert_eq!(f.store(A, None, &chain(2)), Applied { stored: 2, attached: 2, ..NOTHING });
    assert_eq!((f.index.blocks(A), f.index.blocks(B)), ([2, 1, 0, 0], [0, 1, 0, 0]));
    f.remove(A, &[12]);
    assert_eq!(f.overlap(A, &[1, 2]), [1, 1, 0, 0]);
}

#[test]
fn a_block_with_content_follows_one_without() {
    let mut f = Fixture::new();
    f.store(A, None, &chain(2));
    f.store_in(A, Tier::Host, None, &[(12, 0), (13, 3)]);
    assert_eq!(f.overlap(A, &[1, 2, 3]), [2, 1, 0, 0]);
}

#[test]
fn a_name_that_comes_back_elsewhere_is_held_at_its_last_place_only() {
    let mut f = Fixture::new();
    f.store(A, None, &[(11, 1)]);
    f.store_in(A, Tier::Host, None, &[(11, 1)]);
    assert_eq!(f.store(A, None, &[(11, 2)]), Applied { stored: 1, moved: 1, ..NOTHING });
    assert_eq!((f.overlap(A, &[1]), f.overlap(A, &[2])), ([0; 4], [1, 0, 0, 0]));
    assert_eq!(f.remove(A, &[11]), Applied { removed: 1, ..NOTHING });
    f.assert_empty();
}

#[test]
fn a_name_that_moves_leaves_other_slots_alone() {
    let mut f = Fixture::new();
    f.store(A, None, &[(11, 1)]);
    f.store(B, None, &[(11, 1)]);
    f.store(A, None, &[(11, 2)]);
    assert_eq!((f.gpu(A, &[1]), f.gpu(B, &[1]), f.gpu(A, &[2])), (0, 1, 1));
}

#[test]
fn a_name_that_comes_back_with_other_content_and_no_known_parent_leaves_its_place() {
    let mut f = Fixture::new();
    f.store(A, None, &[(11, 1), (12, 2)]);
    assert_eq!(f.store(A, Some(99), &[(12, 3)]), Applied { pending: 1, moved: 1, ..NOTHING });
    assert_eq!(f.gpu(A, &[1, 2]), 1);
    assert_eq!(f.store(A, Some(98), &[(12, 4)]), Applied { pending: 1, moved: 1, ..NOTHING });
    f.store(A, None, &[(98, 7), (99, 8)]);
    assert_eq!((f.gpu(A, &[7, 4]), f.gpu(A, &[7, 8, 3])), (2, 2));
}

#[test]
fn a_known_block_stored_again_under_a_lost_parent_is_another_copy() {
    let mut f = Fixture::new();
    f.store(A, None, &chain(2));
    f.remove(A, &[11]);
    assert_eq!(f.store(A, Some(11), &[(12, 2)]), Applied { already: 1, ..NOTHING });
    f.remove(A, &[12]);
    f.store(A, None, &chain(1));
    assert_eq!(f.gpu(A, &[1, 2]), 2);
}

#[test]
fn a_name_that_slots_disagree_on_is_not_known_to_others() {
    let mut f = Fixture::new();
    f.store(A, None, &[(11, 1)]);
    f.store(B, None, &[(11, 2)]);
    assert_eq!(f.store(C, Some(11), &[(12, 5)]), Applied { pending: 1, ..NOTHING });
    assert_eq!(f.store(A, Some(11), &[(12, 5)]), Applied { stored: 1, ..NOTHING }, "A knows what it means");
    assert_eq!(f.gpu(A, &[1, 5]), 2);
    assert_eq!(f.remove(B, &[11]), Applied { removed: 1, attached: 1, ..NOTHING }, "now they agree");
    f.store(C, None, &[(11, 1)]);
    assert_eq!(f.gpu(C, &[1, 5]), 2);
}

#[test]
fn a_place_with_two_names_is_held_until_both_are_gone() {
    let mut f = Fixture::new();
    f.store(A, None, &[(11, 1)]);
    assert_eq!(f.store(A, None, &[(12, 1)]), Applied { stored: 1, ..NOTHING });
    assert_eq!(f.index.blocks(A), [2, 0, 0, 0]);
    f.remove(A, &[11]);
    assert_eq!(f.gpu(A, &[1]), 1);
    f.remove(A, &[12]);
    f.assert_empty();
}

#[test]
fn a_clear_reaches_every_tier_of_its_slot_or_the_one_it_names() {
    let mut f = Fixture::new();
    for slot in [A, B] {
        f.store(slot, None, &chain(2));
        f.store_in(slot, Tier::Host, None, &chain(2));
        f.store_in(slot, Tier::Disk, None, &chain(3));
    }
    assert_eq!(f.clear(A, Some(Tier::Gpu)), Applied { cleared: 2, ..NOTHING });
    assert_eq!(f.overlap(A, &[1, 2, 3]), [0, 2, 1, 0]);
    assert_eq!(f.clear(A, None), Applied { cleared: 5, ..NOTHING });
    assert_eq!((f.overlap(A, &[1, 2, 3]), f.overlap(B, &[1, 2, 3])), ([0; 4], [2, 0, 1, 0]));
    f.store(A, None, &chain(1));
    assert_eq!(f.gpu(A, &[1, 2, 3]), 1, "a cleared slot goes on");
    f.clear(A, None);
    f.clear(B, None);
    f.assert_empty();
}

#[test]
fn a_newer_generation_starts_empty_and_ends_the_older_one() {
    let mut f = Fixture::new();
    let newer = Slot { generation: 1, ..B };
    f.store(B, None, &chain(2));
    f.store(B, Some(99), &[(98, 8)]);
    assert_eq!(f.store(newer, None, &chain(1)), Applied { stored: 1, cleared: 3, ..NOTHING });
    assert_eq!((f.gpu(newer, &[1, 2]), f.gpu(B, &[1, 2])), (1, 0));
    assert_eq!((f.index.blocks(newer), f.index.blocks(B)), ([1, 0, 0, 0], [0; 4]));
    for event in [stored(Tier::Gpu, Some(11), &[(12, 2)]), Event::Cleared(None)] {
        assert_eq!(f.writer.apply(B, &event), Applied { stale: true, ..NOTHING });
    }
    assert_eq!(f.gpu(newer, &[1, 2]), 1);
    assert_eq!(f.writer.retire(B), Applied { stale: true, ..NOTHING });
    assert_eq!(f.gpu(newer, &[1, 2]), 1);
}

#[test]
fn a_retired_slot_is_gone_at_once_and_stays_gone() {
    let mut f = Fixture::new();
    f.store(A, None, &chain(2));
    f.store_in(A, Tier::Host, Some(99), &[(98, 8)]);
    f.store(B, None, &chain(1));
    assert_eq!(f.writer.retire(A), Applied { cleared: 3, ..NOTHING });
    assert_eq!((f.gpu(A, &[1, 2]), f.gpu(B, &[1, 2])), (0, 1));
    assert_eq!(f.totals(), Totals { places: 1, blocks: [1, 0, 0, 0], ..Totals::default() });
    assert_eq!(f.store(A, None, &chain(2)), Applied { stale: true, ..NOTHING });
    assert_eq!(f.writer.retire(A), Applied { stale: true, ..NOTHING });
    let next = Slot { generation: 1, ..A };
    assert_eq!(f.store(next, None, &chain(2)).stored, 2);
    assert_eq!(f.gpu(next, &[1, 2]), 2);
}

#[test]
fn a_slot_retired_before_its_first_event_stays_silent() {
    let mut f = Fixture::new();
    f.writer.retire(C);
    assert!(f.store(C, None, &chain(1)).stale);
    assert!(f.store(Slot { generation: 2, ..C }, None, &chain(1)).stale);
    f.assert_empty();
}

#[test]
fn memory_follows_what_is_held() {
    let mut f = Fixture::new();
    f.store(A, None, &chain(5));
    f.store(B, None, &[(21, 1), (22, 9)]);
    f.remove(A, &[13]);
    assert_eq!(f.totals().places, 6, "the hole keeps its place: blocks hang below it");
    f.remove(A, &[14, 15]);
    assert_eq!(f.totals().places, 3);
    f.remove(A, &[11]);
    assert_eq!(f.totals().places, 3, "12 is still held, 11 by the other slot");
    f.remove(A, &[12]);
    f.remove(B, &[21]);
    assert_eq!(f.totals().places, 2);
    f.remove(B, &[22]);
    f.assert_empty();
}

#[test]
fn shards_answer_together_and_know_only_their_own_names() {
    let (index, mut writers) = PrefixIndex::new(NonZeroUsize::new(2).unwrap());
    let (even, odd) = (Slot { index: 4, generation: 0 }, Slot { index: 9, generation: 0 });
    writers[0].apply(even, &stored(Tier::Gpu, None, &chain(2)));
    let orphan = writers[1].apply(odd, &stored(Tier::Gpu, Some(11), &[(12, 2)]));
    assert_eq!(orphan, Applied { pending: 1, ..NOTHING });
    writers[1].apply(odd, &stored(Tier::Gpu, None, &chain(1)));
    let mut scratch = Scratch::new();
    let overlaps = index.clone().overlap(&[BlockHash(1), BlockHash(2)], &mut scratch);
    assert_eq!((overlaps.of(even).gpu, overlaps.of(odd).gpu), (2, 2));
    assert_eq!((index.blocks(even), index.blocks(odd)), ([2, 0, 0, 0], [2, 0, 0, 0]));
    assert_eq!(index.totals().places, 4, "each shard has its own tree");
}

#[test]
fn lookups_from_other_threads_see_whole_events() {
    fn assert_shared<T: Clone + Send + Sync>(_: &T) {}
    fn assert_send<T: Send>(_: &T) {}
    let mut f = Fixture::new();
    assert_shared(&f.index);
    assert_send(&f.writer);
    let prompt: Vec<_> = (1..=8).map(BlockHash).collect();
    let index = f.index.clone();
    let mut scratch = Scratch::new();
    std::thread::scope(|threads| {
        let writer = threads.spawn(|| {
            for _ in 0..500 {
                f.store(A, None, &chain(8));
                f.clear(A, None);
            }
        });
        while !writer.is_finished() {
            let gpu = index.overlap(&prompt, &mut scratch).of(A).gpu;
            assert!(gpu == 0 || gpu == 8, "{gpu} blocks of an event of 8");
        }
        // ThreadSanitizer knows that a thread is over from this, and not from the scope's end.
        writer.join().unwrap();
    });
}

#[test]
fn counts_of_events_add_up() {
    let mut sum = Applied { stored: 2, moved: 1, ..NOTHING };
    sum += Applied { stored: 3, stale: true, ..NOTHING };
    assert_eq!(sum, Applied { stored: 5, moved: 1, stale: true, ..NOTHING });
}
