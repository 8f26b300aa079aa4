//! Who waits in the router: the threshold, the hold and the busy thresholds, by what the ranks are doing.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

use fastrand::Rng;
use kvroute::{
    hash::{BlockHash, BlockSize, SequenceHash, chain},
    index::{self, PrefixIndex},
    load::{Booking, Capacity, Claim, Thresholds},
    select::{
        Admission, Choice, Demand, Exclusion, Member, Mode, Phase, Pin, PinField, Refusal, RefusalKind,
        Scratch, Selector, Tuning,
        queue::{HOLD_BEYOND, Outlook, Wait, WaitReason},
    },
    slot::{Rank, Slot, WorkerId},
};
use std::{num::NonZeroUsize, time::Duration};

const BATCH: u64 = 1000;

fn member(index: u32, worker: u64) -> Member {
    Member {
        capacity: Capacity { kv_blocks: Some(100), batch_tokens: Some(BATCH) },
        ..Member::new(Slot { index, generation: 0 }, WorkerId(worker), Rank(index))
    }
}

struct Fleet {
    members: Vec<Member>,
    selector: Selector,
    scratch: Scratch,
    rng: Rng,
    now: Duration,
    bookings: Vec<Booking>,
}

impl Fleet {
    fn new(mode: Mode, tuning: Tuning, workers: u32) -> Self {
        Self {
            members: (0..workers).map(|index| member(index, u64::from(index))).collect(),
            selector: Selector::new(mode, tuning),
            scratch: Scratch::new(),
            rng: Rng::with_seed(1),
            now: Duration::from_secs(100),
            bookings: Vec::new(),
        }
    }

    /// Books work on a slot, whatever anybody thinks of it.
    fn load(&mut self, index: u32, prefill_tokens: u64, blocks: u64) -> &mut Self {
        let claim = Claim {
            prefill_tokens,
            prefill_work: prefill_tokens,
            first_token_seen: true,
            private_blocks: blocks,
            ..Claim::default()
        };
        let slot = Slot { index, generation: 0 };
        self.bookings.push(self.selector.loads().book(slot, &claim, self.now));
        self
    }

    fn admit(&mut self, demand: &Demand<'_>, hold_over: bool) -> Result<Admission, Refusal> {
        let (index, _writers) = PrefixIndex::new(NonZeroUsize::MIN);
        let mut found = index::Scratch::new();
        let overlaps = index.overlap(&[], &mut found);
        let Self { members, selector, scratch, rng, now, .. } = self;
        selector.admit_when_free(members, overlaps, demand, hold_over, scratch, *now, rng)
    }

    fn waits(&mut self, demand: &Demand<'_>) -> Option<Wait> {
        match self.admit(demand, false).unwrap() {
            Admission::Admitted(..) => None,
            Admission::Waits(wait) => Some(wait),
        }
    }

    fn admitted(&mut self, demand: &Demand<'_>) -> Choice {
        match self.admit(demand, false).unwrap() {
            Admission::Admitted(choice, booking) => {
                self.bookings.push(booking);
                choice
            }
            Admission::Waits(wait) => panic!("it waits: {wait:?}"),
        }
    }

    fn outlook(&mut self) -> Outlook {
        self.selector.outlook(&self.members, &mut self.scratch, self.now)
    }
}

fn demand(tokens: usize) -> Demand<'static> {
    Demand::new(tokens, BlockSize::new(16).unwrap(), &[])
}

fn pinned(worker: u64) -> Demand<'static> {
    let pin = Pin { worker: WorkerId(worker), rank: None, field: PinField::default() };
    Demand { pin: Some(pin), ..demand(10) }
}

fn threshold(factor: f64) -> Tuning {
    Tuning { queue_threshold: Some(factor), ..Tuning::default() }
}

fn hold() -> Tuning {
    Tuning { hold: Some(Duration::from_secs(5)), ..Tuning::default() }
}

#[test]
fn each_rule_of_the_threshold() {
    let untracked = Tuning { router_track_prefill_tokens: false, ..threshold(0.0) };
    let decode = Demand { phase: Phase::Decode, ..demand(10) };
    for (rule, mode, tuning, loads, request, waits) in [
        ("without a threshold nobody waits", Mode::Kv, Tuning::default(), [9 * BATCH; 2], demand(10), false),
        ("one rank below it will do", Mode::Kv, threshold(1.0), [9 * BATCH, 0], demand(10), false),
        ("what equals it is not above", Mode::Kv, threshold(1.0), [BATCH; 2], demand(10), false),
        ("all above", Mode::Kv, threshold(1.0), [BATCH + 1; 2], demand(10), true),
        ("zero waits for any token", Mode::Kv, threshold(0.0), [1; 2], demand(10), true),
        ("zero does not wait for none", Mode::Kv, threshold(0.0), [0; 2], demand(10), false),
        ("a pin asks its own worker, busy", Mode::Kv, threshold(1.0), [9 * BATCH, 0], pinned(0), true),
        ("a pin asks its own worker, free", Mode::Kv, threshold(1.0), [9 * BATCH, 0], pinned(1), false),
        ("a decode hop has no prefill", Mode::Kv, threshold(0.0), [1; 2], decode, false),
        ("what nobody counts nobody waits for", Mode::Kv, untracked, [1; 2], demand(10), false),
        ("other modes have no queue", Mode::LeastLoaded, threshold(0.0), [1; 2], demand(10), false),
    ] {
        let mut fleet = Fleet::new(mode, tuning, 2);
        fleet.load(0, loads[0], 0).load(1, loads[1], 0);
        let wait = fleet.waits(&request);
        assert_eq!(wait.map(|wait| wait.reason), waits.then_some(WaitReason::Threshold), "{rule}");
    }
}

