//! A warm admission allocates nothing.
//!
//! A booking owns a handle on the loads and the name of its last block, so an admission may make no allocation
//! at all once its memory has the size of the work: the rows of the scratch, the counters of the slots, and
//! the table of active blocks of each slot, which grows with the most blocks ever active at once.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod counting_allocator;

use crate::counting_allocator::allocations;
use fastrand::Rng;
use kvroute::{
    device::DeviceClass,
    hash::{BlockHash, BlockSize, SequenceHash, chain},
    index::{self, PrefixIndex},
    select::{Demand, Member, Mode, Scratch, Selector, Tuning},
    slot::{Rank, Slot, WorkerId},
};
use std::num::NonZeroUsize;

fn members() -> Vec<Member> {
    let member = |index| Member {
        slot: Slot { index, generation: 0 },
        worker: WorkerId(u64::from(index)),
        rank: Rank(0),
        class: DeviceClass::Accelerator,
        device: None,
        credits_overlap: true,
        exclusion: None,
    };
    (0..64).map(member).collect()
}

fn sequence(prompt: u64) -> Vec<SequenceHash> {
    // A preamble that all prompts share, and blocks of their own.
    let blocks: Vec<_> = (0..60).map(|i| BlockHash(if i < 20 { i } else { prompt << 8 | i })).collect();
    let mut sequence = Vec::new();
    chain(&blocks, &mut sequence);
    sequence
}

/// Requests in flight while allocations are counted, on 64 slots.
const IN_FLIGHT: usize = 128;
/// Requests in flight before, so that no table of active blocks meets more than it has met.
const BURST: usize = 1024;

#[test]
fn the_count_counts() {
    assert_eq!(allocations(|| drop(Box::new(1))), 1);
}

#[test]
fn a_warm_admission_and_its_return_allocate_nothing() {
    for mode in [Mode::Kv, Mode::RoundRobin, Mode::PowerOfTwo, Mode::LeastLoaded, Mode::DeviceAwareWeighted] {
        let selector = Selector::new(mode, Tuning::default());
        let members = members();
        let (index, _writers) = PrefixIndex::new(NonZeroUsize::MIN);
        let mut found = index::Scratch::new();
        let overlaps = index.overlap(&[], &mut found);
        let (mut scratch, mut rng) = (Scratch::new(), Rng::with_seed(21));
        let sequences: Vec<_> = (0..256).map(sequence).collect();
        let mut bookings = Vec::with_capacity(BURST);

        let mut serve = |rounds: usize, in_flight: usize, bookings: &mut Vec<_>| {
            for round in 0..rounds {
                if bookings.len() == in_flight {
                    bookings.swap_remove(rng.usize(..in_flight));
                }
                let sequence = &sequences[round % sequences.len()];
                let demand = Demand::new(60 * 16, BlockSize::new(16).unwrap(), sequence);
                let (_, booking) =
                    selector.admit(&members, overlaps, &demand, &mut scratch, &mut rng).unwrap();
                booking.prefill_done();
                booking.output(40);
                bookings.push(booking);
            }
        };
        serve(BURST, BURST, &mut bookings);
        bookings.truncate(IN_FLIGHT);
        let made = allocations(|| serve(2_000, IN_FLIGHT, &mut bookings));
        assert_eq!(made, 0, "{mode}");
    }
}
