//! Workers come and go: their slots, streams and views, without a socket.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock, Weak},
    time::{Duration, Instant},
};

use kvroute::{
    fleet::{
        ActivationError, Ambiguity, Fleet, FleetView, IndexKey, OnConfigMismatch, PrefillPool,
        RegistrationError, RouterConfig, SetState, SetView, SpecError, StreamSource, StreamState,
        StreamStatus, Streams, WorkerSpec, WorkerType,
    },
    hash::BlockSize,
    index::{IndexWriter, PrefixIndex, Scratch},
    select::{self, Demand, Exclusion, Mode, Refusal, Tuning},
    slot::{Slot, WorkerId},
};
use parking_lot::Mutex;
use proptest::prelude::*;

/// Notes what the fleet asks for, and checks that it asks for it in a sensible order.
#[derive(Clone, Default)]
struct Recorder(Arc<Notes>);

#[derive(Default)]
struct Notes {
    fleet: OnceLock<Weak<Fleet>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    indexes: Vec<IndexKey>,
    open: BTreeMap<(u32, u32), (IndexKey, Arc<StreamStatus>)>,
    /// Every stream ever closed that had been open.
    closed: Vec<(u32, u32)>,
    /// Every slot that `close` was called for.
    ended: BTreeSet<(u32, u32)>,
    /// The ranks whose streams do not open.
    broken: BTreeSet<u32>,
}

fn name(slot: Slot) -> (u32, u32) {
    (slot.index, slot.generation)
}

impl Streams for Recorder {
    fn index_created(&self, key: &IndexKey, writers: Vec<IndexWriter>) {
        assert_eq!(writers.len(), 1);
        let indexes = &mut self.0.state.lock().indexes;
        assert!(!indexes.contains(key), "an index of {key:?} is there already");
        indexes.push(key.clone());
    }

    fn index_dropped(&self, key: &IndexKey) {
        let mut state = self.0.state.lock();
        assert!(state.open.values().all(|(opened, _)| opened != key), "an index goes before its streams");
        let position = state.indexes.iter().position(|known| known == key);
        state.indexes.remove(position.expect("an index that nobody made"));
    }

    fn open(&self, key: &IndexKey, source: StreamSource, status: Arc<StreamStatus>) -> Result<(), String> {
        let mut state = self.0.state.lock();
        assert!(state.indexes.contains(key), "a stream without its index");
        assert!(!state.ended.contains(&name(source.slot)), "slot {} comes back to life", source.slot);
        if state.broken.contains(&source.rank.0) {
            return Err(format!("rank {} is broken", source.rank));
        }
        let sharing = state.open.keys().find(|open| open.0 == source.slot.index);
        assert_eq!(sharing, None, "slot {} is taken", source.slot);
        state.open.insert(name(source.slot), (key.clone(), status));
        Ok(())
    }

    fn close(&self, key: &IndexKey, slot: Slot) {
        if let Some(fleet) = self.0.fleet.get().and_then(Weak::upgrade) {
            let view = fleet.view();
            assert!(view.members().all(|(_, member)| member.slot != slot), "closed while in the view");
        }
        let mut state = self.0.state.lock();
        assert!(state.ended.insert(name(slot)), "slot {slot} closed twice");
        if let Some((opened, _)) = state.open.remove(&name(slot)) {
            assert_eq!(&opened, key);
            state.closed.push(name(slot));
        }
    }
}

fn fleet_with(config: RouterConfig, policy: OnConfigMismatch) -> (Arc<Fleet>, Recorder) {
    let recorder = Recorder::default();
    let fleet = Fleet::new(config, Box::new(recorder.clone())).on_config_mismatch(policy);
    let fleet = Arc::new(fleet);
    recorder.0.fleet.set(Arc::downgrade(&fleet)).unwrap();
    (fleet, recorder)
}

fn fleet() -> (Arc<Fleet>, Recorder) {
    fleet_with(RouterConfig::default(), OnConfigMismatch::Stop)
}

