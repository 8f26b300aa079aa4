use std::collections::BTreeSet;

use fastrand::Rng;

use super::*;
use crate::simulate::{Agents, Bursts, Change, EngineModel};

fn agents(seed: u64) -> Workload {
    Agents::default().workload(2.0, 25.0, &mut Rng::with_seed(seed))
}

fn outcome(policy: &str, engines: usize, seed: u64) -> Outcome {
    run(&agents(seed), &policy.parse().unwrap(), &Setting::of(engines), seed).unwrap()
}

#[test]
fn a_run_repeats_exactly_and_serves_every_request() {
    for policy in
        ["time", "blocks", "random", "power-of-two", "smg", "llm-d", "pooled", "dynamo-tuned", "time-hold"]
    {
        let one = outcome(policy, 4, 1);
        assert!(one.served.len() > 70 && one.unserved + one.broken == 0, "{policy}: {}", one.served.len());
        assert_eq!(one, outcome(policy, 4, 1), "{policy}");
        for served in &one.served {
            assert!(served.first_token >= served.ideal * 0.999_999, "{policy}: {served:?}");
            assert!(served.total >= served.first_token, "{policy}: {served:?}");
            assert!(served.cached_tokens < served.prompt_tokens, "{policy}: {served:?}");
        }
    }
}

#[test]
fn the_index_holds_what_the_engines_hold_once_all_is_over() {
    let workload = Bursts::default().among(&Agents::default(), 3.0, 30.0, &mut Rng::with_seed(5));
    let model = EngineModel { cache_tokens: 60_000, ..EngineModel::default() };
    let change = |at, what| Change { at, engine: 1, what };
    let changes = vec![change(10.0, Happening::Dies), change(15.0, Happening::Comes)];
    for changes in [vec![], changes] {
        let setting = Setting { model, changes, ..Setting::of(2) };
        let policy = "time".parse().unwrap();
        let mut run = Run::new(&workload, &policy, &setting, BlockSize::new(128).unwrap(), 5);
        let mut stored = [BTreeSet::new(), BTreeSet::new()];
        while let Some((now, what)) = run.agenda.next() {
            run.now = now;
            match &what {
                What::Events { engine, life, events } if run.units[*engine].life == *life => {
                    for event in events {
                        match event {
                            Event::Stored(of) => stored[*engine].extend(of.blocks.iter().map(|b| b.engine.0)),
                            Event::Removed(of) => of.hashes.iter().for_each(|hash| {
                                assert!(stored[*engine].remove(&hash.0), "removed what was not there");
                            }),
                            Event::Cleared(_) => {}
                        }
                    }
                }
                What::Gone { engine } => stored[*engine].clear(),
                _ => {}
            }
            run.happen(what);
        }
        assert_eq!(run.router.held(), stored.map(|names| names.len() as u64));
        assert_eq!(run.router.load(), crate::load::SlotLoad::default());
    }
}

#[test]
fn prefixes_are_found_where_they_are_cached() {
    let hit = |policy| outcome(policy, 4, 2).figures().hit_rate;
    for policy in ["time", "smg", "llm-d"] {
        assert!(hit(policy) > hit("round-robin") + 0.1, "{policy} {} {}", hit(policy), hit("round-robin"));
    }
    assert!(hit("pooled") >= hit("time"));
}

#[test]
fn what_fits_no_engine_is_not_served() {
    let jobs = [(0.0, Job::alone(500_000, 1, 1, 128)), (1.0, Job::alone(500, 1, 2, 128))];
    let workload = Workload::recorded(128, jobs);
    let outcome = run(&workload, &"time".parse().unwrap(), &Setting::of(1), 1).unwrap();
    assert_eq!((outcome.served.len(), outcome.unserved), (1, 1));
}

#[test]
fn what_comes_before_the_warm_up_is_over_does_not_count() {
    let jobs = (0_u32..10).map(|at| (f64::from(at), Job::alone(1280, 5, at.into(), 128)));
    let workload = Workload::recorded(128, jobs);
    let setting = Setting { warm_up: 0.7, ..Setting::of(2) };
    let outcome = run(&workload, &"round-robin".parse().unwrap(), &setting, 1).unwrap();
    assert_eq!((outcome.served.len(), outcome.prefilled.iter().sum::<u64>()), (3, 3 * 1280));
}

#[test]
fn an_engine_that_dies_loses_its_answers_and_others_take_what_had_not_begun() {
    // One request in its prefill of about a second and a half, one that decodes for many.
    let jobs = [(0.0, Job::alone(200, 2_000, 1, 128)), (1.0, Job::alone(16_000, 3, 2, 128))];
    let workload = Workload::recorded(128, jobs);
    let dies = |at| Change { at, engine: 0, what: Happening::Dies };
    let policy = "time".parse().unwrap();
    let late = Change { at: 1.2, engine: 1, what: Happening::Comes };
    let setting = Setting { changes: vec![dies(1.5), late], ..Setting::of(2) };
    let outcome = run(&workload, &policy, &setting, 1).unwrap();
    assert_eq!((outcome.served.len(), outcome.broken, outcome.unserved), (1, 1, 0));
    assert!(outcome.served[0].first_token > 0.5 + outcome.served[0].ideal, "it began again");
    assert_eq!(outcome.prefilled[1], 16_000);
    // With nobody left there is nobody to serve.
    let setting = Setting { changes: vec![dies(1.5)], ..Setting::of(1) };
    let outcome = run(&workload, &policy, &setting, 1).unwrap();
    assert_eq!((outcome.served.len(), outcome.broken, outcome.unserved), (0, 1, 1));
}

#[test]
fn a_throttled_engine_gets_less() {
    let setting = |changes| Setting { changes, ..Setting::of(2) };
    let slow = Change { at: 0.0, engine: 0, what: Happening::Speed(0.2) };
    let workload = Agents::default().workload(0.6, 200.0, &mut Rng::with_seed(3));
    let share = |changes| {
        let of = run(&workload, &"time".parse().unwrap(), &setting(changes), 3).unwrap().prefilled;
        of[0] as f64 / of.iter().sum::<u64>() as f64
    };
    assert!(share(vec![slow]) < 0.7 * share(vec![]), "{} {}", share(vec![slow]), share(vec![]));
}

/// 200 equal prompts that nobody has seen come within two seconds to 16 engines that serve agents.
#[test]
fn a_burst_of_equal_new_prompts_is_spread_over_the_fleet() {
    let bursts = Bursts { bursts: 1, ..Bursts::COLD };
    let mut medians = [0.0; 2];
    for seed in 1..=3 {
        let workload = bursts.among(&Agents::default(), 3.2, 30.0, &mut Rng::with_seed(seed));
        let of_the_burst = |policy: &str| {
            let mut outcome = run(&workload, &policy.parse().unwrap(), &Setting::of(16), seed).unwrap();
            outcome.served.retain(|served| served.prompt_tokens == bursts.shared_tokens);
            outcome
        };
        let outcomes = ["time", "blocks"].map(of_the_burst);
        for (median, outcome) in medians.iter_mut().zip(&outcomes) {
            *median += outcome.figures().first_token.p50 / 3.0;
        }
        let mut taken = [0; 16];
        outcomes[0].served.iter().for_each(|served| taken[served.engine] += 1);
        assert!(taken.iter().sum::<u32>() >= 200, "{taken:?}");
        assert!(taken.iter().all(|&taken| taken * 16 <= 3 * 200), "seed {seed}: {taken:?}");
    }
    assert!(medians[0] <= 0.6 * medians[1], "{medians:?}");
}
