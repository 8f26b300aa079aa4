//! Sets whose members' cards differ, under both policies.

use std::time::{Duration, Instant};

use kvroute::{
    fleet::{OnConfigMismatch, RouterConfig, SetState, WorkerSpec},
    load::{Claim, SlotLoad},
    select::{Exclusion, Mode, Tuning},
    slot::WorkerId,
};

use crate::recorder::{HOUR, State, admitted, exclusion, fleet, fleet_with, mode, only_set, spec};

#[test]
fn replicas_must_agree_in_effect_not_in_words() {
    let inherited = RouterConfig { mode: Mode::Kv, tuning: Tuning::default() };
    let (fleet, recorder) = fleet_with(inherited.clone(), OnConfigMismatch::Stop);
    fleet.register(spec(Some(1), "m", 1), None).unwrap();
    let says_the_same = WorkerSpec { router_config: Some(inherited), ..spec(Some(2), "m", 1) };
    fleet.register(says_the_same, None).unwrap();
    assert_eq!((only_set(&fleet.view()).cohorts.len(), admitted(&fleet)), (1, vec![1, 2]));

    let differs = WorkerSpec { router_config: mode(Mode::Random), block_size: 32, ..spec(Some(3), "m", 1) };
    fleet.register(differs.clone(), None).unwrap();
    let view = fleet.view();
    let set = only_set(&view);
    assert_eq!((set.state(), set.cohorts.len()), (SetState::Conflict, 2));
    assert_eq!(set.differing_fields(), ["block_size", "router_config.router_mode"]);
    assert_eq!((admitted(&fleet), view.models()), (vec![], vec!["m"]), "known, though nobody serves it");
    for id in 1..4 {
        assert_eq!(exclusion(&fleet, id), Some(Exclusion::ConflictingConfiguration));
    }
    // Whoever waits is kept up to date, each in the index of its own hash rule.
    let counts = |state: &State| (state.open.len(), state.indexes.len());
    assert_eq!(counts(&recorder.0.state.lock()), (3, 2));

    let elsewhere = WorkerSpec { id: Some(4), endpoint: "other".into(), ..differs };
    fleet.register(elsewhere, None).unwrap();
    assert_eq!(fleet.view().route("m").unwrap().sets.len(), 2);
    assert_eq!(admitted(&fleet), [4], "another set has no part in it");
    fleet.remove(WorkerId(4));

    fleet.remove(WorkerId(1));
    assert!(admitted(&fleet).is_empty());
    fleet.remove(WorkerId(2));
    let view = fleet.view();
    let set = only_set(&view);
    assert_eq!((admitted(&fleet), set.state(), set.block_size.get()), (vec![3], SetState::Serving, 32));
    assert_eq!((set.config.mode, set.selector.mode()), (Mode::Random, Mode::Random));
    assert!(set.differing_fields().is_empty());
}

#[test]
fn a_conflict_ends_when_a_lease_does() {
    let (fleet, _) = fleet();
    fleet.register(spec(Some(1), "m", 2), None).unwrap();
    let other = WorkerSpec { max_model_len: Some(4096), ..spec(Some(2), "m", 1) };
    fleet.register(other, Some(HOUR)).unwrap();
    assert!(admitted(&fleet).is_empty());
    fleet.expire_leases_at(Instant::now() + HOUR * 2);
    assert_eq!((admitted(&fleet), only_set(&fleet.view()).max_model_len), (vec![1, 1], None));
}

#[test]
fn a_worker_that_drains_holds_nobody_up() {
    for policy in [OnConfigMismatch::Stop, OnConfigMismatch::KeepFirst] {
        let (fleet, _) = fleet_with(RouterConfig::default(), policy);
        fleet.register(spec(Some(1), "m", 1), None).unwrap();
        fleet.register(WorkerSpec { router_config: mode(Mode::Kv), ..spec(Some(2), "m", 1) }, None).unwrap();
        fleet.drain(WorkerId(1));
        assert_eq!(admitted(&fleet), [2]);
        assert_eq!(exclusion(&fleet, 1), Some(Exclusion::Draining));
        fleet.drain(WorkerId(2));
        assert_eq!((admitted(&fleet), only_set(&fleet.view()).state()), (vec![], SetState::Serving));
    }
}

#[test]
fn keep_first_changes_over_in_one_step_with_the_loads_of_before() {
    let (fleet, _) = fleet_with(RouterConfig::default(), OnConfigMismatch::KeepFirst);
    let new = |id| WorkerSpec { router_config: mode(Mode::Kv), ..spec(Some(id), "m", 1) };
    for id in 1..3 {
        fleet.register(spec(Some(id), "m", 1), None).unwrap();
    }
    for id in 3..5 {
        fleet.register(new(id), None).unwrap();
        assert_eq!(admitted(&fleet), [1, 2]);
        assert_eq!(exclusion(&fleet, id), Some(Exclusion::ConflictingConfiguration));
    }
    assert_eq!(only_set(&fleet.view()).differing_fields(), ["router_config.router_mode"]);
    let slot_of = |id| fleet.view().members().find(|(_, m)| m.worker.id.0 == id).unwrap().1.slot;
    // A request that is still at a worker that waits, from a time when it did not.
    let claim = Claim { prefill_tokens: 7, ..Claim::default() };
    let booking = only_set(&fleet.view()).selector.loads().book(slot_of(3), &claim, Duration::ZERO);
    fleet.remove(WorkerId(1));
    assert_eq!(admitted(&fleet), [2]);
    let (before, mut changes) = (fleet.view().generation, fleet.changes());
    fleet.remove(WorkerId(2));
    assert!(changes.has_changed().unwrap() && *changes.borrow_and_update() == before + 1);
    assert_eq!(
        (admitted(&fleet), fleet.view().generation),
        (vec![3, 4], before + 1),
        "there was a view between"
    );
    let view = fleet.view();
    let set = only_set(&view);
    assert_eq!((set.config.mode, set.selector.loads().get(slot_of(3)).prefill_tokens), (Mode::Kv, 7));
    drop(booking);
    assert_eq!(set.selector.loads().total(), SlotLoad::default());
    // Whoever comes back with the old configuration comes after those who are there.
    fleet.register(spec(Some(1), "m", 1), None).unwrap();
    assert_eq!(admitted(&fleet), [3, 4]);
}

/// What several frontends hear in different orders they decide alike, if the cards say when they were rolled out.
#[test]
fn registration_times_on_cards_make_frontends_agree() {
    let old = |id| WorkerSpec { registered_ms: Some(1_000), ..spec(Some(id), "m", 1) };
    let new = |id| WorkerSpec {
        registered_ms: Some(2_000),
        router_config: mode(Mode::Kv),
        ..spec(Some(id), "m", 1)
    };
    let specs = [old(1), old(2), new(3), new(4)];
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
        let (fleet, _) = fleet_with(RouterConfig::default(), OnConfigMismatch::KeepFirst);
        for position in order {
            fleet.register(specs[position].clone(), None).unwrap();
        }
        let mut ids = admitted(&fleet);
        ids.sort_unstable();
        assert_eq!(ids, [1, 2], "{order:?}");
        assert_eq!(only_set(&fleet.view()).cohorts[0].registered_ms, 1_000);
        // The first of them leaves: the cohort keeps its place.
        fleet.remove(WorkerId(1));
        assert_eq!(admitted(&fleet), [2]);
    }
}
