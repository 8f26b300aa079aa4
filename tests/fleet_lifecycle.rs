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
        Fleet, IndexKey, RegistrationError, RouterConfig, SpecError, StreamSource, StreamState, StreamStatus,
        Streams, WorkerSpec, WorkerType,
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

fn fleet_with(config: RouterConfig) -> (Arc<Fleet>, Recorder) {
    let recorder = Recorder::default();
    let fleet = Arc::new(Fleet::new(config, Box::new(recorder.clone())));
    recorder.0.fleet.set(Arc::downgrade(&fleet)).unwrap();
    (fleet, recorder)
}

fn fleet() -> (Arc<Fleet>, Recorder) {
    fleet_with(RouterConfig::default())
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
    let refusal = set.selector.admit(&members, overlaps, &demand, &mut scratch, &mut rng).unwrap_err();
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

#[test]
fn replicas_must_agree_in_effect_not_in_words() {
    let inherited = RouterConfig { mode: Mode::Kv, tuning: Tuning::default() };
    let (fleet, _) = fleet_with(inherited.clone());
    fleet.register(spec(Some(1), "m", 1), None).unwrap();
    let says_the_same = WorkerSpec { router_config: Some(inherited), ..spec(Some(2), "m", 1) };
    fleet.register(says_the_same, None).unwrap();

    let other_mode = RouterConfig { mode: Mode::Random, tuning: Tuning::default() };
    let differs = WorkerSpec { router_config: Some(other_mode), block_size: 32, ..spec(Some(3), "m", 1) };
    let error = fleet.register(differs.clone(), None).unwrap_err();
    let RegistrationError::Conflict { fields, set } = &error else { panic!("{error}") };
    assert_eq!((fields.as_slice(), set.model.as_str()), (&["block_size", "router_config"][..], "m"));
    assert_eq!(fleet.view().sets[0].worker_count(), 2, "the set goes on as it was");

    let elsewhere = WorkerSpec { id: Some(4), endpoint: "other".into(), ..differs.clone() };
    fleet.register(elsewhere, None).unwrap();
    assert_eq!(fleet.view().route("m").unwrap().sets.len(), 2);
    fleet.remove(WorkerId(1));
    fleet.remove(WorkerId(2));
    fleet.register(differs, None).expect("an empty set is founded anew, under the newcomer's card");
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

    for (model, adapters) in [("sql", &[][..]), ("other", &["base"][..]), ("other", &["sql"][..])] {
        let error = fleet.register(with(9, model, "c", adapters), None).unwrap_err();
        assert!(matches!(error, RegistrationError::NameTaken { .. }), "{model} {adapters:?}: {error}");
    }
    let own = fleet.register(with(9, "other", "c", &["other"]), None).unwrap_err();
    assert!(matches!(own, RegistrationError::Spec(SpecError::Adapter(_))), "{own}");
}

#[test]
fn workers_that_serve_no_whole_request_are_refused() {
    let (fleet, _) = fleet();
    for role in [WorkerType::Prefill, WorkerType::Encode] {
        let error = fleet.register(WorkerSpec { worker_type: role, ..spec(None, "m", 1) }, None).unwrap_err();
        assert!(error.to_string().contains(role.name()), "{error}");
    }
    fleet.register(WorkerSpec { worker_type: WorkerType::Decode, ..spec(None, "m", 1) }, None).unwrap();
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
        model: u8,
        endpoint: u8,
        ranks: u32,
        lease_hours: Option<u32>,
        broken: Option<u32>,
    },
    Heartbeat(u64),
    Remove(u64),
    /// The clock stands at half past this hour.
    Expire(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let id = 1..6_u64;
    let register = (
        prop::option::weighted(0.7, id.clone()),
        0..2_u8,
        0..2_u8,
        1..4_u32,
        prop::option::weighted(0.6, 1..5_u32),
        prop::option::weighted(0.2, 0..3_u32),
    );
    let register = register.prop_map(|(id, model, endpoint, ranks, lease_hours, broken)| Step::Register {
        id,
        model,
        endpoint,
        ranks,
        lease_hours,
        broken,
    });
    prop_oneof![
        4 => register,
        1 => id.clone().prop_map(Step::Heartbeat),
        2 => id.prop_map(Step::Remove),
        1 => (0..5_u32).prop_map(Step::Expire),
    ]
}

/// What a fleet is, said as plainly as possible.
#[derive(Default)]
struct Model {
    workers: BTreeMap<u64, (u8, u8, u32, Option<u32>)>,
    /// The most slots that were ever in use at once.
    peak: usize,
}

impl Model {
    /// Who should be in the view: model, endpoint, worker, rank.
    fn members(&self) -> BTreeSet<(String, String, u64, u32)> {
        let ranks = |(&id, &(model, endpoint, ranks, _)): (&u64, &(u8, u8, u32, Option<u32>))| {
            (0..ranks).map(move |rank| (format!("m{model}"), format!("e{endpoint}"), id, rank))
        };
        self.workers.iter().flat_map(ranks).collect()
    }
}

fn check(fleet: &Fleet, recorder: &Recorder, model: &Model) -> Result<(), TestCaseError> {
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
    let served: BTreeSet<_> = model.workers.values().map(|worker| format!("m{}", worker.0)).collect();
    prop_assert_eq!(view.models(), served.iter().map(String::as_str).collect::<Vec<_>>());
    Ok(())
}

proptest! {
    #[test]
    fn whatever_happens_the_view_is_who_is_there(steps in prop::collection::vec(step(), 1..60)) {
        let (fleet, recorder) = fleet();
        let (start, mut model) = (Instant::now(), Model::default());
        for step in steps {
            match step {
                Step::Register { id, model: m, endpoint, ranks, lease_hours, broken } => {
                    let spec = WorkerSpec {
                        endpoint: format!("e{endpoint}"),
                        ..spec(id, &format!("m{m}"), ranks)
                    };
                    model.peak = model.peak.max(model.members().len() + ranks as usize);
                    recorder.0.state.lock().broken = broken.into_iter().collect();
                    let present = id.and_then(|id| model.workers.get_mut(&id));
                    let fails = broken.is_some_and(|rank| rank < ranks);
                    let result = fleet.register(spec, lease_hours.map(|hours| HOUR * hours));
                    match (present, result) {
                        (Some(known), Ok(_)) => {
                            prop_assert_eq!((known.0, known.1, known.2), (m, endpoint, ranks));
                            known.3 = known.3.and(lease_hours);
                        }
                        (Some(known), Err(RegistrationError::IdTaken { .. })) => {
                            prop_assert_ne!((known.0, known.1, known.2), (m, endpoint, ranks));
                        }
                        (None, Ok(given)) => {
                            prop_assert!(!fails && id.is_none_or(|id| id == given.0));
                            let before = model.workers.insert(given.0, (m, endpoint, ranks, lease_hours));
                            prop_assert_eq!(before, None, "an id was given out twice");
                        }
                        (None, Err(RegistrationError::Stream(_))) => prop_assert!(fails),
                        (_, result) => prop_assert!(false, "{:?}", result),
                    }
                }
                Step::Heartbeat(id) => prop_assert_eq!(fleet.heartbeat(WorkerId(id)), model.workers.contains_key(&id)),
                Step::Remove(id) => prop_assert_eq!(fleet.remove(WorkerId(id)), model.workers.remove(&id).is_some()),
                Step::Expire(hours) => {
                    // Real time hardly moves while this runs, so leases all began at the start.
                    let expired = fleet.expire_leases_at(start + HOUR * hours + HOUR / 2);
                    let over = |worker: &(u8, u8, u32, Option<u32>)| worker.3.is_some_and(|lease| lease <= hours);
                    let expected: Vec<_> =
                        model.workers.iter().filter(|(_, worker)| over(worker)).map(|(&id, _)| WorkerId(id)).collect();
                    prop_assert_eq!(expired, expected);
                    model.workers.retain(|_, worker| !over(worker));
                }
            }
            check(&fleet, &recorder, &model)?;
        }
    }
}