fn spec(id: Option<u64>, model: &str, ranks: u32) -> WorkerSpec {
    WorkerSpec {
        id,
        ranks,
        kv_events_endpoint: Some("tcp://*:5557".into()),
        ..WorkerSpec::new("http://10.0.0.1:8000", model)
    }
}

fn slots(fleet: &Fleet) -> Vec<(u32, u32)> {
    fleet.view().members().map(|(_, member)| name(member.slot)).collect()
}

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn a_worker_s_ranks_come_with_slots_and_streams_and_go_with_them() {
    let (fleet, recorder) = fleet();
    let id = fleet.register(spec(None, "m", 3), None).unwrap();
    assert_eq!(slots(&fleet), [(0, 0), (1, 0), (2, 0)]);
    assert_eq!(recorder.0.state.lock().open.len(), 3);
    let view = fleet.view();
    assert!(view.members().all(|(_, member)| member.status.state() == StreamState::Unproven));
    assert_eq!(view.worker(id).unwrap().spec.id, Some(id.0));

    assert!(fleet.remove(id));
    assert!(!fleet.remove(id) && !fleet.heartbeat(id) && !fleet.drain(id));
    assert!(fleet.view().sets.is_empty() && fleet.view().route("m").is_none());
    assert!(fleet.view().generation > view.generation);
    assert!(view.members().all(|(_, member)| member.status.state() == StreamState::Absent));
    assert_eq!(recorder.0.state.lock().closed, [(0, 0), (1, 0), (2, 0)]);

    fleet.register(spec(None, "m", 1), None).unwrap();
    assert_eq!(slots(&fleet), [(0, 1)], "the index returns under a new generation");
    assert_eq!(recorder.0.state.lock().indexes.len(), 1, "a model keeps its index");
}

#[test]
fn a_worker_without_events_has_no_stream_and_still_ends_its_slot() {
    let (fleet, recorder) = fleet();
    let id = fleet.register(WorkerSpec::new("http://10.0.0.1:8000", "m"), None).unwrap();
    let status = fleet.view().members().next().unwrap().1.status.state();
    assert_eq!((status, recorder.0.state.lock().open.len()), (StreamState::Absent, 0));
    fleet.remove(id);
    assert!(recorder.0.state.lock().ended.contains(&(0, 0)));
}

#[test]
fn a_rank_whose_stream_does_not_open_takes_the_whole_worker_back() {
    let (fleet, recorder) = fleet();
    recorder.0.state.lock().broken.insert(2);
    let error = fleet.register(spec(None, "m", 4), None).unwrap_err().to_string();
    assert!(error.contains("kv_events_endpoint") && error.contains("rank 2 is broken"), "{error}");
    assert!(fleet.view().sets.is_empty(), "nothing was ever published");
    assert_eq!(recorder.0.state.lock().closed, [(0, 0), (1, 0)]);

    recorder.0.state.lock().broken.clear();
    fleet.register(spec(None, "m", 4), None).unwrap();
    let generations: Vec<_> = slots(&fleet).into_iter().map(|(_, generation)| generation).collect();
    assert_eq!(generations, [1, 1, 1, 0], "slots that were given out once are of a new generation");
}

#[test]
fn a_request_that_took_an_older_view_cannot_be_placed_on_who_left() {
    let (fleet, _) = fleet();
    let id = fleet.register(spec(Some(7), "m", 1), None).unwrap();
    let view = fleet.view();
    fleet.remove(id);
    fleet.register(spec(Some(8), "m", 1), None).unwrap();

    let set = &view.sets[0];
    let (index, _) = PrefixIndex::new(std::num::NonZeroUsize::MIN);
    let (mut members, mut lookup, mut scratch) = (Vec::new(), Scratch::new(), select::Scratch::new());
    set.gather(fleet.now_ms(), &mut members);
    let demand = Demand::new(100, BlockSize::new(16).unwrap(), &[]);
    let mut rng = fastrand::Rng::with_seed(1);
    let overlaps = index.overlap(&[], &mut lookup);
    let refusal =
        set.selector.admit(&members, overlaps, &demand, &mut scratch, Duration::ZERO, &mut rng).unwrap_err();
    let Refusal::AllExcluded(counts) = refusal else { panic!("{refusal}") };
    assert_eq!(counts.get(Exclusion::Retired), 1);
}

