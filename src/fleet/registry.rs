//! The fleet itself: takes workers in, lets them go, and publishes views.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use ahash::AHashMap;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::watch;
use tracing::{info, warn};

use super::{
    card::Card,
    clock::{Clock, unix_ms},
    cohort::Cohort,
    disagg::Pools,
    failures::Failures,
    fingerprint::Fingerprint,
    frontend_routing::FrontendRouting,
    lease::Leases,
    mismatch::OnConfigMismatch,
    namespaces::{Namespaces, Strangers},
    parity::ParityStatus,
    rank::Ranks,
    registration_error::RegistrationError,
    router_config::RouterConfig,
    streams::{IndexKey, Streams},
    unreadable::Unreadable,
    view::{FleetView, RankMember},
    worker_info::WorkerInfo,
    worker_set::{SetKey, WorkerSet},
    worker_spec::{CheckedSpec, WorkerSpec},
};
use crate::{
    index::PrefixIndex,
    load::Loads,
    slot::{Rank, SlotAllocator, WorkerId},
};

struct Worker {
    info: Arc<WorkerInfo>,
    set: SetKey,
    /// When it was started, as it said last.
    started_ms: Option<u64>,
}

impl Worker {
    /// The time that a registration says, if it is another one than before: the worker was started anew, and perhaps its engine.
    fn restart(&self, started_ms: Option<u64>) -> Option<u64> {
        started_ms.filter(|_| started_ms != self.started_ms)
    }

    /// Whether a registration that says this is a drained worker's successor under its id.
    fn is_succeeded(&self, started_ms: Option<u64>) -> bool {
        self.info.is_draining() && self.restart(started_ms).is_some()
    }
}

#[derive(Default)]
pub(super) struct Registry {
    /// What its sets inherit.
    pub(super) frontend: Arc<FrontendRouting>,
    slots: SlotAllocator,
    next_id: u64,
    /// When the last worker came, on [`Registry::arrival_ms`]'s clock.
    last_arrival_ms: u64,
    generation: u64,
    workers: AHashMap<WorkerId, Worker>,
    indexes: AHashMap<IndexKey, PrefixIndex>,
    /// Few, and in order of founding, so that views and listings are stable.
    pub(super) sets: Vec<WorkerSet>,
    pools: Pools,
}

/// All workers, with a view for requests. Share it in an `Arc`.
///
/// Registering, draining, removing and expiring wait for threads to start and end, one change at a time: call them
/// where blocking is allowed. Everything else, requests above all, takes the view and waits for none of it.
pub struct Fleet {
    /// Held for as long as a change takes, streams included, so that their calls keep the order of the changes.
    pub(super) registry: Mutex<Registry>,
    leases: Leases,
    unreadable: Unreadable,
    view: ArcSwap<FleetView>,
    /// The generation of the view, sent after the view is there.
    changes: watch::Sender<u64>,
    streams: Box<dyn Streams>,
    pub(super) on_config_mismatch: OnConfigMismatch,
    namespaces: Namespaces,
    strangers: Strangers,
    pub(super) withhold_unchecked: bool,
    clock: Clock,
    pub(super) failures: Failures,
    pub(super) slow_start: Duration,
}

/// Number of indexes from which those without a worker set are dropped before another is made.
const MANY_INDEXES: usize = 32;

/// Index shards a model gets. One applier thread keeps up with hundreds of engines.
const SHARDS: std::num::NonZeroUsize = std::num::NonZeroUsize::MIN;

impl Fleet {
    /// An empty fleet, whose sets inherit `frontend_config` unless their cards say otherwise, and stop when their
    /// members disagree.
    #[must_use]
    pub fn new(frontend_config: RouterConfig, streams: Box<dyn Streams>) -> Self {
        let frontend = Arc::new(FrontendRouting::first(frontend_config));
        let view = FleetView { frontend: Arc::clone(&frontend), ..FleetView::default() };
        Self {
            registry: Mutex::new(Registry { frontend, next_id: 1, ..Registry::default() }),
            leases: Leases::default(),
            unreadable: Unreadable::default(),
            view: ArcSwap::from_pointee(view),
            changes: watch::Sender::new(0),
            streams,
            on_config_mismatch: OnConfigMismatch::default(),
            namespaces: Namespaces::default(),
            strangers: Strangers::default(),
            withhold_unchecked: false,
            clock: Clock::start(),
            failures: Failures::default(),
            slow_start: Duration::ZERO,
        }
    }

