//! Workers that take nothing new.

use kvroute::{
    fleet::{OnConfigMismatch, RouterConfig, WorkerSpec},
    select::{Exclusion, Mode},
    slot::WorkerId,
};

use crate::recorder::{HOUR, admitted, exclusion, fleet, fleet_with, mode, name, spec};

#[test]
fn a_drained_worker_stays_a_member_and_takes_nothing() {
    let (fleet, _) = fleet();
    let id = fleet.register(spec(None, "m", 2), None).unwrap();
    assert!(fleet.drain(id));
    let (view, now) = (fleet.view(), fleet.now_ms());
    assert_eq!((view.sets[0].members.len(), view.sets[0].routable(now)), (2, 0));
    assert_eq!(view.worker(id).unwrap().exclusion(now), Some(Exclusion::Draining));
}

/// Who is drained by its id is drained until its successor comes: a heartbeat, or the same worker that registers again,
/// changes nothing.
#[test]
fn a_drain_ends_with_the_incarnation_that_was_drained() {
    let (fleet, recorder) = fleet();
    let started = |ms| WorkerSpec { registered_ms: ms, ..spec(Some(1), "m", 2) };
    let drains = || exclusion(&fleet, 1) == Some(Exclusion::Draining);
    let slots = || fleet.view().members().map(|(_, member)| name(member.slot)).collect::<Vec<_>>();
    let id = fleet.register(started(Some(10)), Some(HOUR)).unwrap();
    // An agent that was started again beside the same engine, before the drain.
    fleet.register(started(Some(20)), Some(HOUR)).unwrap();
    assert!(fleet.drain(id) && drains());
    let before = slots();
    for same in [Some(20), None] {
        fleet.register(started(same), Some(HOUR)).unwrap();
        assert!(fleet.heartbeat(id) && drains(), "{same:?}");
    }
    assert_eq!(slots(), before);
    fleet.register(started(Some(30)), Some(HOUR)).unwrap();
    assert!(!drains());
    assert!(
        slots().iter().all(|slot| !before.contains(slot)),
        "nothing of what was drained is its successor's"
    );
    assert_eq!(recorder.0.state.lock().closed.len(), 2);
    assert_eq!(fleet.view().worker(id).unwrap().registered_ms, 30);
}

/// The successor comes with its own time, so an old configuration that was drained out does not take its place back.
#[test]
fn a_drained_worker_s_successor_queues_behind_those_who_came_meanwhile() {
    let (fleet, _) = fleet_with(RouterConfig::default(), OnConfigMismatch::KeepFirst);
    let old = |ms| WorkerSpec { registered_ms: Some(ms), ..spec(Some(1), "m", 1) };
    let new = WorkerSpec { router_config: mode(Mode::Kv), registered_ms: Some(20), ..spec(Some(2), "m", 1) };
    fleet.register(old(10), None).unwrap();
    fleet.register(new, None).unwrap();
    assert_eq!(admitted(&fleet), [1]);
    fleet.drain(WorkerId(1));
    assert_eq!(admitted(&fleet), [2]);
    fleet.register(old(30), None).unwrap();
    assert_eq!(admitted(&fleet), [2]);
    assert_eq!(exclusion(&fleet, 1), Some(Exclusion::ConflictingConfiguration));
}