#[test]
fn an_engine_whose_batch_nobody_stated_has_one_of_ten_million_tokens() {
    let mut fleet = Fleet::new(Mode::Kv, threshold(1.0), 1);
    fleet.members[0].capacity = Capacity::default();
    fleet.load(0, 10_000_000, 0);
    assert_eq!(fleet.waits(&demand(10)), None);
    fleet.load(0, 1, 0);
    assert!(fleet.waits(&demand(10)).is_some());
}

#[test]
fn who_may_not_be_chosen_says_nothing_of_the_threshold() {
    let mut fleet = Fleet::new(Mode::Kv, threshold(1.0), 2);
    fleet.load(0, 9 * BATCH, 0);
    fleet.members[1].exclusion = Some(Exclusion::Draining);
    assert!(fleet.waits(&demand(10)).is_some());
    fleet.members[0].exclusion = Some(Exclusion::Draining);
    assert!(fleet.outlook().free, "nobody is left to wait for");
    assert_eq!(fleet.admit(&demand(10), false).unwrap_err().kind(), RefusalKind::Unavailable);
}

#[test]
fn a_wait_says_how_long_it_is_likely_to_be() {
    let mut fleet = Fleet::new(Mode::Kv, threshold(1.0), 2);
    fleet.load(0, 3 * BATCH, 0).load(1, 2 * BATCH, 0);
    // 1000 tokens too many, at 10,000 a second, as long as nothing was seen.
    let wait = fleet.waits(&demand(160)).unwrap();
    assert_eq!((wait.expected.as_millis(), wait.prefill.uncached_tokens), (100, 160));
    assert!((wait.prefill.seconds - 416e-4).abs() < 1e-9, "{}", wait.prefill.seconds);
    let outlook = fleet.outlook();
    assert_eq!((outlook.free, outlook.at, outlook.expected.as_millis()), (false, None, 100));
    fleet.bookings.clear();
    assert!(fleet.outlook().free);
}

/// Prefill that takes an engine so long, where it does 10,000 tokens a second.
const fn lasting(time: Duration) -> u64 {
    (time.as_millis() * 10) as u64
}

#[test]
fn each_rule_of_the_hold() {
    let long = lasting(HOLD_BEYOND) + 100;
    let waits = |tuning: Tuning, loads: [u64; 2], request: &Demand<'_>| {
        let mut fleet = Fleet::new(Mode::Kv, tuning, 2);
        fleet.load(0, loads[0], 0).load(1, loads[1], 0);
        fleet.waits(request).map(|wait| wait.reason)
    };
    let both = Tuning { queue_threshold: Some(1.0), ..hold() };
    let decode = Demand { phase: Phase::Decode, ..demand(10) };
    for (rule, tuning, loads, request, expected) in [
        ("without a hold nobody waits", Tuning::default(), [long; 2], demand(10), None),
        ("the cheapest has little before it", hold(), [long, 0], demand(10), None),
        ("the cheapest has as much as is let be", hold(), [lasting(HOLD_BEYOND); 2], demand(10), None),
        ("the cheapest has more", hold(), [long; 2], demand(10), Some(WaitReason::Hold)),
        ("a pin can go nowhere else", hold(), [long; 2], pinned(0), None),
        ("a decode hop has no prefill", hold(), [long; 2], decode, None),
        (
            "the threshold goes first, if there is one",
            both,
            [long; 2],
            demand(10),
            Some(WaitReason::Threshold),
        ),
    ] {
        assert_eq!(waits(tuning, loads, &request), expected, "{rule}");
    }
}

#[test]
fn a_hold_that_is_over_binds_to_the_cheapest() {
    let mut fleet = Fleet::new(Mode::Kv, hold(), 2);
    fleet.load(0, 9000, 0).load(1, 5000, 0);
    let wait = fleet.waits(&demand(160)).unwrap();
    assert_eq!(wait.expected.as_millis(), 250);
    let Admission::Admitted(choice, _) = fleet.admit(&demand(160), true).unwrap() else { panic!("held") };
    assert_eq!(choice.slot.index, 1);
}

#[test]
fn time_alone_ends_the_wait_for_a_first_prefill() {
    let mut fleet = Fleet::new(Mode::Kv, hold(), 2);
    fleet.load(0, 9000, 0).load(1, 5000, 0);
    let at = fleet.outlook().at.unwrap();
    assert_eq!((at - fleet.now).as_millis(), 251);
    fleet.now = at;
    assert!(fleet.outlook().free);
    assert_eq!(fleet.admitted(&demand(160)).slot.index, 1);
}