#[test]
fn an_id_belongs_to_one_description() {
    let (fleet, recorder) = fleet();
    let given = fleet.register(spec(None, "m", 1), Some(HOUR)).unwrap();
    let again = spec(Some(given.0), "m", 1);
    assert_eq!(fleet.register(again.clone(), Some(HOUR)).unwrap(), given, "told its id, it renews under it");
    assert_eq!(recorder.0.state.lock().open.len(), 1);
    let later = WorkerSpec { registered_ms: Some(u64::MAX), ..again.clone() };
    let came = || fleet.view().worker(given).unwrap().registered_ms;
    let before = came();
    assert_eq!(fleet.register(later, Some(HOUR)).unwrap(), given, "started again, it is the same worker");
    assert_eq!(came(), before);
    let other = WorkerSpec { url: "http://10.0.0.2:8000".into(), ..again };
    let error = fleet.register(other, None).unwrap_err();
    assert!(
        matches!(&error, RegistrationError::IdTaken { id, url } if *id == given && url.contains("10.0.0.1"))
    );

    let chosen = fleet.register(spec(Some(given.0 + 1), "m", 1), None).unwrap();
    let next = fleet.register(spec(None, "m", 1), None).unwrap();
    assert!(next != given && next != chosen, "an id that somebody chose is not given out");
}

#[test]
fn leases_run_out_unless_renewed_and_follow_the_last_registration() {
    let (fleet, _) = fleet();
    let start = Instant::now();
    let short = fleet.register(spec(Some(1), "m", 1), Some(HOUR)).unwrap();
    let long = fleet.register(spec(Some(2), "m", 1), Some(HOUR)).unwrap();
    let kept = fleet.register(spec(Some(3), "m", 1), None).unwrap();
    fleet.register(spec(Some(2), "m", 1), Some(HOUR * 5)).unwrap();
    fleet.register(spec(Some(3), "m", 1), Some(HOUR)).unwrap();
    assert!(fleet.heartbeat(short) && fleet.heartbeat(long) && fleet.heartbeat(kept));
    assert!(!fleet.any_lease_over());
    assert_eq!(fleet.expire_leases_at(start + HOUR * 2), [short]);
    assert_eq!(fleet.expire_leases_at(start + HOUR * 6), [long]);
    assert_eq!(fleet.expire_leases_at(start + HOUR * 1000), [], "what a file says stays");
    assert!(!fleet.heartbeat(short) && fleet.heartbeat(kept));
}

fn mode(mode: Mode) -> Option<RouterConfig> {
    Some(RouterConfig { mode, tuning: Tuning::default() })
}

fn only_set(view: &FleetView) -> &Arc<SetView> {
    assert_eq!(view.sets.len(), 1);
    &view.sets[0]
}

/// The workers that take requests now.
fn admitted(fleet: &Fleet) -> Vec<u64> {
    let (view, now) = (fleet.view(), fleet.now_ms());
    let members = view.members().filter(|(set, member)| set.exclusion(member, now).is_none());
    members.map(|(_, member)| member.worker.id.0).collect()
}

/// Why a worker takes no requests now.
fn exclusion(fleet: &Fleet, id: u64) -> Option<Exclusion> {
    let (view, now) = (fleet.view(), fleet.now_ms());
    let (set, member) = view.members().find(|(_, member)| member.worker.id.0 == id).unwrap();
    set.exclusion(member, now)
}

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
    let claim = kvroute::load::Claim { prefill_tokens: 7, ..kvroute::load::Claim::default() };
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
    assert_eq!(set.selector.loads().total(), kvroute::load::SlotLoad::default());
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