    /// The same with what becomes of sets whose members disagree.
    #[must_use]
    pub fn on_config_mismatch(self, policy: OnConfigMismatch) -> Self {
        Self { on_config_mismatch: policy, ..self }
    }

    /// The same, taking in workers of these namespaces only.
    #[must_use]
    pub fn serving(self, namespaces: Namespaces) -> Self {
        Self { namespaces, ..self }
    }

    /// How many registrations were refused because their namespace is not served; a worker that tries again counts
    /// again.
    #[must_use]
    pub fn strangers(&self) -> u64 {
        self.strangers.seen()
    }

    /// The fleet now. Take it once a request.
    #[must_use]
    pub fn view(&self) -> Arc<FleetView> {
        self.view.load_full()
    }

    /// Hears of every new view, by its generation; the view is there by then. Subscribe before looking at the view
    /// that is not good enough, or the change in between goes unheard.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The clock that its loads are told the time of.
    #[must_use]
    pub const fn clock(&self) -> Clock {
        self.clock
    }

    /// The time of that clock in milliseconds: what breakers count in.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.clock.now().as_millis()).unwrap_or(u64::MAX)
    }

    /// Takes a worker in; with `lease`, for that long unless heartbeats renew it. A worker that registers
    /// again under its id with the same description renews, under the new lease and with its old time, and with the adapters
    /// that it names now; one that
    /// stays without a lease goes on doing so. One that says it was started at another time than it said before
    /// (`registered_ms`) is credited nothing until its streams have shown that its engine is the same. Who drains goes on draining, unless the registration says that the worker
    /// was started at another time (`registered_ms`): what was drained is gone then, and its successor joins anew.
    ///
    /// # Errors
    /// See [`RegistrationError`]; the fleet is then as it was, but for a drained worker whose successor cannot be taken in.
    pub fn register(
        &self,
        mut spec: WorkerSpec,
        lease: Option<Duration>,
    ) -> Result<WorkerId, RegistrationError> {
        let checked = spec.check()?;
        if !self.namespaces.serve(&spec.namespace) {
            self.strangers.note(&spec.namespace, &spec.url, &self.namespaces);
            let (namespace, served) = (spec.namespace, self.namespaces.clone());
            return Err(RegistrationError::OtherNamespace { namespace, served });
        }
        let mut registry = self.registry.lock();
        if let Some(id) = spec.id.map(WorkerId)
            && let Some(present) = registry.workers.get_mut(&id)
        {
            // The time says when a worker came, not what it is: one that was started again may renew. Adapters come and go.
            let known = WorkerSpec {
                registered_ms: spec.registered_ms,
                lora_adapters: spec.lora_adapters.clone(),
                ..present.info.spec.clone()
            };
            if known != spec {
                let url = present.info.url.to_string();
                return Err(RegistrationError::IdTaken { id, url });
            }
            if !present.is_succeeded(spec.registered_ms) {
                let info = Arc::clone(&present.info);
                if let Some((name, set)) = registry.name_taken(&checked.card) {
                    return Err(RegistrationError::NameTaken { name, set: Box::new(set) });
                }
                registry.note_restart(id, spec.registered_ms, &*self.streams);
                self.leases.grant(id, lease, Instant::now());
                if info.set_adapters(&spec.lora_adapters) {
                    info!(worker = %id, adapters = spec.lora_adapters.join(", "), "worker serves other adapters now");
                    self.publish(&mut registry);
                }
                return Ok(id);
            }
            self.let_go(&mut registry, &[id]);
        }
        let cohort = self.cohort_for(&mut registry, &checked)?;
        let id = registry.take_id(spec.id);
        // With its id, so that a worker that was given one can register again under it.
        spec.id = Some(id.0);
        let started_ms = spec.registered_ms;
        let registered_ms = registry.arrival_ms(started_ms);
        let parity = ParityStatus::unchecked(self.withhold_unchecked);
        let slow_start = self.slow_start_of(started_ms);
        let info = WorkerInfo::new(id, checked.url.clone(), spec, registered_ms, parity, slow_start);
        let info = Arc::new(info);
        let members = self.open_ranks(&mut registry, &info, &checked, &cohort)?;
        let key = checked.card.set;
        info!(worker = %id, url = %info.url, set = %key, fingerprint = %cohort.fingerprint, "worker joined");
        registry.set_mut(&key, &cohort).join(&cohort, members, registered_ms);
        self.unreadable.forget(&info.spec.url);
        registry.workers.insert(id, Worker { info, set: key, started_ms });
        self.leases.grant(id, lease, Instant::now());
        self.publish(&mut registry);
        Ok(id)
    }

    /// Notes that a prefill worker of `model` at `url` announced itself with a card that cannot be read. For `length`
    /// a decode set beside it, if it has no other prefill workers, does not go on as if there were none.
    pub fn note_unreadable_prefill(&self, model: &str, namespace: &str, url: &str, length: Duration) {
        if !self.namespaces.serve(namespace) {
            return self.strangers.note(namespace, url, &self.namespaces);
        }
        let mut registry = self.registry.lock();
        if self.unreadable.note([model, namespace, url], Instant::now(), length) {
            self.publish(&mut registry);
        }
    }

    /// Renews a lease. False if there is no such worker, which then has to register again.
    pub fn heartbeat(&self, id: WorkerId) -> bool {
        self.leases.renew(id, Instant::now())
    }

    /// Keeps new requests away from a worker; those in flight finish. False if there is no such worker. A worker
    /// that drains has no say in its set's configuration any more: members that waited for it are admitted.
    pub fn drain(&self, id: WorkerId) -> bool {
        let mut registry = self.registry.lock();
        let Some(worker) = registry.workers.get(&id) else { return false };
        let (info, key) = (Arc::clone(&worker.info), worker.set.clone());
        if let Some(set) = registry.sets.iter_mut().find(|set| set.key == key) {
            set.drain(id);
        }
        // The view first: who finds nobody left to send to can then find the successors.
        self.publish(&mut registry);
        info.drain();
        true
    }

    /// Lets a worker go, with everything that was known of it. False if there is no such worker.
    pub fn remove(&self, id: WorkerId) -> bool {
        let mut registry = self.registry.lock();
        let known = registry.workers.contains_key(&id);
        self.let_go(&mut registry, &[id]);
        known
    }

    /// Whether [`Fleet::expire_leases`] would find anything. Never waits for a change.
    #[must_use]
    pub fn any_lease_over(&self) -> bool {
        let now = Instant::now();
        self.leases.any_over(now) || self.unreadable.any_over(now)
    }

    /// Lets workers go whose lease has run out; returns their ids.
    pub fn expire_leases(&self) -> Vec<WorkerId> {
        self.expire_leases_at(Instant::now())
    }

    /// The same, as of `now`.
    pub fn expire_leases_at(&self, now: Instant) -> Vec<WorkerId> {
        let mut registry = self.registry.lock();
        // Under the registry's lock: a worker cannot register again between the two steps and be let go all the same.
        let expired = self.leases.take_over(now);
        for id in &expired {
            warn!(worker = %id, "lease expired without a heartbeat: worker removed");
        }
        self.let_go(&mut registry, &expired);
        if self.unreadable.end_over(now) {
            self.publish(&mut registry);
        }
        expired
    }

    /// The cohort that the worker belongs to, built if it is the first of it. It is in no set yet.
    fn cohort_for(
        &self,
        registry: &mut Registry,
        checked: &CheckedSpec,
    ) -> Result<Arc<Cohort>, RegistrationError> {
        let (card, frontend) = (&checked.card, Arc::clone(&registry.frontend));
        // Of who joins a known cohort, too: adapters are no part of its fingerprint.
        if let Some((name, set)) = registry.name_taken(card) {
            return Err(RegistrationError::NameTaken { name, set: Box::new(set) });
        }
        let facts = card.routing_facts(&frontend.config);
        let set = registry.sets.iter().find(|set| set.key == card.set);
        if let Some(known) = set.and_then(|set| set.cohort(Fingerprint::of(&facts))) {
            return Ok(Arc::clone(known));
        }
        let loads = set.map_or_else(Loads::new, |set| Arc::clone(&set.loads));
        let effective = card.effective_config(&frontend.config);
        effective.validate().map_err(RegistrationError::Settings)?;
        let index = self.index_for(registry, &IndexKey::of(card))?;
        Ok(Arc::new(Cohort::of(card, facts, checked.block_size, &frontend.config, index, loads)))
    }

    /// The index of a key. Indexes stay when their sets are gone, since a set often comes back; but each has a
    /// thread, so those that nobody needs go when there are many.
    fn index_for(&self, registry: &mut Registry, key: &IndexKey) -> Result<PrefixIndex, RegistrationError> {
        if let Some(index) = registry.indexes.get(key) {
            return Ok(index.clone());
        }
        if registry.indexes.len() >= MANY_INDEXES {
            for key in registry.drop_idle_indexes() {
                self.streams.index_dropped(&key);
            }
        }
        let (index, writers) = PrefixIndex::new(SHARDS);
        // Kept only if something feeds it: the next worker may find what this one did not.
        self.streams.index_created(key, writers).map_err(RegistrationError::Index)?;
        registry.indexes.insert(key.clone(), index.clone());
        Ok(index)
    }

    /// Gives every rank a slot and a stream; on an error closes what it opened.
    fn open_ranks(
        &self,
        registry: &mut Registry,
        info: &Arc<WorkerInfo>,
        checked: &CheckedSpec,
        cohort: &Arc<Cohort>,
    ) -> Result<Vec<Arc<RankMember>>, RegistrationError> {
        let mut ranks = self.ranks(registry);
        let mut members = Vec::new();
        for rank in info.spec.first_rank..info.spec.first_rank + info.spec.ranks {
            match ranks.open(cohort, info, checked, Rank(rank)) {
                Ok(member) => members.push(member),
                Err(error) => {
                    members.iter().for_each(|member| ranks.close(member));
                    return Err(error);
                }
            }
        }
        Ok(members)
    }

    pub(super) fn ranks<'a>(&'a self, registry: &'a mut Registry) -> Ranks<'a> {
        Ranks { streams: &*self.streams, slots: &mut registry.slots }
    }

    /// Takes workers out of the view, then drops their loads, then closes what they had. In this order, so that a
    /// request that took an older view and is told by a forgotten load that its worker is gone finds the successors
    /// in the view of now, and so that no request is placed on a rank while its stream is being closed.
    fn let_go(&self, registry: &mut Registry, ids: &[WorkerId]) {
        let leaving: Vec<_> = ids.iter().flat_map(|&id| registry.take_out(id)).collect();
        if leaving.is_empty() {
            return;
        }
        for &id in ids {
            self.leases.end(id);
        }
        self.publish(registry);
        for member in &leaving {
            member.cohort.selector.loads().forget(member.slot);
        }
        let mut ranks = self.ranks(registry);
        leaving.iter().for_each(|member| ranks.close(member));
    }

    /// One store for all that changed: a set whose last admitted member left has the next cohort admitted in the
    /// view in which it is gone.
    pub(super) fn publish(&self, registry: &mut Registry) {
        registry.generation += 1;
        // A set without members is gone: the next worker of its key founds it anew.
        registry.sets.retain(|set| !set.members.is_empty());
        let (frontend, generation) = (&registry.frontend, registry.generation);
        let publish = |set: &mut WorkerSet| set.publish(self.on_config_mismatch, frontend, generation);
        let views = registry.sets.iter_mut().filter_map(publish);
        let mut sets: Vec<_> = views.collect();
        registry.pools.pair(&mut sets, &self.unreadable);
        let sets = sets.into_iter().map(Arc::new).collect();
        self.view.store(Arc::new(FleetView::of(registry.generation, &registry.frontend, sets)));
        self.changes.send_replace(registry.generation);
    }
}

