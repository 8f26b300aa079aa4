//! The fleet itself: takes workers in, lets them go, and publishes views.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use ahash::AHashMap;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tracing::{error, info, warn};

use super::{
    card::Card,
    endpoint::EventEndpoint,
    lease::Leases,
    registration_error::RegistrationError,
    router_config::RouterConfig,
    stream_status::{StreamState, StreamStatus},
    streams::{IndexKey, StreamSource, Streams},
    view::{FleetView, RankMember, WorkerInfo},
    worker_set::{SetKey, WorkerSet},
    worker_spec::{CheckedSpec, WorkerSpec},
};
use crate::{
    index::PrefixIndex,
    slot::{Rank, Slot, SlotAllocator, WorkerId},
};

struct Worker {
    info: Arc<WorkerInfo>,
    set: SetKey,
}

/// A rank that is out of every view and has yet to be closed.
struct Leaving {
    key: IndexKey,
    member: Arc<RankMember>,
}

#[derive(Default)]
struct Registry {
    slots: SlotAllocator,
    next_id: u64,
    generation: u64,
    workers: AHashMap<WorkerId, Worker>,
    indexes: AHashMap<IndexKey, PrefixIndex>,
    /// Few, and in order of founding, so that views and listings are stable.
    sets: Vec<WorkerSet>,
}

/// All workers, with a view for requests. Share it in an `Arc`.
///
/// Registering, removing and expiring wait for threads to start and end, one change at a time: call them where
/// blocking is allowed. Everything else, requests above all, takes the view and waits for none of it.
pub struct Fleet {
    /// Held for as long as a change takes, streams included, so that their calls keep the order of the changes.
    registry: Mutex<Registry>,
    leases: Leases,
    view: ArcSwap<FleetView>,
    streams: Box<dyn Streams>,
    frontend_config: Arc<RouterConfig>,
    epoch: Instant,
}

/// How long a worker that could not be reached takes no requests.
const INHIBITION: Duration = Duration::from_secs(5);

/// Number of indexes from which those without a worker set are dropped before another is made.
const MANY_INDEXES: usize = 32;

/// Index shards a model gets. One applier thread keeps up with hundreds of engines.
const SHARDS: std::num::NonZeroUsize = std::num::NonZeroUsize::MIN;

impl Fleet {
    /// An empty fleet, whose sets inherit `frontend_config` unless their cards say otherwise.
    #[must_use]
    pub fn new(frontend_config: RouterConfig, streams: Box<dyn Streams>) -> Self {
        Self {
            registry: Mutex::new(Registry { next_id: 1, ..Registry::default() }),
            leases: Leases::default(),
            view: ArcSwap::from_pointee(FleetView::default()),
            streams,
            frontend_config: Arc::new(frontend_config),
            epoch: Instant::now(),
        }
    }

    /// The fleet now. Take it once a request.
    #[must_use]
    pub fn view(&self) -> Arc<FleetView> {
        self.view.load_full()
    }

    /// The configuration that sets inherit.
    #[must_use]
    pub fn frontend_config(&self) -> &RouterConfig {
        &self.frontend_config
    }

    /// Milliseconds since the fleet was made: its clock for inhibition.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Keeps requests away from a worker that could not be reached, for a few seconds.
    pub fn inhibit(&self, worker: &WorkerInfo) {
        let length = u64::try_from(INHIBITION.as_millis()).unwrap_or(u64::MAX);
        worker.inhibit(self.now_ms().saturating_add(length));
    }