#[test]
fn an_adapter_is_a_model_of_its_own_and_a_name_stands_for_one_thing() {
    let (fleet, _) = fleet();
    let with = |id, model: &str, endpoint: &str, adapters: &[&str]| WorkerSpec {
        endpoint: endpoint.into(),
        lora_adapters: adapters.iter().map(|&name| name.to_owned()).collect(),
        ..spec(Some(id), model, 1)
    };
    fleet.register(with(1, "base", "a", &["sql", "poet"]), None).unwrap();
    fleet.register(with(2, "base", "a", &["poet", "sql"]), None).expect("their order says nothing");
    fleet.register(with(3, "base", "b", &["sql"]), None).unwrap();
    let view = fleet.view();
    assert_eq!(view.models(), ["base", "poet", "sql"]);
    let route = |name| view.route(name).map(|route| (route.sets.len(), route.lora.as_deref()));
    assert_eq!(route("base"), Some((2, None)));
    assert_eq!(route("sql"), Some((2, Some("sql"))));
    assert_eq!(route("poet"), Some((1, Some("poet"))));

    // Names of whoever waits are taken, too; in a conflict they are known, so that it can be named.
    fleet.register(with(4, "base", "a", &["coder"]), None).unwrap();
    assert_eq!(fleet.view().models(), ["base", "coder", "poet", "sql"]);
    for (model, adapters) in
        [("sql", &[][..]), ("other", &["base"][..]), ("other", &["sql"][..]), ("coder", &[][..])]
    {
        let error = fleet.register(with(9, model, "c", adapters), None).unwrap_err();
        assert!(matches!(error, RegistrationError::NameTaken { .. }), "{model} {adapters:?}: {error}");
    }
    let own = fleet.register(with(9, "other", "c", &["other"]), None).unwrap_err();
    assert!(matches!(own, RegistrationError::Spec(SpecError::Adapter(_))), "{own}");
}

#[test]
fn encode_workers_are_refused() {
    let (fleet, _) = fleet();
    let encode = WorkerSpec { worker_type: WorkerType::Encode, ..spec(None, "m", 1) };
    let error = fleet.register(encode, None).unwrap_err();
    assert!(error.to_string().contains("encode"), "{error}");
}

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

#[test]
fn an_inhibited_worker_is_back_after_a_few_seconds() {
    let (fleet, _) = fleet();
    let id = fleet.register(spec(None, "m", 1), None).unwrap();
    let view = fleet.view();
    let worker = view.worker(id).unwrap();
    fleet.inhibit(worker);
    let now = fleet.now_ms();
    assert_eq!(worker.exclusion(now), Some(Exclusion::Unroutable));
    assert_eq!(worker.exclusion(now + 5_000), None);
}

#[test]
fn indexes_of_models_that_are_gone_do_not_pile_up() {
    let (fleet, recorder) = fleet();
    let stays = fleet.register(spec(None, "stays", 1), None).unwrap();
    for model in 0..200 {
        let id = fleet.register(spec(None, &format!("m{model}"), 1), None).unwrap();
        fleet.remove(id);
        assert!(recorder.0.state.lock().indexes.len() <= 33);
    }
    assert!(recorder.0.state.lock().indexes.iter().any(|key| key.model == "stays"));
    assert!(fleet.remove(stays));
}

/// One thing that may happen to a fleet.
#[derive(Clone, Debug)]
enum Step {
    Register {
        id: Option<u64>,
        of: About,
        lease_hours: Option<u32>,
        broken: Option<u32>,
    },
    Heartbeat(u64),
    Drain(u64),
    Remove(u64),
    /// The clock stands at half past this hour.
    Expire(u32),
}