impl Registry {
    /// The wanted id, else the lowest never given out that nobody chose.
    fn take_id(&mut self, wanted: Option<u64>) -> WorkerId {
        if let Some(id) = wanted {
            return WorkerId(id);
        }
        while self.workers.contains_key(&WorkerId(self.next_id)) {
            self.next_id += 1;
        }
        let id = WorkerId(self.next_id);
        self.next_id += 1;
        id
    }

    /// When a worker was registered: as it says itself, else now. Of two that say nothing the later one always has
    /// the larger number, whatever happens to the clock, so that a newcomer never comes before an incumbent.
    fn arrival_ms(&mut self, said: Option<u64>) -> u64 {
        said.unwrap_or_else(|| {
            self.last_arrival_ms = unix_ms().max(self.last_arrival_ms.saturating_add(1));
            self.last_arrival_ms
        })
    }

    /// The set of a key, founded with the loads of `cohort` if there is none.
    fn set_mut(&mut self, key: &SetKey, cohort: &Cohort) -> &mut WorkerSet {
        let position = self.sets.iter().position(|set| set.key == *key).unwrap_or_else(|| {
            self.sets.push(WorkerSet::new(key.clone(), Arc::clone(cohort.selector.loads())));
            self.sets.len() - 1
        });
        &mut self.sets[position]
    }

