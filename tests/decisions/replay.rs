//! What was recorded is made again bit for bit.

use std::collections::BTreeSet;

use kvroute::{
    decisions::{Decision, Verdict, replay},
    select::{CostModel, Exclusion, Mode, Phase},
};

use crate::recorded_fleet::{Fleet, read};

#[test]
fn ten_thousand_decisions_are_written_read_and_made_again() {
    let fleet = Fleet::record(11, 10_000);
    let log = fleet.log();
    let (decisions, outcomes) = read(&log);
    assert_eq!(decisions.len(), 10_000);
    assert!(decisions == fleet.decisions && outcomes == fleet.outcomes, "what is read is what was written");
    for decision in &decisions {
        assert_eq!(replay(decision).difference(decision), None);
    }
    covers_everything(&decisions);
}

/// The log is worth replaying: whatever a decision can depend on is in it.
fn covers_everything(decisions: &[Decision]) {
    let has = |what: &str, is: &dyn Fn(&Decision) -> bool| {
        let count = decisions.iter().filter(|decision| is(decision)).count();
        assert!(count >= 50, "{what}: {count} decisions");
    };
    let chosen = |decision: &Decision| matches!(decision.verdict, Verdict::Chosen { .. });
    for mode in Mode::ALL {
        has(mode.name(), &|decision| decision.rule.mode == mode && chosen(decision));
    }
    for model in CostModel::ALL {
        let of = |decision: &Decision| {
            decision.rule.mode == Mode::Kv && decision.rule.tuning.cost_model == model && chosen(decision)
        };
        has(model.name(), &of);
        has("temperature", &|decision| of(decision) && decision.rule.tuning.router_temperature > 0.0);
        has("device weights", &|decision| {
            let told = |weight: f64| weight < 1.0;
            of(decision) && decision.rows.iter().any(|row| row.device.is_some_and(|terms| told(terms.weight)))
        });
        has("speeds", &|decision| of(decision) && decision.rows.iter().any(|row| row.speed.seen().1 > 0.0));
        has("slower tiers", &|decision| of(decision) && decision.rows.iter().any(|row| row.overlap.host > 0));
        has("shared blocks", &|decision| of(decision) && decision.rows.iter().any(|row| row.carriers > 1));
    }
    for phase in [Phase::Aggregated, Phase::Prefill, Phase::Decode] {
        has(phase.name(), &|decision| decision.question.phase == phase && chosen(decision));
    }
    for exclusion in Exclusion::ALL.into_iter().filter(|exclusion| *exclusion != Exclusion::Retired) {
        has(exclusion.name(), &|decision| decision.rows.iter().any(|row| row.exclusion == Some(exclusion)));
    }
    has("overrides", &|decision| decision.question.overrides != kvroute::select::Overrides::default());
    has("sessions", &|decision| chosen(decision) && decision.rows.iter().any(|row| row.tied.is_some()));
    has("guessed caches", &|decision| decision.rows.iter().any(|row| row.expected > row.carried));
    has("pins", &|decision| decision.question.pin.is_some());
    has("refusals", &|decision| !chosen(decision));
    has("withheld overlaps", &|decision| decision.rows.iter().any(|row| row.withheld.is_some()));
    has("successors", &|decision| decision.rows.iter().any(|row| row.slot.generation > 0));
    let generations: BTreeSet<_> = decisions.iter().map(|decision| decision.generation).collect();
    assert!(generations.len() > 100, "{} generations", generations.len());
}

#[test]
fn a_decision_that_comes_out_otherwise_is_told_with_its_terms() {
    let fleet = Fleet::record(12, 400);
    let priced = fleet.decisions.iter().filter(|decision| {
        matches!(decision.verdict, Verdict::Chosen { cost: Some(_), .. })
            && decision.rule.tuning.cost_model == CostModel::Time
            && decision.rule.tuning.router_temperature == 0.0
            && decision.question.pin.is_none()
            && decision.rows.iter().filter(|row| row.is_eligible()).count() > 1
            && decision.question.overrides == kvroute::select::Overrides::default()
    });
    let mut told = 0;
    for decision in priced {
        let Verdict::Chosen { row, cost } = decision.verdict else { continue };
        // The worker is busier than it was by a second of prefill for each token that waits.
        let mut busier = decision.clone();
        busier.rows[row].backlog.requests += 1;
        busier.rows[row].backlog.work += 1_000_000;
        let difference = replay(&busier).difference(&busier).unwrap();
        assert!(difference.terms.iter().any(|(term, ..)| *term == "queue"), "{difference}");
        assert!(difference.terms.iter().all(|(term, ..)| *term != "decay"), "{difference}");
        assert!(difference.recorded != difference.made, "{difference}");
        let text = difference.to_string();
        assert!(text.contains(&decision.request) && text.contains("total was"), "{text}");

        // One whose recorded cost has one bit that the arithmetic does not give.
        let mut bent = decision.clone();
        let Some(kvroute::select::cost::Cost::Time(mut cost)) = cost else { continue };
        cost.own_prefill = f64::from_bits(cost.own_prefill.to_bits() + 1);
        bent.verdict = Verdict::Chosen { row, cost: Some(kvroute::select::cost::Cost::Time(cost)) };
        let difference = replay(&bent).difference(&bent).unwrap();
        assert_eq!(difference.terms.len(), 1, "{difference}");
        assert_eq!(difference.terms[0].0, "own_prefill");
        told += 1;
    }
    assert!(told > 10);
}