/// What a worker says of itself.
#[derive(Clone, Copy, PartialEq, Debug)]
struct About {
    model: u8,
    endpoint: u8,
    ranks: u32,
    /// One of [`CARDS`] cards; the first two are equal in effect.
    card: u8,
    registered_ms: Option<u64>,
}

const CARDS: u8 = 4;

impl About {
    fn spec(self, id: Option<u64>) -> WorkerSpec {
        let spec = WorkerSpec {
            endpoint: format!("e{}", self.endpoint),
            registered_ms: self.registered_ms,
            ..spec(id, &format!("m{}", self.model), self.ranks)
        };
        match self.card {
            0 => spec,
            1 => WorkerSpec { router_config: mode(RouterConfig::default().mode), ..spec },
            2 => WorkerSpec { router_config: mode(Mode::Kv), ..spec },
            _ => WorkerSpec { block_size: 32, ..spec },
        }
    }

    fn set(self) -> (String, String) {
        (format!("m{}", self.model), format!("e{}", self.endpoint))
    }

    /// Whether it is the same worker, though perhaps started at another time.
    fn is(self, other: Self) -> bool {
        Self { registered_ms: other.registered_ms, ..self } == other
    }

    /// Equal for cards that are equal in effect.
    fn cohort(self) -> u8 {
        self.card.max(1)
    }
}

fn step() -> impl Strategy<Value = Step> {
    let id = 1..6_u64;
    let about = (0..2_u8, 0..2_u8, 1..4_u32, 0..CARDS, prop::option::weighted(0.5, 0..3_u64));
    let about = about.prop_map(|(model, endpoint, ranks, card, registered_ms)| About {
        model,
        endpoint,
        ranks,
        card,
        registered_ms,
    });
    let register = (
        prop::option::weighted(0.7, id.clone()),
        about,
        prop::option::weighted(0.6, 1..5_u32),
        prop::option::weighted(0.2, 0..3_u32),
    );
    let register =
        register.prop_map(|(id, of, lease_hours, broken)| Step::Register { id, of, lease_hours, broken });
    prop_oneof![
        5 => register,
        1 => id.clone().prop_map(Step::Heartbeat),
        1 => id.clone().prop_map(Step::Drain),
        2 => id.prop_map(Step::Remove),
        1 => (0..5_u32).prop_map(Step::Expire),
    ]
}

/// A worker as the model knows it.
struct Known {
    about: About,
    lease_hours: Option<u32>,
    draining: bool,
    /// When it was started, as it said last.
    started_ms: Option<u64>,
}

/// What a fleet is, said as plainly as possible.
#[derive(Default)]
struct Model {
    workers: BTreeMap<u64, Known>,
    /// When each cohort of each set began; times that the cards do not say lie beyond all that they do.
    began: BTreeMap<((String, String), u8), u64>,
    arrivals: u64,
    /// The most slots that were ever in use at once.
    peak: usize,
}

impl Model {
    fn join(&mut self, id: u64, about: About, lease_hours: Option<u32>) -> bool {
        self.arrivals += 1;
        let time = about.registered_ms.unwrap_or(1_000 + self.arrivals);
        let began = self.began.entry((about.set(), about.cohort())).or_insert(time);
        *began = time.min(*began);
        let started_ms = about.registered_ms;
        self.workers.insert(id, Known { about, lease_hours, draining: false, started_ms }).is_none()
    }

    fn retain(&mut self, stays: impl Fn(u64, &Known) -> bool) -> Vec<u64> {
        let gone = self.workers.extract_if(.., |id, known| !stays(*id, known));
        let gone = gone.map(|(id, _)| id).collect();
        let present: BTreeSet<_> =
            self.workers.values().map(|known| (known.about.set(), known.about.cohort())).collect();
        self.began.retain(|cohort, _| present.contains(cohort));
        gone
    }

