//! Prefill and decode sets beside each other.

use std::{
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, Instant},
};

use kvroute::{
    fleet::{
        ActivationError, Ambiguity, ConfigSource, OnConfigMismatch, PrefillPool, RouterConfig, WorkerSpec,
        WorkerType,
    },
    index::Scratch,
    select::{self, ApproximateCache, ApproximatePolicy, Demand, Mode, Tuning},
    slot::WorkerId,
};

use crate::recorder::{fleet, fleet_with, mode, spec};

/// A pair is one prefill set and one decode set of a (model, namespace), and is there exactly as long as both are.
#[test]
fn a_pair_comes_and_goes_with_its_sets() {
    let (fleet, _) = fleet();
    let join = |id, role, namespace: &str, component: &str| {
        let (namespace, component) = (namespace.to_owned(), component.to_owned());
        let spec = WorkerSpec { worker_type: role, namespace, component, ..spec(Some(id), "m", 2) };
        fleet.register(spec, None).unwrap()
    };
    let state = |namespace: &str| {
        let view = fleet.view();
        let mut sets = view.sets.iter().filter(|set| set.key.namespace == namespace);
        sets.find(|set| set.key.worker_type == WorkerType::Decode).unwrap().prefill.clone()
    };
    let paired = |namespace: &str| match state(namespace) {
        PrefillPool::Active(prefill) => prefill,
        other => panic!("{other:?}"),
    };
    let decode = join(1, WorkerType::Decode, "a", "c");
    join(2, WorkerType::Decode, "b", "c");
    join(3, WorkerType::Aggregated, "a", "c");
    assert_eq!(state("a").name(), "none");

    let prefill = join(4, WorkerType::Prefill, "a", "c");
    assert!(!fleet.view().route("m").unwrap().sets.contains(&3), "no name stands for a prefill set");
    let before = paired("a");
    assert_eq!((before.members.len(), state("b").name()), (2, "none"));
    join(5, WorkerType::Prefill, "a", "c");
    let grown = paired("a");
    assert!(Arc::ptr_eq(&before.selector, &grown.selector), "a pair that stays keeps its turn");
    assert_eq!(grown.members.len(), 4);

    let second = join(6, WorkerType::Prefill, "a", "other");
    assert!(matches!(state("a"), PrefillPool::Unavailable(Ambiguity { prefill: 2, decode: 1 })));
    fleet.remove(second);
    assert_eq!(paired("a").members.len(), 4);
    join(7, WorkerType::Decode, "a", "other");
    assert!(matches!(state("a"), PrefillPool::Unavailable(Ambiguity { prefill: 1, decode: 2 })));
    fleet.remove(WorkerId(7));
    paired("a");
    fleet.remove(prefill);
    fleet.remove(WorkerId(5));
    assert_eq!(state("a").name(), "none");
    assert!(fleet.view().worker(decode).is_some());
}

#[test]
fn what_a_prefill_hop_books_is_returned_though_its_set_was_paired_anew() {
    let (fleet, _) = fleet();
    let of_role = |id, role| WorkerSpec { worker_type: role, ..spec(Some(id), "m", 1) };
    fleet.register(of_role(1, WorkerType::Prefill), None).unwrap();
    let prefill =
        || fleet.view().sets.iter().find(|s| s.key.worker_type == WorkerType::Prefill).unwrap().clone();
    let (alone, slot) = (prefill(), prefill().members[0].slot);
    let booked = {
        let members: Vec<_> = alone.members.iter().map(|member| member.member(0)).collect();
        let (mut lookup, mut rows) = (Scratch::new(), select::Scratch::new());
        let overlaps = alone.index.overlap(&[], &mut lookup);
        let demand = Demand::new(16, alone.block_size, &[]);
        let admitted = alone.selector.admit(
            &members,
            overlaps,
            &demand,
            &mut rows,
            Duration::ZERO,
            &mut fastrand::Rng::with_seed(1),
        );
        admitted.unwrap().1
    };
    fleet.register(of_role(2, WorkerType::Decode), None).unwrap();
    let paired = prefill();
    assert!(!Arc::ptr_eq(&alone.selector, &paired.selector));
    assert_eq!(paired.selector.loads().get(slot).requests, 1, "the loads are the set's own");
    drop(booked);
    assert_eq!(paired.selector.loads().get(slot).requests, 0);
}

/// A card that cannot be read counts for as long as it was announced, and no longer.
#[test]
fn an_unreadable_prefill_card_is_known_for_a_while() {
    let (fleet, _) = fleet();
    fleet.register(WorkerSpec { worker_type: WorkerType::Decode, ..spec(None, "m", 1) }, None).unwrap();
    let state = || fleet.view().sets[0].prefill.clone();
    let namespace = WorkerSpec::new("http://a:1", "m").namespace;
    fleet.note_unreadable_prefill("other", &namespace, "http://a:1", Duration::from_secs(5));
    assert!(matches!(state(), PrefillPool::None));
    fleet.note_unreadable_prefill("m", &namespace, "http://a:1", Duration::from_secs(5));
    assert!(matches!(state(), PrefillPool::Pending(ActivationError::AllUnreadable { published: 1 })));
    fleet.expire_leases_at(Instant::now() + Duration::from_secs(6));
    assert!(matches!(state(), PrefillPool::None));
}

/// Whatever its cards advertise, some settings are the frontend's alone.
#[test]
fn what_no_card_can_say_holds_for_a_prefill_set_that_advertises_a_configuration_too() {
    let frontend = |ratio: u32, policy| {
        let accelerator_to_cpu_ratio = NonZeroU32::new(ratio).unwrap();
        let approximate_cache = ApproximateCache { policy, ..ApproximateCache::default() };
        RouterConfig {
            mode: Mode::DeviceAwareWeighted,
            tuning: Tuning { accelerator_to_cpu_ratio, approximate_cache, ..Tuning::default() },
        }
    };
    let (fleet, _) = fleet_with(frontend(3, ApproximatePolicy::Lru), OnConfigMismatch::Stop);
    for (id, role) in [(1, WorkerType::Decode), (2, WorkerType::Prefill)] {
        let spec = WorkerSpec { worker_type: role, ..spec(Some(id), "m", 1) };
        let router_config = mode(Mode::DeviceAwareWeighted).filter(|_| role == WorkerType::Prefill);
        fleet.register(WorkerSpec { router_config, ..spec }, None).unwrap();
    }
    let resolved = || {
        let view = fleet.view();
        let decode = view.sets.iter().find(|set| set.key.worker_type == WorkerType::Decode).unwrap();
        let PrefillPool::Active(prefill) = &decode.prefill else { panic!("{:?}", decode.prefill) };
        assert_eq!(prefill.source, ConfigSource::Card);
        let tuning = prefill.config.tuning;
        (tuning.accelerator_to_cpu_ratio.get(), tuning.approximate_cache.policy)
    };
    assert_eq!(resolved(), (3, ApproximatePolicy::Lru));
    fleet.reconfigure(frontend(5, ApproximatePolicy::Ttl), false).unwrap();
    assert_eq!(resolved(), (5, ApproximatePolicy::Ttl));
}
