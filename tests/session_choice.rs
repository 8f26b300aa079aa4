//! What a session's slot means for a choice, in every mode.

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
    hash::BlockSize,
    index::{self, PrefixIndex},
    load::Claim,
    select::{
        AffinityMode, Choice, CostModel, Demand, Exclusion, Member, Mode, Overrides, Phase, Pin, PinField,
        Refusal, Row, Scratch, Selector, Tie, Tuning, cost::Cost,
    },
    slot::{Rank, Slot, WorkerId},
};

const TOKENS: usize = 4_096;
const BLOCK: u32 = 16;

/// A set of three workers, each of one rank.
struct Set {
    selector: Selector,
    members: Vec<Member>,
    scratch: Scratch,
}

fn slot(index: u32) -> Slot {
    Slot { index, generation: 7 }
}

impl Set {
    fn new(mode: Mode, tuning: Tuning) -> Self {
        let members = (0..3).map(|index| Member::new(slot(index), WorkerId(index.into()), Rank(0)));
        Self { selector: Selector::new(mode, tuning), members: members.collect(), scratch: Scratch::new() }
    }

    /// The choice for `demand`; nothing is booked.
    fn choose(&mut self, demand: &Demand<'_>, seed: u64) -> Result<Choice, Refusal> {
        let (index, _writers) = PrefixIndex::new(NonZeroUsize::MIN);
        let mut lookup = index::Scratch::new();
        let overlaps = index.overlap(&[], &mut lookup);
        let mut rng = Rng::with_seed(seed);
        self.selector.explain(
            &self.members,
            overlaps,
            demand,
            &mut self.scratch,
            Duration::from_secs(1),
            &mut rng,
        )
    }

    fn row(&self, index: usize) -> &Row {
        &self.scratch.rows()[index]
    }
}

fn demand(mode: AffinityMode, bound: u32) -> Demand<'static> {
    let block_size = BlockSize::new(BLOCK).unwrap();
    let tie = Some(Tie { slot: slot(bound), mode });
    Demand { tie, ..Demand::new(TOKENS, block_size, &[]) }
}

#[test]
fn in_every_mode_a_session_goes_on_where_it_was() {
    for mode in Mode::ALL.into_iter().filter(|mode| *mode != Mode::Direct) {
        for affinity in AffinityMode::ALL {
            for bound in 0..3 {
                let mut set = Set::new(mode, Tuning::default());
                for seed in 0..16 {
                    let choice = set.choose(&demand(affinity, bound), seed).unwrap();
                    assert_eq!(choice.slot, slot(bound), "{mode}, {affinity}");
                    let others = (0..3).filter(|index| *index != bound as usize);
                    for other in others {
                        let expected = (affinity == AffinityMode::Hard).then_some(Exclusion::OtherSession);
                        assert_eq!(set.row(other).exclusion, expected, "{mode}, {affinity}");
                    }
                }
            }
        }
    }
}

/// Why the session's slot cannot be chosen, and what becomes of the request.
#[test]
fn a_session_whose_slot_takes_no_requests_goes_elsewhere_and_one_whose_slot_is_busy_waits() {
    let moves = [
        Exclusion::Unroutable,
        Exclusion::Draining,
        Exclusion::Fenced,
        Exclusion::ConflictingConfiguration,
        Exclusion::AlreadyTried,
        Exclusion::Retired,
    ];
    for mode in [Mode::Kv, Mode::RoundRobin, Mode::LeastLoaded] {
        for affinity in AffinityMode::ALL {
            for exclusion in moves {
                let mut set = Set::new(mode, Tuning::default());
                set.members[1].exclusion = Some(exclusion);
                let choice = set.choose(&demand(affinity, 1), 1).unwrap();
                assert_ne!(choice.slot, slot(1), "{mode}, {affinity}, {exclusion}");
            }
            let mut set = Set::new(mode, Tuning::default());
            set.members[1].exclusion = Some(Exclusion::Overloaded);
            let outcome = set.choose(&demand(affinity, 1), 1);
            match affinity {
                AffinityMode::Soft => assert_ne!(outcome.unwrap().slot, slot(1)),
                AffinityMode::Hard => assert!(matches!(outcome, Err(Refusal::AllBusy(_))), "{outcome:?}"),
            }
        }
    }
}

#[test]
fn a_successor_at_the_same_index_has_no_session() {
    for affinity in AffinityMode::ALL {
        let mut set = Set::new(Mode::LeastLoaded, Tuning::default());
        set.members[1].slot.generation += 1;
        let seen: Vec<_> =
            (0..64).map(|seed| set.choose(&demand(affinity, 1), seed).unwrap().slot.index).collect();
        assert!((0..3).all(|index| seen.contains(&index)), "{seen:?}");
        assert!((0..3).all(|index| set.row(index).tied.is_none()));
    }
}

