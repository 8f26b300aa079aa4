//! Settings of cards and frontend that exclude each other.

use std::time::Duration;

use kvroute::{
    fleet::{
        ActivationError, OnConfigMismatch, PrefillPool, ReconfigureError, RegistrationError, RouterConfig,
        WorkerSpec, WorkerType,
    },
    select::{Mode, Tuning, TuningError, queue::QueuePolicy},
    slot::WorkerId,
};

use crate::recorder::{admitted, fleet_with, only_set, spec};

const WSPT: TuningError = TuningError::TwoOrders { policy: QueuePolicy::Wspt };

fn frontend(hold: Option<Duration>) -> RouterConfig {
    RouterConfig { mode: Mode::Kv, tuning: Tuning { hold, ..Tuning::default() } }
}

fn with_policy(queue_policy: QueuePolicy) -> Option<RouterConfig> {
    Some(RouterConfig { mode: Mode::Kv, tuning: Tuning { queue_policy, ..Tuning::default() } })
}

#[test]
fn a_worker_whose_queue_policy_stands_beside_the_frontend_s_hold_is_refused() {
    let (fleet, recorder) = fleet_with(frontend(Some(Duration::from_secs(2))), OnConfigMismatch::Stop);
    let asks = WorkerSpec { router_config: with_policy(QueuePolicy::Wspt), ..spec(Some(1), "m", 1) };
    let error = fleet.register(asks.clone(), None).unwrap_err();
    assert!(matches!(error, RegistrationError::Settings(WSPT)), "{error}");
    let text = error.to_string();
    assert!(text.contains("router_queue_policy=wspt") && text.contains("router_hold = 0"), "{text}");
    assert!(
        fleet.view().sets.is_empty() && recorder.0.state.lock().indexes.is_empty(),
        "nothing is left of it"
    );

    fleet.register(WorkerSpec { router_hold: Some(0.0), ..asks }, None).unwrap();
    assert_eq!(admitted(&fleet), [1]);
    assert_eq!(only_set(&fleet.view()).config.tuning.validate(), Ok(()));
}

#[test]
fn where_neither_has_an_effect_they_stand_beside_each_other() {
    let (fleet, _) = fleet_with(frontend(Some(Duration::from_secs(2))), OnConfigMismatch::Stop);
    let by_turns =
        with_policy(QueuePolicy::Wspt).map(|config| RouterConfig { mode: Mode::RoundRobin, ..config });
    fleet.register(WorkerSpec { router_config: by_turns, ..spec(Some(1), "m", 1) }, None).unwrap();
    assert_eq!(admitted(&fleet), [1]);
}

/// A waiting cohort may be the next to serve, so it counts under either policy.
#[test]
fn a_hold_that_comes_to_stand_beside_a_card_s_queue_policy_is_not_taken() {
    for policy in [OnConfigMismatch::Stop, OnConfigMismatch::KeepFirst] {
        let (fleet, _) = fleet_with(frontend(None), policy);
        if policy == OnConfigMismatch::KeepFirst {
            fleet.register(spec(Some(1), "m", 1), None).unwrap();
        }
        let asks = WorkerSpec { router_config: with_policy(QueuePolicy::Wspt), ..spec(Some(2), "m", 1) };
        fleet.register(asks, None).unwrap();
        let before = fleet.view().generation;
        let held = frontend(Some(Duration::from_secs(2)));
        let error = fleet.reconfigure(held.clone(), false).unwrap_err();
        assert!(matches!(error, ReconfigureError::Settings { error: WSPT, .. }), "{error}");
        assert_eq!((fleet.view().generation, fleet.view().frontend.generation), (before, 1));

        assert!(fleet.remove(WorkerId(2)));
        assert_eq!(fleet.reconfigure(held, false).unwrap().generation, 2);
    }
}

#[test]
fn a_prefill_card_s_hold_beside_its_decode_set_s_queue_policy_makes_no_pair() {
    let (fleet, _) = fleet_with(frontend(None), OnConfigMismatch::Stop);
    let of_role = |id, worker_type| WorkerSpec { worker_type, ..spec(Some(id), "m", 1) };
    let decode = of_role(1, WorkerType::Decode);
    fleet.register(WorkerSpec { router_config: with_policy(QueuePolicy::Wspt), ..decode }, None).unwrap();
    let pool = || fleet.view().sets[0].prefill.clone();
    let prefill = WorkerSpec { router_hold: Some(2.0), ..of_role(2, WorkerType::Prefill) };
    let id = fleet.register(prefill.clone(), None).unwrap();
    assert!(matches!(pool(), PrefillPool::Pending(ActivationError::Settings(WSPT))), "{:?}", pool());

    fleet.remove(id);
    let own = WorkerSpec { router_config: with_policy(QueuePolicy::Fcfs), ..prefill };
    fleet.register(own, None).unwrap();
    assert!(matches!(pool(), PrefillPool::Active(_)), "{:?}", pool());
}
