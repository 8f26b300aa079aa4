//! Whatever happens to a fleet, against a literal account of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use kvroute::{
    fleet::{Fleet, OnConfigMismatch, RegistrationError, RouterConfig, SetState, SetView, WorkerSpec},
    select::{Exclusion, Mode},
    slot::WorkerId,
};
use proptest::prelude::*;

use crate::recorder::{HOUR, Recorder, fleet_with, mode, name, spec};

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