    /// Who should be in the view: model, endpoint, worker, rank.
    fn members(&self) -> BTreeSet<(String, String, u64, u32)> {
        let ranks = |(&id, known): (&u64, &Known)| {
            let (model, endpoint) = known.about.set();
            (0..known.about.ranks).map(move |rank| (model.clone(), endpoint.clone(), id, rank))
        };
        self.workers.iter().flat_map(ranks).collect()
    }

    /// Who should take requests in the set of that key. Of cohorts that began together `name` decides.
    fn admitted<N: Ord>(
        &self,
        set: &(String, String),
        policy: OnConfigMismatch,
        name: impl Fn(u8) -> N,
    ) -> Option<u8> {
        let here = || self.began.keys().filter(|(of, _)| of == set).map(|&(_, cohort)| cohort);
        let stays = |cohort: &u8| {
            let mut workers = self.workers.values();
            workers
                .any(|known| !known.draining && known.about.set() == *set && known.about.cohort() == *cohort)
        };
        let staying: Vec<_> = here().filter(stays).collect();
        if policy == OnConfigMismatch::Stop && staying.len() > 1 {
            return None;
        }
        let from = if staying.is_empty() { here().collect() } else { staying };
        from.into_iter().min_by_key(|&cohort| (self.began[&(set.clone(), cohort)], name(cohort)))
    }
}

fn check(
    fleet: &Fleet,
    recorder: &Recorder,
    model: &Model,
    policy: OnConfigMismatch,
) -> Result<(), TestCaseError> {
    let view = fleet.view();
    let members: BTreeSet<_> = view
        .members()
        .map(|(set, member)| {
            (set.key.model.clone(), set.key.endpoint.clone(), member.worker.id.0, member.rank.0)
        })
        .collect();
    prop_assert_eq!(members, model.members());
    let slots: Vec<_> = view.members().map(|(_, member)| name(member.slot)).collect();
    let distinct: BTreeSet<_> = slots.iter().copied().collect();
    prop_assert_eq!(distinct.len(), slots.len(), "a slot twice");
    let highest = slots.iter().map(|&(index, _)| index).max();
    prop_assert!(highest.is_none_or(|index| (index as usize) < model.peak), "free indices are not reused");
    let state = recorder.0.state.lock();
    let open: BTreeSet<_> = state.open.keys().copied().collect();
    prop_assert_eq!(open, distinct, "streams are open for the members and for nobody else");
    prop_assert_eq!(view.sets.iter().filter(|set| set.members.is_empty()).count(), 0);
    let served: BTreeSet<_> = model.workers.values().map(|known| known.about.set().0).collect();
    prop_assert_eq!(view.models(), served.iter().map(String::as_str).collect::<Vec<_>>());
    for set in &view.sets {
        check_set(fleet, model, policy, set)?;
    }
    Ok(())
}

