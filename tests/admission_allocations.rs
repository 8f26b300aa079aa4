//! A warm admission allocates nothing.
//!
//! A booking owns a handle on the loads, the name of its last block and its place in a queue, so an admission may make no
//! allocation at all once its memory has the size of the work: the rows of the scratch, the counters of the slots, the queue
//! of prefills and the table of active blocks of each slot, which grow with the most that were ever there at once.
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
    hash::{BlockHash, BlockSize, SequenceHash, chain},
    index::{self, PrefixIndex},
    select::{CostModel, Demand, Member, Mode, Pin, PinField, Scratch, Selector, Tuning},
    slot::{Rank, Slot, WorkerId},
};
use std::{num::NonZeroUsize, time::Duration};

fn members() -> Vec<Member> {
    let member = |index| Member::new(Slot { index, generation: 0 }, WorkerId(u64::from(index)), Rank(0));
    (0..16).map(member).collect()
}

fn sequence(prompt: u64) -> Vec<SequenceHash> {
    // A preamble that all prompts share, and blocks of their own.
    let blocks: Vec<_> = (0..60).map(|i| BlockHash(if i < 20 { i } else { prompt << 8 | i })).collect();
    let mut sequence = Vec::new();
    chain(&blocks, &mut sequence);
    sequence
}

/// Requests in flight while allocations are counted, on 16 slots.
const IN_FLIGHT: usize = 64;
/// Requests in flight on each slot before: as many as can ever be there, so that none of its tables meets more than it
/// has met.
const BURST: usize = IN_FLIGHT;

#[test]
fn the_count_counts() {
    assert_eq!(allocations(|| drop(Box::new(1))), 1);
}

#[test]
fn a_warm_admission_and_its_return_allocate_nothing() {
    let blocks = Tuning { cost_model: CostModel::Blocks, ..Tuning::default() };
    for (mode, tuning) in [
        (Mode::Kv, Tuning::default()),
        (Mode::Kv, blocks),
        (Mode::RoundRobin, blocks),
        (Mode::PowerOfTwo, blocks),
        (Mode::LeastLoaded, blocks),
        (Mode::DeviceAwareWeighted, blocks),
    ] {
        let selector = Selector::new(mode, tuning);
        let members = members();
        let (index, _writers) = PrefixIndex::new(NonZeroUsize::MIN);
        let mut found = index::Scratch::new();
        let overlaps = index.overlap(&[], &mut found);
        let (mut scratch, mut rng) = (Scratch::new(), Rng::with_seed(21));
        let sequences: Vec<_> = (0..256).map(sequence).collect();
        let mut bookings = Vec::with_capacity(BURST);
        let mut now = Duration::ZERO;

        let mut serve = |pin: Option<Pin>, rounds: usize, in_flight: usize, bookings: &mut Vec<_>| {
            for round in 0..rounds {
                if bookings.len() == in_flight {
                    bookings.swap_remove(rng.usize(..in_flight));
                }
                let sequence = &sequences[round % sequences.len()];
                now += Duration::from_millis(3);
                let demand = Demand {
                    pin,
                    first_token_seen: round % 3 > 0,
                    ..Demand::new(60 * 16, BlockSize::new(16).unwrap(), sequence)
                };
                let (_, booking) =
                    selector.admit(&members, overlaps, &demand, &mut scratch, now, &mut rng).unwrap();
                // Of some the first token is seen, of some only the end, and some go before it.
                match round % 3 {
                    0 => {}
                    1 => booking.prefill_done(),
                    _ => booking.first_token(now + Duration::from_millis(50)),
                }
                booking.output(40);
                bookings.push(booking);
            }
        };
        for member in &members {
            let pin = Pin { worker: member.worker, rank: None, field: PinField::DecodeWorkerId };
            serve(Some(pin), BURST, BURST, &mut bookings);
            bookings.clear();
        }
        serve(None, IN_FLIGHT, IN_FLIGHT, &mut bookings);
        let made = allocations(|| serve(None, 2_000, IN_FLIGHT, &mut bookings));
        assert_eq!(made, 0, "{mode}, {}", tuning.cost_model);
    }
}