#[test]
fn behind_a_second_prefill_only_a_first_token_ends_the_wait() {
    let mut fleet = Fleet::new(Mode::Kv, hold(), 1);
    fleet.load(0, 5000, 0).load(0, 5000, 0);
    assert_eq!((fleet.outlook().free, fleet.outlook().at), (false, None));
    fleet.now += Duration::from_millis(500);
    fleet.bookings[0].first_token(fleet.now);
    assert_eq!(fleet.outlook().at.map(|at| (at - fleet.now).as_millis()), Some(251));
}

#[test]
fn a_prompt_whose_beginning_is_being_computed_joins_it() {
    let hashes: Vec<_> = (0..400).map(BlockHash).collect();
    let mut sequence: Vec<SequenceHash> = Vec::new();
    chain(&hashes, &mut sequence);
    let request = Demand::new(sequence.len() * 16, BlockSize::new(16).unwrap(), &sequence);
    let mut fleet = Fleet::new(Mode::Kv, hold(), 2);
    let first = fleet.admitted(&request);
    fleet.load(1 - first.slot.index, 6400, 0);
    assert_eq!(fleet.waits(&demand(6400)).map(|wait| wait.reason), Some(WaitReason::Hold));
    assert_eq!(fleet.admitted(&request).slot, first.slot);
}

mod busy {
    use super::*;

    fn blocks(share: f64) -> Tuning {
        let busy = Thresholds { active_decode_blocks: Some(share), ..Thresholds::default() };
        Tuning { busy, ..Tuning::default() }
    }

    fn excluded(fleet: &Fleet) -> Vec<Option<Exclusion>> {
        fleet.scratch.rows().iter().map(|row| row.exclusion).collect()
    }

    #[test]
    fn who_is_over_a_threshold_is_not_chosen_in_any_mode() {
        for mode in Mode::ALL.into_iter().filter(|mode| *mode != Mode::Direct) {
            let mut fleet = Fleet::new(mode, blocks(0.5), 2);
            fleet.load(0, 0, 51);
            for _ in 0..3 {
                assert_eq!(fleet.admitted(&demand(1)).slot.index, 1, "{mode}");
            }
            assert_eq!(excluded(&fleet), [Some(Exclusion::Overloaded), None]);
        }
    }

    #[test]
    fn a_worker_is_over_it_when_all_of_its_ranks_are() {
        let mut fleet = Fleet::new(Mode::Kv, blocks(0.5), 4);
        for (member, worker) in fleet.members.iter_mut().zip([7, 7, 8, 8]) {
            member.worker = WorkerId(worker);
        }
        fleet.load(0, 0, 51).load(2, 0, 51).load(3, 0, 51);
        fleet.admitted(&demand(1));
        let expected = [None, None, Some(Exclusion::Overloaded), Some(Exclusion::Overloaded)];
        assert_eq!(excluded(&fleet), expected);
        assert!(fleet.scratch.rows()[0].busy, "it is shown all the same");
    }

    #[test]
    fn all_over_it_is_busy_and_not_unavailable() {
        let mut fleet = Fleet::new(Mode::RoundRobin, blocks(0.0), 2);
        fleet.load(0, 0, 1).load(1, 0, 1);
        fleet.members[1].exclusion = Some(Exclusion::Unroutable);
        let refusal = fleet.admit(&demand(1), false).unwrap_err();
        assert!(matches!(refusal, Refusal::AllBusy(_)));
        assert_eq!(refusal.kind(), RefusalKind::Busy);
        let refusal = fleet.admit(&pinned(0), false).unwrap_err();
        assert_eq!(refusal.kind(), RefusalKind::Busy, "{refusal}");
    }

    #[test]
    fn what_is_set_at_run_time_goes_before_the_tuning_and_can_be_taken_back() {
        let mut fleet = Fleet::new(Mode::LeastLoaded, blocks(0.5), 1);
        fleet.load(0, 0, 51);
        assert!(fleet.admit(&demand(1), false).is_err());
        fleet.selector.loads().set_thresholds(Some(Thresholds::default()));
        assert!(fleet.admit(&demand(1), false).is_ok());
        fleet.selector.loads().set_thresholds(None);
        assert!(fleet.admit(&demand(1), false).is_err());
    }

    #[test]
    fn busy_workers_are_nobody_to_wait_for() {
        let busy = Thresholds { active_prefill_tokens: Some(5000), ..Thresholds::default() };
        let mut fleet = Fleet::new(Mode::Kv, Tuning { busy, ..threshold(1.0) }, 1);
        fleet.load(0, 2000, 0);
        assert!(fleet.waits(&demand(10)).is_some());
        fleet.load(0, 4000, 0);
        assert_eq!(fleet.admit(&demand(10), false).unwrap_err().kind(), RefusalKind::Busy);
        assert!(fleet.outlook().free);
    }
}