fn check_set(
    fleet: &Fleet,
    model: &Model,
    policy: OnConfigMismatch,
    set: &SetView,
) -> Result<(), TestCaseError> {
    let key = (set.key.model.clone(), set.key.endpoint.clone());
    let cohort_of = |id: u64| model.workers[&id].about.cohort();
    let fingerprint = |cohort: u8| {
        let mut members = set.members.iter();
        members.find(|member| cohort_of(member.worker.id.0) == cohort).unwrap().cohort.fingerprint
    };
    let expected = model.admitted(&key, policy, fingerprint);
    prop_assert_eq!(set.admitted, expected.map(fingerprint));
    prop_assert_eq!(set.state(), if expected.is_some() { SetState::Serving } else { SetState::Conflict });
    let present: BTreeSet<_> = set.members.iter().map(|member| cohort_of(member.worker.id.0)).collect();
    prop_assert_eq!(set.cohorts.len(), present.len());
    prop_assert_eq!(set.differing_fields().is_empty(), present.len() == 1);
    for member in &set.members {
        let known = &model.workers[&member.worker.id.0];
        let cohort = known.about.cohort();
        prop_assert_eq!(member.cohort.fingerprint, fingerprint(cohort));
        let exclusion = match expected {
            _ if known.draining => Some(Exclusion::Draining),
            Some(admitted) if admitted == cohort => None,
            _ => Some(Exclusion::ConflictingConfiguration),
        };
        prop_assert_eq!(set.exclusion(member, fleet.now_ms()), exclusion);
        // One account of what everybody is doing, whoever decides.
        prop_assert!(Arc::ptr_eq(member.cohort.selector.loads(), set.selector.loads()));
        if exclusion.is_none() {
            prop_assert!(Arc::ptr_eq(&member.cohort.selector, &set.selector));
            prop_assert_eq!(
                set.config.mode,
                if cohort == 2 { Mode::Kv } else { RouterConfig::default().mode }
            );
            prop_assert_eq!(set.block_size.get(), if cohort == 3 { 32 } else { 16 });
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn whatever_happens_the_view_is_who_is_there(
        steps in prop::collection::vec(step(), 1..60),
        keep_first in any::<bool>(),
    ) {
        let policy = if keep_first { OnConfigMismatch::KeepFirst } else { OnConfigMismatch::Stop };
        let (fleet, recorder) = fleet_with(RouterConfig::default(), policy);
        let (start, mut model) = (Instant::now(), Model::default());
        for step in steps {
            match step {
                Step::Register { id, of, lease_hours, broken } => {
                    model.peak = model.peak.max(model.members().len() + of.ranks as usize);
                    recorder.0.state.lock().broken = broken.into_iter().collect();
                    let succeeds = |known: &Known| {
                        known.about.is(of)
                            && known.draining
                            && of.registered_ms.is_some()
                            && of.registered_ms != known.started_ms
                    };
                    if let Some(id) = id.filter(|id| model.workers.get(id).is_some_and(succeeds)) {
                        model.retain(|known, _| known != id);
                    }
                    let present = id.and_then(|id| model.workers.get_mut(&id));
                    let fails = broken.is_some_and(|rank| rank < of.ranks);
                    let result = fleet.register(of.spec(id), lease_hours.map(|hours| HOUR * hours));
                    match (present, result) {
                        (Some(known), Ok(_)) => {
                            prop_assert!(known.about.is(of));
                            known.lease_hours = known.lease_hours.and(lease_hours);
                            known.started_ms = of.registered_ms.or(known.started_ms);
                        }
                        (Some(known), Err(RegistrationError::IdTaken { .. })) => {
                            prop_assert!(!known.about.is(of));
                        }
                        (None, Ok(given)) => {
                            prop_assert!(!fails && id.is_none_or(|id| id == given.0));
                            prop_assert!(model.join(given.0, of, lease_hours), "an id was given out twice");
                        }
                        (None, Err(RegistrationError::Stream(_))) => prop_assert!(fails),
                        (_, result) => prop_assert!(false, "{:?}", result),
                    }
                }
                Step::Heartbeat(id) => prop_assert_eq!(fleet.heartbeat(WorkerId(id)), model.workers.contains_key(&id)),
                Step::Drain(id) => {
                    let known = model.workers.get_mut(&id);
                    prop_assert_eq!(fleet.drain(WorkerId(id)), known.is_some());
                    if let Some(known) = known {
                        known.draining = true;
                    }
                }
                Step::Remove(id) => {
                    let gone = model.retain(|known, _| known != id);
                    prop_assert_eq!(fleet.remove(WorkerId(id)), gone == [id]);
                }
                Step::Expire(hours) => {
                    // Real time hardly moves while this runs, so leases all began at the start.
                    let expired = fleet.expire_leases_at(start + HOUR * hours + HOUR / 2);
                    let gone = model.retain(|_, known| known.lease_hours.is_none_or(|lease| lease > hours));
                    prop_assert_eq!(expired, gone.into_iter().map(WorkerId).collect::<Vec<_>>());
                }
            }
            check(&fleet, &recorder, &model, policy)?;
        }
    }
}
