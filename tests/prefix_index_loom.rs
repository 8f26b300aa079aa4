//! A whole lookup against one change, in every order in which the threads may see each other's stores. Runs with
//! `--cfg loom`, by ci/loom.sh; there the index's tables and chunks are small.
#![cfg(loom)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

#[path = "twin/mod.rs"]
mod twin;

use std::{num::NonZeroUsize, time::Duration};

use kvroute::{
    event::{Event, Tier},
    hash::BlockHash,
    index::{IndexWriter, PrefixIndex, Scratch},
    slot::Slot,
};
use loom::{model::Builder, thread};
use twin::{Answer, collect, removed, stored};

const ZERO: Slot = Slot { index: 0, generation: 1 };
const ONE: Slot = Slot { index: 1, generation: 1 };

/// Stores blocks, called as their contents, below a parent, if it is not 0.
fn store(writer: &mut IndexWriter, slot: Slot, tier: Tier, parent: u64, blocks: &[u64]) {
    let blocks = blocks.iter().map(|&block| (block, Some(block)));
    writer.apply(slot, &stored(tier, (parent > 0).then_some(parent), blocks));
}

fn remove(writer: &mut IndexWriter, slot: Slot, blocks: &[u64]) {
    writer.apply(slot, &removed(Tier::Gpu, blocks.iter().copied(), None));
}

/// All leading blocks that slots hold in any tier, by slot.
type Depths = Vec<(Slot, u32)>;

/// Looks a prompt up while something changes. The answer must be one of those `allowed`.
fn model(
    prompt: &'static [u64],
    before: impl Fn(&mut IndexWriter) + Send + Sync + 'static,
    change: impl Fn(&mut IndexWriter) + Send + Sync + 'static,
    allowed: &'static [&'static [(Slot, u32)]],
) {
    let mut builder = Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(1));
    builder.max_branches = 20_000;
    // The models with clears have more orders than can be tried: the first ones are, as many as there is time for.
    builder.max_duration = builder.max_duration.or(Some(Duration::from_secs(8)));
    builder.check(move || {
        let (index, mut writers) = PrefixIndex::with_pending_limit(NonZeroUsize::MIN, 0);
        let writer = &mut writers[0];
        before(writer);
        let reader = thread::spawn(move || {
            let prompt: Vec<BlockHash> = prompt.iter().copied().map(BlockHash).collect();
            let (mut scratch, mut answer) = (Scratch::new(), Answer::new());
            collect(&index.overlap(&prompt, &mut scratch), &mut answer);
            let depths: Depths = answer.iter().map(|(slot, overlap)| (*slot, overlap.total())).collect();
            assert!(allowed.contains(&&depths[..]), "found {depths:?}");
        });
        change(writer);
        reader.join().unwrap();
    });
}

#[test]
fn a_run_grows_in_place() {
    model(
        &[1, 2],
        |writer| store(writer, ZERO, Tier::Gpu, 0, &[1]),
        |writer| store(writer, ZERO, Tier::Gpu, 1, &[2]),
        &[&[(ZERO, 1)], &[(ZERO, 2)]],
    );
}

#[test]
fn a_chain_goes_and_another_takes_its_run_and_words() {
    model(
        &[1, 2],
        |writer| store(writer, ZERO, Tier::Gpu, 0, &[1, 2]),
        |writer| {
            remove(writer, ZERO, &[2, 1]);
            store(writer, ONE, Tier::Gpu, 0, &[1, 5]);
        },
        &[&[(ZERO, 2)], &[(ZERO, 1)], &[], &[(ONE, 1)]],
    );
}

#[test]
fn an_array_moves_and_its_words_go_to_another_run() {
    model(
        &[1, 2, 3],
        |writer| store(writer, ZERO, Tier::Gpu, 0, &[1, 2]),
        |writer| {
            store(writer, ZERO, Tier::Gpu, 2, &[3, 4, 5, 6]);
            store(writer, ONE, Tier::Gpu, 0, &[7, 8]);
        },
        &[&[(ZERO, 2)], &[(ZERO, 3)]],
    );
}