#[test]
fn a_pin_that_contradicts_a_must_is_refused_and_wins_over_a_wish() {
    let pin = |worker| Some(Pin { worker: WorkerId(worker), rank: None, field: PinField::DecodeWorkerId });
    for mode in [Mode::Kv, Mode::RoundRobin, Mode::Direct] {
        let mut set = Set::new(mode, Tuning::default());
        let with = |affinity, worker| Demand { pin: pin(worker), ..demand(affinity, 1) };
        let refusal = set.choose(&with(AffinityMode::Hard, 2), 1).unwrap_err();
        let text = "nvext.decode_worker_id=2 contradicts the request's session, which is bound to worker 1";
        assert!(refusal.to_string().starts_with(text), "{refusal}");
        assert_eq!(set.choose(&with(AffinityMode::Hard, 1), 1).unwrap().slot, slot(1));
        assert_eq!(set.choose(&with(AffinityMode::Soft, 2), 1).unwrap().slot, slot(2));
        // A session whose slot takes nothing stands in no pin's way.
        set.members[1].exclusion = Some(Exclusion::Draining);
        assert_eq!(set.choose(&with(AffinityMode::Hard, 2), 1).unwrap().slot, slot(2));
    }
}

#[test]
fn a_session_takes_no_turn_of_the_round_robin() {
    let mut set = Set::new(Mode::RoundRobin, Tuning::default());
    let (index, _writers) = PrefixIndex::new(NonZeroUsize::MIN);
    let mut lookup = index::Scratch::new();
    let mut rng = Rng::with_seed(1);
    let mut admit = |set: &mut Set, demand: &Demand<'_>| {
        let overlaps = index.overlap(&[], &mut lookup);
        let Set { selector, members, scratch } = set;
        selector.admit(members, overlaps, demand, scratch, Duration::ZERO, &mut rng).unwrap().0.slot.index
    };
    let free = Demand { tie: None, ..demand(AffinityMode::Soft, 0) };
    assert_eq!(admit(&mut set, &free), 0);
    for affinity in AffinityMode::ALL {
        assert_eq!(admit(&mut set, &demand(affinity, 0)), 0);
    }
    assert_eq!((admit(&mut set, &free), admit(&mut set, &free)), (1, 2));
}

/// What a wish is worth: the prefill of half of the prompt, in the unit of the model.
#[test]
fn a_wish_is_worth_half_of_the_prompt_s_prefill() {
    let tracked = |cost_model, scale| Tuning { cost_model, prefill_load_scale: scale, ..Tuning::default() };
    let half = TOKENS as f64 / 2.0;
    for (tuning, overrides, expected) in [
        (tracked(CostModel::Time, 1.0), Overrides::default(), half * 1e-4),
        (tracked(CostModel::Time, 3.0), Overrides::default(), 3.0 * half * 1e-4),
        (tracked(CostModel::Blocks, 1.0), Overrides::default(), half / f64::from(BLOCK)),
        (tracked(CostModel::Blocks, 20.0), Overrides::default(), 20.0 * half / f64::from(BLOCK)),
        // Where there is no prefill it is context.
        (
            tracked(CostModel::Time, 3.0),
            Overrides { track_prefill_tokens: Some(false), ..Overrides::default() },
            0.02 * half * 1e-4,
        ),
        (
            tracked(CostModel::Blocks, 20.0),
            Overrides { track_prefill_tokens: Some(false), ..Overrides::default() },
            half / f64::from(BLOCK),
        ),
    ] {
        let mut set = Set::new(Mode::Kv, tuning);
        set.choose(&Demand { overrides, phase: Phase::Decode, ..demand(AffinityMode::Soft, 1) }, 1).unwrap();
        let cost = |index| set.row(index).cost.unwrap();
        let session = |index| match cost(index) {
            Cost::Time(cost) => cost.session,
            Cost::Blocks(cost) => cost.session,
        };
        assert!((session(1) - expected).abs() <= 1e-9 * expected, "{} is not {expected}", session(1));
        assert_eq!((session(0), session(2)), (0.0, 0.0));
        assert!((cost(0).total() - cost(1).total() - expected).abs() <= 1e-9 * expected.max(1.0));
        // A must has no price: there is nothing to compare with.
        set.choose(&Demand { overrides, ..demand(AffinityMode::Hard, 1) }, 1).unwrap();
        assert_eq!(set.row(1).tied, Some(AffinityMode::Hard));
    }
}

/// Prefill that waits at the session's slot, in prompts, and whether the session stays.
#[test]
fn a_much_better_slot_wins_over_a_wish_and_not_over_a_must() {
    for cost_model in CostModel::ALL {
        for (waiting, stays) in [(0.0, true), (0.4, true), (0.6, false), (3.0, false)] {
            let mut set = Set::new(Mode::Kv, Tuning { cost_model, ..Tuning::default() });
            let tokens = (waiting * TOKENS as f64) as u64;
            let claim = Claim {
                prefill_tokens: tokens,
                prefill_work: tokens,
                first_token_seen: true,
                ..Claim::default()
            };
            let now = Duration::from_secs(1);
            let _booking = (tokens > 0).then(|| set.selector.loads().book(slot(1), &claim, now));
            let soft = set.choose(&demand(AffinityMode::Soft, 1), 1).unwrap();
            assert_eq!(soft.slot == slot(1), stays, "{cost_model}, {waiting}");
            assert_eq!(set.choose(&demand(AffinityMode::Hard, 1), 1).unwrap().slot, slot(1));
        }
    }
}