    /// Takes a worker in; with `lease`, for that long unless heartbeats renew it. A worker that registers
    /// again under its id with the same description renews, under the new lease; one that stays without a
    /// lease goes on doing so.
    ///
    /// # Errors
    /// See [`RegistrationError`]; the fleet is then as it was.
    pub fn register(
        &self,
        mut spec: WorkerSpec,
        lease: Option<Duration>,
    ) -> Result<WorkerId, RegistrationError> {
        let checked = spec.check()?;
        let mut registry = self.registry.lock();
        if let Some(id) = spec.id.map(WorkerId)
            && let Some(present) = registry.workers.get(&id)
        {
            if present.info.spec != spec {
                let url = present.info.url.to_string();
                return Err(RegistrationError::IdTaken { id, url });
            }
            self.leases.grant(id, lease, Instant::now());
            return Ok(id);
        }
        let set = self.set_for(&mut registry, &checked)?;
        let id = registry.take_id(spec.id);
        // With its id, so that a worker that was given one can register again under it.
        spec.id = Some(id.0);
        let info = Arc::new(WorkerInfo::new(id, checked.url.clone(), spec));
        let members = self.open_ranks(&mut registry, &info, &checked, set)?;
        info!(worker = %id, url = %info.url, set = %registry.sets[set].key, "worker joined");
        registry.sets[set].members.extend(members);
        let key = registry.sets[set].key.clone();
        registry.workers.insert(id, Worker { info, set: key });
        self.leases.grant(id, lease, Instant::now());
        self.publish(&mut registry);
        Ok(id)
    }

    /// Renews a lease. False if there is no such worker, which then has to register again.
    pub fn heartbeat(&self, id: WorkerId) -> bool {
        self.leases.renew(id, Instant::now())
    }

    /// Keeps new requests away from a worker; those in flight finish. False if there is no such worker.
    pub fn drain(&self, id: WorkerId) -> bool {
        let view = self.view.load();
        let worker = view.worker(id);
        if let Some(worker) = worker {
            worker.drain();
        }
        worker.is_some()
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
        self.leases.any_over(Instant::now())
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
        expired
    }

    /// The position of the set that the worker belongs to, founding it if it is the first.
    fn set_for(&self, registry: &mut Registry, checked: &CheckedSpec) -> Result<usize, RegistrationError> {
        let key = checked.card.set.clone();
        if let Some(position) = registry.sets.iter().position(|set| set.key == key) {
            let set = &registry.sets[position];
            let fields = set.card.differing_fields(&checked.card, &self.frontend_config);
            if fields.is_empty() {
                return Ok(position);
            }
            error!(
                set = %key, url = %checked.url, fields = fields.join(", "), members = set.worker_ids(),
                "worker refused: it differs from the members of its set"
            );
            return Err(RegistrationError::Conflict { set: Box::new(key), fields });
        }
        if let Some((name, set)) = registry.name_taken(&checked.card) {
            return Err(RegistrationError::NameTaken { name, set: Box::new(set) });
        }
        let index = self.index_for(registry, &IndexKey::of(&checked.card));
        registry.sets.push(WorkerSet::found(
            checked.card.clone(),
            checked.block_size,
            index,
            &self.frontend_config,
        ));
        Ok(registry.sets.len() - 1)
    }

    /// The index of a key. Indexes stay when their sets are gone, since a set often comes back; but each has a
    /// thread, so those that nobody needs go when there are many.
    fn index_for(&self, registry: &mut Registry, key: &IndexKey) -> PrefixIndex {
        if let Some(index) = registry.indexes.get(key) {
            return index.clone();
        }
        if registry.indexes.len() >= MANY_INDEXES {
            for key in registry.drop_idle_indexes() {
                self.streams.index_dropped(&key);
            }
        }
        let (index, writers) = PrefixIndex::new(SHARDS);
        self.streams.index_created(key, writers);
        registry.indexes.insert(key.clone(), index.clone());
        index
    }

    /// Gives every rank a slot and a stream; on an error closes what it opened.
    fn open_ranks(
        &self,
        registry: &mut Registry,
        info: &Arc<WorkerInfo>,
        checked: &CheckedSpec,
        set: usize,
    ) -> Result<Vec<Arc<RankMember>>, RegistrationError> {
        let key = registry.sets[set].index_key.clone();
        let mut members = Vec::new();
        for rank in info.spec.first_rank..info.spec.first_rank + info.spec.ranks {
            let slot = registry.slots.allocate();
            match self.open_rank(&key, info, checked, Rank(rank), slot) {
                Ok(member) => members.push(member),
                Err(error) => {
                    registry.slots.release(slot);
                    for member in members {
                        self.close_rank(registry, &key, &member);
                    }
                    registry.drop_empty_sets();
                    return Err(error);
                }
            }
        }
        Ok(members)
    }

