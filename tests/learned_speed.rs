//! What a slot shows of its speed while its devices are known to be slow.

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
    device::{Condition, Weights},
    hash::BlockSize,
    index::{self, PrefixIndex},
    load::Booking,
    select::{
        Demand, Member, Mode, Pin, PinField, Scratch, Selector, Tuning,
        cost::{Cost, time::TimeCost},
    },
    slot::{Rank, Slot, WorkerId},
};

/// Two slots, of which the first may be at half its clocks.
struct Fleet {
    members: Vec<Member>,
    selector: Selector,
    index: PrefixIndex,
    scratch: Scratch,
}

impl Fleet {
    fn new(enabled: bool) -> Self {
        let member = |index| Member::new(Slot { index, generation: 0 }, WorkerId(u64::from(index)), Rank(0));
        let device_weights = Weights { enabled, ..Weights::default() };
        Self {
            members: (0..2).map(member).collect(),
            selector: Selector::new(Mode::Kv, Tuning { device_weights, ..Tuning::default() }),
            index: PrefixIndex::new(NonZeroUsize::MIN).0,
            scratch: Scratch::new(),
        }
    }

    fn runs_at(&mut self, capability: f64) {
        self.members[0].device = Some(Condition { capability, external_load: 0.0, age_ms: 0 });
    }

    /// Each slot prefills 8,000 tokens of work fifty times.
    fn learn(&mut self, seconds: [f64; 2], from: f64) {
        for round in 0..50 {
            let now = Duration::from_secs_f64(from + 10.0 * f64::from(round));
            for (slot, took) in (0..).zip(seconds) {
                let booking = self.on(slot, now);
                booking.first_token(now + Duration::from_secs_f64(took));
            }
        }
    }

    fn on(&mut self, worker: u64, now: Duration) -> Booking {
        let pin = Pin { worker: WorkerId(worker), rank: None, field: PinField::BackendInstanceId };
        let demand = Demand { pin: Some(pin), ..demand() };
        let mut found = index::Scratch::new();
        let overlaps = self.index.overlap(&[], &mut found);
        let mut rng = Rng::with_seed(1);
        self.selector.admit(&self.members, overlaps, &demand, &mut self.scratch, now, &mut rng).unwrap().1
    }

    fn costs(&mut self) -> [TimeCost; 2] {
        let mut found = index::Scratch::new();
        let overlaps = self.index.overlap(&[], &mut found);
        let (now, mut rng) = (Duration::from_secs(10_000), Rng::with_seed(1));
        self.selector.explain(&self.members, overlaps, &demand(), &mut self.scratch, now, &mut rng).unwrap();
        [0, 1].map(|row: usize| match self.scratch.rows()[row].cost.unwrap() {
            Cost::Time(cost) => cost,
            Cost::Blocks(_) => panic!("the default is time"),
        })
    }
}

fn demand() -> Demand<'static> {
    Demand::new(7_744, BlockSize::new(16).unwrap(), &[])
}

fn near(a: f64, b: f64) {
    assert!((a / b - 1.0).abs() < 0.05, "{a} is not {b}");
}

#[test]
fn a_throttled_slot_counts_as_slow_once_and_is_predicted_as_it_is() {
    let mut fleet = Fleet::new(true);
    fleet.runs_at(0.5);
    fleet.learn([1.6, 0.8], 0.0);
    let [hot, well] = fleet.costs();
    near(hot.total / well.total, 2.0);
    near(hot.seconds_per_token / well.seconds_per_token, 2.0);
    near(hot.first_token.unwrap() / well.first_token.unwrap(), 2.0);
    assert_eq!(fleet.selector.loads().seconds_per_token(fleet.members[0].slot), hot.seconds_per_token);
    // It cools down, and is at once what it was, with nothing to unlearn.
    fleet.runs_at(1.0);
    let [cool, well] = fleet.costs();
    near(cool.total / well.total, 1.0);
    near(cool.first_token.unwrap() / well.first_token.unwrap(), 1.0);
}

#[test]
fn with_weights_off_all_of_it_is_learned() {
    let mut fleet = Fleet::new(false);
    fleet.runs_at(0.5);
    fleet.learn([1.6, 0.8], 0.0);
    let [hot, well] = fleet.costs();
    near(hot.seconds_per_token / well.seconds_per_token, 2.0);
    near(hot.own_prefill / well.own_prefill, 2.0_f64.sqrt());
}

#[test]
fn what_waits_before_a_request_is_in_the_time_that_it_takes_there() {
    let mut fleet = Fleet::new(true);
    fleet.runs_at(0.5);
    let now = Duration::from_secs(10_000);
    let _waits = [fleet.on(0, now), fleet.on(0, now), fleet.on(1, now), fleet.on(1, now)];
    let [hot, well] = fleet.costs();
    near(hot.queue, well.queue);
    near(hot.first_token.unwrap() / well.first_token.unwrap(), 2.0);
}