#[test]
fn two_runs_are_seen_at_one_moment() {
    model(
        &[1, 2],
        |writer| {
            store(writer, ZERO, Tier::Gpu, 0, &[1, 9]);
            store(writer, ONE, Tier::Gpu, 0, &[1, 2]);
        },
        |writer| {
            remove(writer, ONE, &[1]);
            store(writer, ZERO, Tier::Gpu, 1, &[2]);
        },
        &[&[(ZERO, 1), (ONE, 2)], &[(ZERO, 1)], &[(ZERO, 2)]],
    );
}

#[test]
fn the_child_table_splits() {
    model(
        &[3, 4],
        |writer| (1..=3).for_each(|block| store(writer, ZERO, Tier::Gpu, 0, &[block])),
        |writer| store(writer, ZERO, Tier::Gpu, 0, &[7]),
        &[&[(ZERO, 1)]],
    );
}

#[test]
fn a_child_is_taken_out_from_among_others() {
    model(
        &[3],
        |writer| (1..=3).for_each(|block| store(writer, ZERO, Tier::Gpu, 0, &[block])),
        |writer| remove(writer, ZERO, &[1, 2]),
        &[&[(ZERO, 1)]],
    );
}

#[test]
fn a_seat_is_left_swept_and_taken_again() {
    const AGAIN: Slot = Slot { index: 0, generation: 2 };
    model(
        &[1, 2],
        |writer| store(writer, ZERO, Tier::Gpu, 0, &[1, 2]),
        |writer| {
            writer.retire(ZERO);
            while writer.tidy() {}
            store(writer, AGAIN, Tier::Gpu, 0, &[1]);
        },
        &[&[(ZERO, 2)], &[], &[(AGAIN, 1)]],
    );
}

#[test]
fn a_clear_is_seen_in_all_runs_at_once() {
    model(
        &[1, 2],
        |writer| {
            store(writer, ZERO, Tier::Gpu, 0, &[1, 9]);
            store(writer, ONE, Tier::Gpu, 0, &[1, 2]);
            store(writer, ZERO, Tier::Gpu, 1, &[2]);
        },
        |writer| {
            writer.apply(ZERO, &Event::Cleared(None));
            while writer.tidy() {}
        },
        &[&[(ZERO, 2), (ONE, 2)], &[(ONE, 2)]],
    );
}

#[test]
fn a_clear_is_seen_in_all_tiers_at_once() {
    model(
        &[1],
        |writer| {
            store(writer, ZERO, Tier::Gpu, 0, &[1]);
            store(writer, ZERO, Tier::Host, 0, &[1]);
        },
        |writer| _ = writer.apply(ZERO, &Event::Cleared(None)),
        &[&[(ZERO, 1)], &[]],
    );
}

#[test]
fn the_first_block_in_a_slower_tier() {
    model(
        &[1, 2],
        |writer| {
            store(writer, ZERO, Tier::Gpu, 0, &[1]);
            // The row of the tier's seats is there: a OnceLock of the standard library makes it, of which loom knows nothing.
            store(writer, ONE, Tier::Host, 0, &[8]);
        },
        |writer| store(writer, ZERO, Tier::Host, 1, &[2]),
        &[&[(ZERO, 1)], &[(ZERO, 2)]],
    );
}

#[test]
fn a_run_gets_longer_and_who_holds_it_changes() {
    model(
        &[1, 2],
        |writer| [ZERO, ONE].into_iter().for_each(|slot| store(writer, slot, Tier::Gpu, 0, &[1])),
        |writer| store(writer, ZERO, Tier::Gpu, 1, &[2]),
        &[&[(ZERO, 1), (ONE, 1)], &[(ZERO, 2), (ONE, 1)]],
    );
}