    fn open_rank(
        &self,
        key: &IndexKey,
        info: &Arc<WorkerInfo>,
        checked: &CheckedSpec,
        rank: Rank,
        slot: Slot,
    ) -> Result<Arc<RankMember>, RegistrationError> {
        let of_rank = |endpoint: &Option<EventEndpoint>| {
            let endpoint = endpoint.as_ref().map(|endpoint| endpoint.of_rank(rank.0)).transpose();
            endpoint.map_err(|error| RegistrationError::Stream(error.to_string()))
        };
        let events = of_rank(&checked.events)?;
        let state = if events.is_some() { StreamState::Unproven } else { StreamState::Absent };
        let status = Arc::new(StreamStatus::new(state));
        if let Some(events) = events {
            let source = StreamSource {
                slot,
                worker: info.id,
                rank,
                events,
                replay: of_rank(&checked.replay)?,
                direction: info.spec.kv_events_direction,
                block_size: checked.block_size,
                eagle: checked.card.eagle,
            };
            self.streams.open(key, source, Arc::clone(&status)).map_err(RegistrationError::Stream)?;
        }
        let class = info.spec.device.class();
        let worker = Arc::clone(info);
        Ok(Arc::new(RankMember::new(slot, worker, rank, class, status)))
    }

    fn close_rank(&self, registry: &mut Registry, key: &IndexKey, member: &RankMember) {
        self.streams.close(key, member.slot);
        member.status.set_state(StreamState::Absent);
        registry.slots.release(member.slot);
    }

    /// Takes workers out of the view, then closes what they had. In this order, so that no request is placed
    /// on a rank while its stream is being closed; one that took an older view finds the slot's load forgotten,
    /// which excludes it.
    fn let_go(&self, registry: &mut Registry, ids: &[WorkerId]) {
        let leaving: Vec<_> = ids.iter().flat_map(|&id| registry.take_out(id)).collect();
        if leaving.is_empty() {
            return;
        }
        for &id in ids {
            self.leases.end(id);
        }
        registry.drop_empty_sets();
        self.publish(registry);
        for Leaving { key, member } in &leaving {
            self.close_rank(registry, key, member);
        }
    }

    fn publish(&self, registry: &mut Registry) {
        registry.generation += 1;
        let sets = registry.sets.iter().map(|set| Arc::new(set.view())).collect();
        let adapters: Vec<_> = registry.sets.iter().map(|set| set.card.lora_adapters.clone()).collect();
        self.view.store(Arc::new(FleetView::of(registry.generation, sets, &adapters)));
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

    /// Takes a worker out of its set and drops its loads; its streams are still open then.
    fn take_out(&mut self, id: WorkerId) -> Vec<Leaving> {
        let Some(worker) = self.workers.remove(&id) else { return Vec::new() };
        let Some(set) = self.sets.iter_mut().find(|set| set.key == worker.set) else { return Vec::new() };
        let gone: Vec<_> = set.members.extract_if(.., |member| member.worker.id == id).collect();
        for member in &gone {
            set.selector.loads().forget(member.slot);
        }
        info!(worker = %id, "worker left");
        gone.into_iter().map(|member| Leaving { key: set.index_key.clone(), member }).collect()
    }

    /// Forgets the indexes that no set uses, and names them.
    fn drop_idle_indexes(&mut self) -> Vec<IndexKey> {
        let Self { indexes, sets, .. } = self;
        let idle = indexes.extract_if(|key, _| sets.iter().all(|set| set.index_key != *key));
        idle.map(|(key, _)| key).collect()
    }

    /// A name of `card` that stands for something else in another set, and that set. Were it let through, a
    /// request for the name would go to one or the other by chance.
    fn name_taken(&self, card: &Card) -> Option<(String, SetKey)> {
        self.sets.iter().find_map(|set| {
            let known = &set.card;
            let adapters = card.lora_adapters.iter();
            let mut clashes = adapters.filter(|&name| {
                *name == known.set.model
                    || (known.set.model != card.set.model && known.lora_adapters.contains(name))
            });
            let name = clashes
                .next()
                .or_else(|| known.lora_adapters.contains(&card.set.model).then_some(&card.set.model));
            Some((name?.clone(), set.key.clone()))
        })
    }

    /// A set without members is gone: the next worker of its key founds it anew, under its own card.
    fn drop_empty_sets(&mut self) {
        self.sets.retain(|set| !set.members.is_empty());
    }
}
