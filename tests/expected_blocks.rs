//! What was sent to a slot counts beside what its events say, where it is to.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

use std::{num::NonZeroUsize, time::Duration};

use fastrand::Rng;
use kvroute::{
    event::{EngineHash, Event, Stored, StoredBlock, Tier},
    hash::{BlockHash, BlockSize},
    index::{self, IndexWriter, Overlap, PrefixIndex},
    select::{Demand, Member, Mode, Row, Scratch, Selector, Tuning},
    slot::{Rank, Slot, WorkerId},
};

const OWN: Slot = Slot { index: 4, generation: 1 };
const BESIDE: Slot = Slot { index: 2, generation: 3 };

/// Stores blocks `from..to` of the one prompt there is.
fn store(writer: &mut IndexWriter, slot: Slot, tier: Tier, from: u64, to: u64) {
    let blocks = (from..to).map(|at| StoredBlock {
        engine: EngineHash(u64::from(slot.index) << 32 | at),
        content: Some(BlockHash(at)),
    });
    let parent = from.checked_sub(1).map(|before| EngineHash(u64::from(slot.index) << 32 | before));
    let blocks: Vec<_> = blocks.collect();
    writer.apply(slot, &Event::Stored(Stored { tier, parent, blocks: blocks.into() }));
}

/// The row of a slot that holds `gpu` blocks by its events and `host` behind them, and was sent `sent` of them.
fn row(gpu: u64, host: u64, sent: u64, beside: Option<Slot>, credits_overlap: bool) -> Row {
    let (index, mut writers) = PrefixIndex::new(NonZeroUsize::MIN);
    let writer = &mut writers[0];
    for (slot, tier, from, to) in
        [(OWN, Tier::Gpu, 0, gpu), (OWN, Tier::Host, gpu, gpu + host), (BESIDE, Tier::Gpu, 0, sent)]
    {
        if to > from {
            store(writer, slot, tier, from, to);
        }
    }
    let prompt: Vec<_> = (0..20).map(BlockHash).collect();
    let mut lookup = index::Scratch::new();
    let member = Member { credits_overlap, expected: beside, ..Member::new(OWN, WorkerId(1), Rank(0)) };
    let selector = Selector::new(Mode::Kv, Tuning::default());
    let demand = Demand::new(320, BlockSize::new(16).unwrap(), &[]);
    let mut scratch = Scratch::new();
    selector
        .explain(
            &[member],
            index.overlap(&prompt, &mut lookup),
            &demand,
            &mut scratch,
            Duration::ZERO,
            &mut Rng::with_seed(1),
        )
        .unwrap();
    scratch.rows()[0]
}

#[test]
fn of_what_was_sent_and_what_events_say_the_larger_counts() {
    for (gpu, host, sent, expected) in [
        (0, 0, 0, Overlap::default()),
        (0, 0, 5, Overlap { gpu: 5, ..Overlap::default() }),
        (3, 0, 5, Overlap { gpu: 5, ..Overlap::default() }),
        (7, 0, 5, Overlap { gpu: 7, ..Overlap::default() }),
        (3, 4, 5, Overlap { gpu: 5, host: 2, ..Overlap::default() }),
        (3, 4, 9, Overlap { gpu: 9, ..Overlap::default() }),
    ] {
        let row = row(gpu, host, sent, Some(BESIDE), true);
        assert_eq!((row.overlap, u64::from(row.expected)), (expected, sent), "{gpu}, {host}, {sent}");
        let tokens = 16.0 * (f64::from(expected.gpu) + 0.75 * f64::from(expected.host));
        assert_eq!(row.cached_tokens, tokens.round() as u64);
    }
}

#[test]
fn what_was_sent_counts_for_nobody_else_and_not_where_nothing_is_credited() {
    let others = [None, Some(Slot { generation: 9, ..BESIDE }), Some(Slot { index: 3, generation: 3 })];
    for beside in others {
        let row = row(3, 0, 9, beside, true);
        assert_eq!((row.overlap.gpu, row.expected), (3, 0), "{beside:?}");
    }
    let row = row(3, 0, 9, Some(BESIDE), false);
    assert_eq!((row.overlap, row.withheld.unwrap().gpu), (Overlap::default(), 3));
}
