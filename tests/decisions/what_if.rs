//! Recorded decisions under other settings, on examples that can be worked out by hand.

use std::{sync::Arc, time::Duration};

use kvroute::{
    decisions::{Comparison, Decision, Question, Rule, Verdict, replay, what_if},
    device::Speed,
    hash::BlockSize,
    index::Overlap,
    load::{Backlog, SlotLoad},
    select::{CostModel, Demand, Member, Mode, Row, Tuning},
    slot::{Rank, Slot, WorkerId},
};

use crate::recorded_fleet::Fleet;

const BLOCK: u32 = 16;

/// A prompt of ten blocks, which worker 1 has on its GPU and worker 2 has not; worker 1 uses `busy` blocks.
fn decision(tuning: Tuning, busy: u64) -> Decision {
    let block_size = BlockSize::new(BLOCK).unwrap();
    let demand = Demand::new(160, block_size, &[]);
    let row = |index: u32, gpu: u32, blocks: u64| {
        let member = Member::new(Slot { index, generation: 0 }, WorkerId(u64::from(index) + 1), Rank(0));
        let mut row = Row {
            overlap: Overlap { gpu, ..Overlap::default() },
            load: SlotLoad { requests: 0, prefill_tokens: 0, decode_blocks: blocks },
            new_blocks: 10,
            backlog: Backlog::default(),
            speed: Speed::default(),
            ..Row::new(&member)
        };
        row.revalue(&demand, &tuning);
        row
    };
    let rule = Rule {
        worker_set: "set".to_owned(),
        model: "m".to_owned(),
        fingerprint: None,
        block_size,
        mode: Mode::Kv,
        tuning,
    };
    let mut decision = Decision {
        number: 0,
        request: "r".to_owned(),
        at_ms: 0,
        generation: 1,
        config_generation: 1,
        rule: Arc::new(rule),
        question: Question::of(&demand),
        turn: 0,
        now: Duration::ZERO,
        seed: 7,
        rows: vec![row(0, 10, busy), row(1, 0, 0)],
        verdict: Verdict::Refused { reason: String::new() },
    };
    decision.verdict = replay(&decision).verdict();
    decision
}

fn asked(decision: &Decision, mode: Mode, tuning: Tuning) -> Comparison {
    let mut comparison = Comparison::default();
    what_if(&mut comparison, decision, mode, &tuning);
    comparison
}

fn blocks() -> Tuning {
    Tuning { cost_model: CostModel::Blocks, ..Tuning::default() }
}

fn row(decision: &Decision) -> usize {
    let Verdict::Chosen { row, .. } = decision.verdict else { panic!("refused") };
    row
}

#[test]
fn another_credit_changes_the_choice_and_says_what_it_would_save() {
    // As recorded a cached block is worth nothing: worker 1 costs 10 to prefill and 12 + 10 in use, worker 2 10 and 10.
    let recorded = decision(Tuning { overlap_score_credit: 0.0, ..blocks() }, 12);
    assert_eq!(row(&recorded), 1);
    // At full worth worker 1 would cost 0 and 22 against 10 and 10; the prefill weighed three times, 22 against 40.
    assert_eq!(asked(&recorded, Mode::Kv, blocks()).changed, 0);
    let other = asked(&recorded, Mode::Kv, Tuning { prefill_load_scale: 3.0, ..blocks() });
    assert_eq!((other.decisions, other.changed, other.refused), (1, 1, 0));
    assert_eq!((other.by_other.blocks.decisions, other.by_other.blocks.sum), (1, 18.0));
    assert_eq!((other.by_recorded.blocks.decisions, other.by_recorded.blocks.sum), (1, -12.0));
    assert_eq!(other.by_recorded.time.decisions + other.by_other.time.decisions, 0);
    assert_eq!(other.first_token.decisions, 0, "blocks say nothing of seconds");
}

#[test]
fn seconds_are_those_of_the_model_that_counts_in_them() {
    // In blocks, with nothing for the cache, worker 2 is the cheaper one.
    let recorded = decision(Tuning { overlap_score_credit: 0.0, ..blocks() }, 12);
    let other = asked(&recorded, Mode::Kv, Tuning::default());
    assert_eq!(other.changed, 1);
    assert_eq!((other.by_recorded.blocks.decisions, other.by_recorded.blocks.sum), (1, -12.0));
    // A token takes 0.1 ms where nothing was learned, and worker 1 has all but one of 160.
    let seconds = 1e-4 * f64::from(160 - 1);
    let near = |actual: f64, expected: f64| assert!((actual - expected).abs() < 1e-12, "{actual}");
    near(other.first_token.sum, seconds);
    // The cost doubles a prefill that nobody shares, and reads 12 blocks more of context at a fiftieth.
    near(other.by_other.time.sum, 2.0 * seconds - 0.02 * 1e-4 * 12.0 * 16.0);
}

#[test]
fn what_is_cached_in_host_memory_is_valued_anew() {
    let mut recorded = decision(blocks(), 4);
    let tuning = Tuning { host_cache_hit_weight: 0.0, ..blocks() };
    recorded.rows[0].overlap = Overlap { host: 10, ..Overlap::default() };
    recorded.rule = Arc::new(Rule { tuning, ..Rule::clone(&recorded.rule) });
    let demand = recorded.question.demand(recorded.rule.block_size);
    recorded.rows[0].revalue(&demand, &tuning);
    recorded.verdict = replay(&recorded).verdict();
    assert_eq!(row(&recorded), 1);
    // Worker 1 has a credit of 9 for 10 blocks of prefill, and 14 in use; worker 2 has 10 and 10.
    let other = asked(&recorded, Mode::Kv, Tuning { host_cache_hit_weight: 0.9, ..blocks() });
    assert_eq!((other.changed, other.by_other.blocks.sum), (1, 20.0 - 15.0));
}

#[test]
fn a_mode_that_prices_nothing_is_asked_by_the_recorded_model_alone() {
    let recorded = decision(Tuning::default(), 0);
    assert_eq!(row(&recorded), 0);
    let mut numbered = recorded.clone();
    // Round robin goes by the decision's number, so that 1 is the second row's turn.
    numbered.number = 1;
    let other = asked(&numbered, Mode::RoundRobin, Tuning::default());
    assert_eq!(other.changed, 1);
    assert!(other.by_recorded.time.sum < 0.0 && other.first_token.sum < 0.0);
    assert_eq!(other.by_other.time.decisions, 0);
}

#[test]
fn the_recorded_settings_change_nothing() {
    let fleet = Fleet::record(31, 2_000);
    let mut comparison = Comparison::default();
    for decision in &fleet.decisions {
        let Decision { rule, .. } = decision;
        if rule.mode != Mode::RoundRobin {
            what_if(&mut comparison, decision, rule.mode, &rule.tuning);
        }
    }
    assert!(comparison.decisions > 1_500 && comparison.refused > 0, "{comparison:?}");
    assert_eq!(comparison.changed, 0);
}