    /// Notes when a worker that is here says that it was started. If it says so of another time than before, what its ranks were
    /// known to have cached may be gone.
    fn note_restart(&mut self, id: WorkerId, started_ms: Option<u64>, streams: &dyn Streams) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        let Some(started_ms) = worker.restart(started_ms) else { return };
        worker.started_ms = Some(started_ms);
        info!(worker = %id, started_ms, "worker was started anew: its event streams have to show that its engine is the same");
        let members = self.sets.iter().filter(|set| set.key == worker.set).flat_map(|set| &set.members);
        for member in members.filter(|member| member.worker.id == id) {
            streams.restarted(member.slot, started_ms);
            if let Some(expected) = &member.expected {
                expected.kept_by.doubt();
            }
        }
    }

    /// Takes a worker out of its set; its loads and its streams are still there then.
    fn take_out(&mut self, id: WorkerId) -> Vec<Arc<RankMember>> {
        let Some(worker) = self.workers.remove(&id) else { return Vec::new() };
        let Some(set) = self.sets.iter_mut().find(|set| set.key == worker.set) else { return Vec::new() };
        info!(worker = %id, "worker left");
        set.leave(id)
    }

    /// Forgets the indexes that no cohort uses, and names them.
    fn drop_idle_indexes(&mut self) -> Vec<IndexKey> {
        let Self { indexes, sets, .. } = self;
        let cohorts = || sets.iter().flat_map(|set| &set.cohorts);
        let idle = indexes.extract_if(|key, _| cohorts().all(|standing| standing.cohort.index_key != *key));
        idle.map(|(key, _)| key).collect()
    }

    /// A name of `card` that stands for something else in another set, and that set. Were it let through, a
    /// request for the name would go to one or the other by chance.
    fn name_taken(&self, card: &Card) -> Option<(String, SetKey)> {
        self.sets.iter().find_map(|set| {
            let is_adapter = |name: &String| set.members.iter().any(|member| member.worker.serves(name));
            let mut clashes = card.lora_adapters.iter().filter(|&name| {
                *name == set.key.model || (set.key.model != card.set.model && is_adapter(name))
            });
            let name = clashes.next().or_else(|| Some(&card.set.model).filter(|model| is_adapter(model)));
            Some((name?.clone(), set.key.clone()))
        })
    }
}
