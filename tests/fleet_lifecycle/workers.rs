//! Workers with their slots, streams, ids and leases.

use std::{
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use kvroute::{
    fleet::{Fleet, RegistrationError, SpecError, StreamState, WorkerSpec, WorkerType},
    hash::BlockSize,
    index::{PrefixIndex, Scratch},
    select::{self, Demand, Exclusion, Refusal},
};

use crate::recorder::{HOUR, admitted, fleet, slots, spec};

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
    let (index, _) = PrefixIndex::new(NonZeroUsize::MIN);
    let (mut members, mut lookup, mut scratch) = (Vec::new(), Scratch::new(), select::Scratch::new());
    set.gather(None, fleet.now_ms(), &mut members);
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
fn a_worker_that_was_started_anew_has_to_show_who_its_engine_is() {
    let (fleet, recorder) = fleet();
    let told = || std::mem::take(&mut recorder.0.state.lock().restarted);
    let of = |id, started: Option<u64>| WorkerSpec { registered_ms: started, ..spec(Some(id), "m", 2) };
    for id in [1, 2] {
        fleet.register(of(id, Some(1_000)), None).unwrap();
    }
    let slots = slots(&fleet);
    for again in [Some(1_000), None, Some(1_000)] {
        fleet.register(of(1, again), None).unwrap();
        assert_eq!(told(), [], "it renewed, and says no other time");
    }
    fleet.register(of(1, Some(2_000)), None).unwrap();
    assert_eq!(told(), [(slots[0], 2_000), (slots[1], 2_000)], "the ranks of that worker alone");
    fleet.register(of(1, Some(2_000)), None).unwrap();
    assert_eq!(told(), []);

    // Whoever never said a time may be another one, too.
    fleet.register(of(3, None), None).unwrap();
    fleet.register(of(3, Some(3_000)), None).unwrap();
    assert_eq!(told().len(), 2);
}

/// A thread that could not be had once must not keep a model's workers out for good.
#[test]
fn an_index_that_could_not_be_made_is_asked_for_again() {
    let (fleet, recorder) = fleet();
    recorder.0.state.lock().has_no_thread = true;
    let error = fleet.register(spec(None, "m", 1), None).unwrap_err();
    assert!(matches!(&error, RegistrationError::Index(why) if why == "no thread is left"), "{error}");
    assert!(fleet.view().sets.is_empty());
    recorder.0.state.lock().has_no_thread = false;
    let id = fleet.register(spec(None, "m", 1), None).unwrap();
    assert!(fleet.view().worker(id).is_some());
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

    // Replicas may serve different ones, and each takes its names.
    fleet.register(with(4, "base", "a", &["coder"]), None).unwrap();
    assert_eq!(admitted(&fleet), [1, 2, 4, 3]);
    assert_eq!(fleet.view().models(), ["base", "coder", "poet", "sql"]);
    for (model, adapters) in
        [("sql", &[][..]), ("other", &["base"][..]), ("other", &["sql"][..]), ("coder", &[][..])]
    {
        let error = fleet.register(with(9, model, "c", adapters), None).unwrap_err();
        assert!(matches!(error, RegistrationError::NameTaken { .. }), "{model} {adapters:?}: {error}");
    }
    // They come and go with a worker that stays.
    let slots_before = slots(&fleet);
    fleet.register(with(4, "base", "a", &["poet", "artist"]), None).unwrap();
    assert_eq!(fleet.view().models(), ["artist", "base", "poet", "sql"]);
    assert_eq!(slots(&fleet), slots_before);
    let generation = fleet.view().generation;
    fleet.register(with(4, "base", "a", &["artist", "poet"]), None).unwrap();
    assert_eq!(fleet.view().generation, generation, "nothing has changed");
    fleet.register(with(5, "other", "c", &["coder"]), None).expect("nobody has the name any more");
    let error = fleet.register(with(4, "base", "a", &["coder"]), None).unwrap_err();
    assert!(matches!(error, RegistrationError::NameTaken { .. }), "{error}");
    assert_eq!(fleet.view().models(), ["artist", "base", "coder", "other", "poet", "sql"]);
    let own = fleet.register(with(9, "other", "c", &["other"]), None).unwrap_err();
    assert!(matches!(own, RegistrationError::Spec(SpecError::Adapter(_))), "{own}");
}

#[test]
fn nobody_brings_another_model_s_name_by_joining_those_who_are_here() {
    let (fleet, _) = fleet();
    let with = |id, model: &str, adapters: &[&str]| WorkerSpec {
        lora_adapters: adapters.iter().map(|&name| name.to_owned()).collect(),
        ..spec(Some(id), model, 1)
    };
    fleet.register(with(1, "m1", &["sql"]), None).unwrap();
    fleet.register(with(2, "m2", &["poet"]), None).unwrap();
    for (model, name) in [("m2", "m1"), ("m2", "sql"), ("m1", "m2"), ("m1", "poet")] {
        let error = fleet.register(with(3, model, &[name]), None).unwrap_err();
        assert!(matches!(error, RegistrationError::NameTaken { .. }), "{model} {name}: {error}");
    }
    let view = fleet.view();
    let sets = view.route("m1").unwrap().sets.iter().map(|&at| view.sets[at].key.model.as_str());
    assert_eq!(sets.collect::<Vec<_>>(), ["m1"]);
    fleet
        .register(with(3, "m2", &["poet", "artist"]), None)
        .expect("its own set's name is everybody's there");
    assert_eq!(fleet.view().models(), ["artist", "m1", "m2", "poet", "sql"]);
}

#[test]
fn encode_workers_are_refused() {
    let (fleet, _) = fleet();
    let encode = WorkerSpec { worker_type: WorkerType::Encode, ..spec(None, "m", 1) };
    let error = fleet.register(encode, None).unwrap_err();
    assert!(error.to_string().contains("encode"), "{error}");
}

#[test]
fn an_inhibited_worker_is_back_after_a_few_seconds() {
    let (fleet, _) = fleet();
    let id = fleet.register(spec(None, "m", 1), None).unwrap();
    let view = fleet.view();
    let worker = view.worker(id).unwrap();
    fleet.note_failure(worker, &"it was told to");
    let now = fleet.now_ms();
    assert_eq!(worker.exclusion(now), Some(Exclusion::Unroutable));
    assert_eq!(worker.exclusion(now + 5_000), None);
}

#[test]
fn where_all_are_inhibited_the_one_that_is_back_first_takes_requests() {
    let (fleet, _) = fleet();
    let ids = [(); 3].map(|()| fleet.register(spec(None, "m", 1), None).unwrap());
    let view = fleet.view();
    let set = &view.sets[0];
    let excluded = |fleet: &Fleet| {
        let mut members = Vec::new();
        set.gather(None, fleet.now_ms(), &mut members);
        members.into_iter().map(|member| member.exclusion).collect::<Vec<_>>()
    };
    fleet.drain(ids[0]);
    for id in [ids[1], ids[2]] {
        fleet.note_failure(view.worker(id).unwrap(), &"it was told to");
        std::thread::sleep(Duration::from_millis(3));
    }
    let (draining, unroutable) = (Some(Exclusion::Draining), Some(Exclusion::Unroutable));
    assert_eq!(excluded(&fleet), [draining, None, unroutable]);
    assert_eq!(set.routable(fleet.now_ms()), 1);
    // Its trial fails, so that the other is better now.
    fleet.note_failure(view.worker(ids[1]).unwrap(), &"it was told to");
    assert_eq!(excluded(&fleet), [draining, unroutable, None]);
    fleet.note_answer(view.worker(ids[1]).unwrap());
    assert_eq!(excluded(&fleet), [draining, None, unroutable]);
}

#[test]
fn nobody_is_inhibited_for_no_time() {
    let fleet = Arc::into_inner(fleet().0).unwrap().inhibiting_for(Duration::ZERO);
    let id = fleet.register(spec(None, "m", 1), None).unwrap();
    let view = fleet.view();
    fleet.note_failure(view.worker(id).unwrap(), &"it was told to");
    assert_eq!(view.worker(id).unwrap().exclusion(fleet.now_ms()), None);
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
