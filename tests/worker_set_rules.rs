//! What makes a worker set, who of it is admitted, and in which order; without a socket.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

use std::sync::Arc;

use kvroute::{
    fleet::{
        Fleet, IndexKey, OnConfigMismatch, RegistrationError, RouterConfig, SetState, SetView, StreamSource,
        StreamStatus, Streams, WorkerSpec, WorkerType,
    },
    index::IndexWriter,
    select::{Mode, Tuning},
    slot::{Slot, WorkerId},
};

/// Follows nothing.
struct Nowhere;

impl Streams for Nowhere {
    fn index_created(&self, _: &IndexKey, _: Vec<IndexWriter>) -> Result<(), String> {
        Ok(())
    }

    fn index_dropped(&self, _: &IndexKey) {}

    fn open(&self, _: &IndexKey, _: StreamSource, _: Arc<StreamStatus>) -> Result<(), String> {
        Ok(())
    }

    fn restarted(&self, _: Slot, _: u64) {}

    fn close(&self, _: &IndexKey, _: Slot) {}
}

fn fleet(policy: OnConfigMismatch) -> Fleet {
    Fleet::new(RouterConfig::default(), Box::new(Nowhere)).on_config_mismatch(policy)
}

fn spec(id: u64) -> WorkerSpec {
    WorkerSpec { id: Some(id), ..WorkerSpec::new(&format!("http://10.0.0.{id}:8000"), "m") }
}

/// A worker whose card asks for a temperature, by which cards differ.
fn asking(id: u64, router_temperature: f64) -> WorkerSpec {
    let tuning = Tuning { router_temperature, ..Tuning::default() };
    WorkerSpec { router_config: Some(RouterConfig { mode: Mode::Kv, tuning }), ..spec(id) }
}

fn only_set(fleet: &Fleet) -> Arc<SetView> {
    let view = fleet.view();
    let [set] = view.sets.as_slice() else { panic!("{} sets", view.sets.len()) };
    Arc::clone(set)
}

/// The ids of those who take requests, in order.
fn admitted(fleet: &Fleet) -> Vec<u64> {
    let (set, now) = (only_set(fleet), fleet.now_ms());
    let admitted = set.members.iter().filter(|member| set.exclusion(member, now).is_none());
    let mut ids: Vec<_> = admitted.map(|member| member.worker.id.0).collect();
    ids.sort_unstable();
    ids
}

#[test]
fn every_part_of_the_key_makes_a_set_of_its_own() {
    let fleet = fleet(OnConfigMismatch::Stop);
    for (id, other) in (1..).zip([
        spec(0),
        WorkerSpec { model: "other".into(), ..spec(0) },
        WorkerSpec { namespace: "other".into(), ..spec(0) },
        WorkerSpec { component: "other".into(), ..spec(0) },
        WorkerSpec { endpoint: "other".into(), ..spec(0) },
        WorkerSpec { model_type: "chat".parse().unwrap(), ..spec(0) },
        WorkerSpec { worker_type: WorkerType::Decode, ..spec(0) },
    ]) {
        // Each with a card that would stop a set that it shared.
        let other = WorkerSpec { id: Some(id), max_model_len: Some(id), ..other };
        fleet.register(other, None).unwrap();
        let view = fleet.view();
        assert_eq!(view.sets.len() as u64, id);
        assert!(view.sets.iter().all(|set| set.state() == SetState::Serving));
    }
    // One that is equal in all of them joins the first, and disagrees there.
    fleet.register(spec(90), None).unwrap();
    let view = fleet.view();
    assert_eq!(view.sets.len(), 7);
    assert_eq!(view.sets.iter().filter(|set| set.state() == SetState::Conflict).count(), 1);
}

/// Not on who represents it: a set keeps its configuration for as long as any of those who brought it is there.
#[test]
fn a_set_s_configuration_does_not_depend_on_who_of_its_members_stays() {
    for leaving in [[1, 2], [2, 1], [1, 3], [3, 2]] {
        let fleet = fleet(OnConfigMismatch::Stop);
        for id in 1..=3 {
            fleet.register(asking(id, 0.5), None).unwrap();
        }
        let before = only_set(&fleet);
        for id in leaving {
            assert!(fleet.remove(WorkerId(id)));
            let now = only_set(&fleet);
            assert!(Arc::ptr_eq(&now.config, &before.config) && Arc::ptr_eq(&now.selector, &before.selector));
            assert_eq!((now.source, now.admitted), (before.source, before.admitted));
        }
    }
}

#[test]
fn a_configuration_that_went_and_came_back_is_the_last_in_line() {
    let fleet = fleet(OnConfigMismatch::KeepFirst);
    for (id, temperature) in [(1, 0.1), (2, 0.2), (3, 0.3)] {
        fleet.register(asking(id, temperature), None).unwrap();
    }
    assert_eq!(admitted(&fleet), [1]);
    fleet.remove(WorkerId(1));
    assert_eq!(admitted(&fleet), [2]);
    // Back, it waits behind both.
    fleet.register(asking(1, 0.1), None).unwrap();
    assert_eq!(admitted(&fleet), [2]);
    fleet.remove(WorkerId(2));
    assert_eq!(admitted(&fleet), [3]);
    fleet.remove(WorkerId(3));
    assert_eq!(admitted(&fleet), [1]);
}

/// A newcomer does not go before those who were there, whatever it asks for, and those who join the incumbents do not
/// make them newer.
#[test]
fn the_order_of_admission_is_that_of_coming() {
    for swapped in [false, true] {
        let (first, second) = if swapped { (0.9, 0.1) } else { (0.1, 0.9) };
        let fleet = fleet(OnConfigMismatch::KeepFirst);
        fleet.register(asking(5, first), None).unwrap();
        fleet.register(asking(1, second), None).unwrap();
        fleet.register(asking(3, first), None).unwrap();
        assert_eq!(admitted(&fleet), [3, 5]);
        fleet.remove(WorkerId(5));
        assert_eq!(admitted(&fleet), [3]);
    }
}

#[test]
fn a_description_that_cannot_be_used_disturbs_nobody() {
    for policy in [OnConfigMismatch::Stop, OnConfigMismatch::KeepFirst] {
        let fleet = fleet(policy);
        fleet.register(spec(1), None).unwrap();
        let before = fleet.view().generation;
        for unusable in [
            WorkerSpec { block_size: 0, ..asking(2, 0.5) },
            WorkerSpec { url: "ftp://a:1".into(), ..asking(2, 0.5) },
            WorkerSpec { ranks: 0, ..asking(2, 0.5) },
        ] {
            assert!(matches!(fleet.register(unusable, None), Err(RegistrationError::Spec(_))));
        }
        // What an instance advertises is not changed in place either.
        let changed = asking(1, 0.5);
        assert!(matches!(fleet.register(changed, None), Err(RegistrationError::IdTaken { .. })));
        assert_eq!((fleet.view().generation, admitted(&fleet)), (before, vec![1]));
        assert_eq!(only_set(&fleet).cohorts.len(), 1);
    }
}
