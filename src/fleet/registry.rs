//! The fleet itself: takes workers in, lets them go, and publishes views.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use ahash::AHashMap;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use thiserror::Error;
use tracing::{info, warn};

use super::{
    card::Card,
    endpoint::{EventEndpoint, StreamDirection},
    router_config::RouterConfig,
    stream_status::{StreamState, StreamStatus},
    view::{FleetView, RankMember, WorkerInfo},
    worker_set::{SetKey, WorkerSet},
    worker_spec::{CheckedSpec, SpecError, WorkerSpec},
};
use crate::{
    hash::BlockSize,
    index::{IndexWriter, PrefixIndex},
    slot::{Rank, Slot, SlotAllocator, WorkerId},
};

/// What tells indexes apart: models never share block hashes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct IndexKey {
    /// The base model's name.
    pub model: String,
    /// Tokens per block.
    pub block_size: u32,
    /// Whether block hashes look one token ahead.
    pub eagle: bool,
}

impl IndexKey {
    pub(super) fn of(card: &Card) -> Self {
        Self { model: card.model.clone(), block_size: card.block_size, eagle: card.eagle }
    }
}

/// Where one rank's events come from.
#[derive(Clone, Debug)]
pub struct StreamSource {
    /// The rank's slot.
    pub slot: Slot,
    /// Its worker.
    pub worker: WorkerId,
    /// Its rank.
    pub rank: Rank,
    /// ZMQ endpoint of the events.
    pub events: String,
    /// ZMQ endpoint of the replay socket.
    pub replay: Option<String>,
    /// Which side connects on the event socket.
    pub direction: StreamDirection,
    /// Tokens per block.
    pub block_size: BlockSize,
    /// Whether block hashes look one token ahead.
    pub eagle: bool,
}

/// What the fleet asks of ingestion. Calls come one at a time, in the order of the changes.
pub trait Streams: Send + Sync {
    /// A new index: from now on streams of this key feed `writers`.
    fn index_created(&self, key: &IndexKey, writers: Vec<IndexWriter>);
    /// A rank came. Its stream writes `status`.
    ///
    /// # Errors
    /// What is wrong with the endpoint, for whoever registered the worker.
    fn open(&self, key: &IndexKey, source: StreamSource, status: Arc<StreamStatus>) -> Result<(), String>;
    /// A rank is gone: close its stream, if it had one, and drop its blocks.
    fn close(&self, key: &IndexKey, slot: Slot);
}

/// A worker that was not taken in.
#[derive(Debug, Error)]
pub enum RegistrationError {
    /// Its description cannot be used.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// Its id belongs to another worker.
    #[error("worker id {id} is taken by {url}; leave the id out, or remove that worker first")]
    IdTaken {
        /// The id.
        id: WorkerId,
        /// Who has it.
        url: String,
    },
    /// Its set stands under another card.
    #[error(
        "worker set {set} exists with other values of {}; replicas of one set must agree: register under another \
         endpoint or component, or remove the set's workers first", fields.join(", ")
    )]
    Conflict {
        /// The set.
        set: Box<SetKey>,
        /// The card fields in which they differ.
        fields: Vec<&'static str>,
    },
    /// Its event stream cannot be opened.
    #[error("kv_events_endpoint: {0}")]
    Stream(String),
}

struct Worker {
    info: Arc<WorkerInfo>,
    set: SetKey,
    /// `None` for workers from files and flags, which stay until told otherwise.
    lease: Option<Lease>,
}

struct Lease {
    length: Duration,
    expires: Instant,
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
pub struct Fleet {
    registry: Mutex<Registry>,
    view: ArcSwap<FleetView>,
    streams: Box<dyn Streams>,
    frontend_config: Arc<RouterConfig>,
    epoch: Instant,
}

/// How long a worker that could not be reached takes no requests.
const INHIBITION: Duration = Duration::from_secs(5);

/// Index shards a model gets. One applier thread keeps up with hundreds of engines.
const SHARDS: std::num::NonZeroUsize = std::num::NonZeroUsize::MIN;

impl Fleet {
    /// An empty fleet, whose sets inherit `frontend_config` unless their cards say otherwise.
    #[must_use]
    pub fn new(frontend_config: RouterConfig, streams: Box<dyn Streams>) -> Self {
        Self {
            registry: Mutex::new(Registry { next_id: 1, ..Registry::default() }),
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
    /// again under its id with the same description only renews.
    ///
    /// # Errors
    /// See [`RegistrationError`]; the fleet is then as it was.
    pub fn register(&self, spec: WorkerSpec, lease: Option<Duration>) -> Result<WorkerId, RegistrationError> {
        let checked = spec.check()?;
        let mut registry = self.registry.lock();
        if let Some(id) = spec.id.map(WorkerId)
            && let Some(present) = registry.workers.get_mut(&id)
        {
            if present.info.spec != spec {
                let url = present.info.url.to_string();
                return Err(RegistrationError::IdTaken { id, url });
            }
            present.lease = lease.map(Lease::of);
            return Ok(id);
        }
        let set = self.set_for(&mut registry, &checked)?;
        let id = registry.take_id(spec.id);
        let info = Arc::new(WorkerInfo::new(id, checked.url.clone(), spec));
        let members = self.open_ranks(&mut registry, &info, &checked, set)?;
        info!(worker = %id, url = %info.url, set = %registry.sets[set].key, "worker joined");
        registry.sets[set].members.extend(members);
        let key = registry.sets[set].key.clone();
        registry.workers.insert(id, Worker { info, set: key, lease: lease.map(Lease::of) });
        self.publish(&mut registry);
        Ok(id)
    }

    /// Renews a lease. False if there is no such worker, which then has to register again.
    pub fn heartbeat(&self, id: WorkerId) -> bool {
        let mut registry = self.registry.lock();
        let Some(worker) = registry.workers.get_mut(&id) else { return false };
        if let Some(lease) = &mut worker.lease {
            *lease = Lease::of(lease.length);
        }
        true
    }

    /// Keeps new requests away from a worker; those in flight finish. False if there is no such worker.
    pub fn drain(&self, id: WorkerId) -> bool {
        let registry = self.registry.lock();
        let Some(worker) = registry.workers.get(&id) else { return false };
        // Relaxed: see `WorkerInfo::exclusion`.
        worker.info.draining.store(true, Ordering::Relaxed);
        true
    }

    /// Lets a worker go, with everything that was known of it. False if there is no such worker.
    pub fn remove(&self, id: WorkerId) -> bool {
        let mut registry = self.registry.lock();
        let known = self.remove_locked(&mut registry, id);
        if known {
            self.publish(&mut registry);
        }
        known
    }

    /// Lets workers go whose lease has run out; returns their ids.
    pub fn expire_leases(&self) -> Vec<WorkerId> {
        let now = Instant::now();
        let mut registry = self.registry.lock();
        let expired: Vec<_> = registry
            .workers
            .iter()
            .filter(|(_, worker)| worker.lease.as_ref().is_some_and(|lease| lease.expires <= now))
            .map(|(&id, _)| id)
            .collect();
        for &id in &expired {
            warn!(worker = %id, "lease expired without a heartbeat: worker removed");
            self.remove_locked(&mut registry, id);
        }
        if !expired.is_empty() {
            self.publish(&mut registry);
        }
        expired
    }

    /// The position of the set that the worker belongs to, founding it if it is the first.
    fn set_for(&self, registry: &mut Registry, checked: &CheckedSpec) -> Result<usize, RegistrationError> {
        let key = SetKey::of(&checked.card);
        if let Some(position) = registry.sets.iter().position(|set| set.key == key) {
            let fields = registry.sets[position].card.differing_fields(&checked.card);
            return if fields.is_empty() {
                Ok(position)
            } else {
                Err(RegistrationError::Conflict { set: Box::new(key), fields })
            };
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

    /// The index of a key. Indexes stay: an empty one costs nothing, and a set often comes back.
    fn index_for(&self, registry: &mut Registry, key: &IndexKey) -> PrefixIndex {
        if let Some(index) = registry.indexes.get(key) {
            return index.clone();
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

    fn remove_locked(&self, registry: &mut Registry, id: WorkerId) -> bool {
        let Some(worker) = registry.workers.remove(&id) else { return false };
        let Some(position) = registry.sets.iter().position(|set| set.key == worker.set) else {
            return true;
        };
        let set = &mut registry.sets[position];
        let key = set.index_key.clone();
        let selector = Arc::clone(&set.selector);
        let gone: Vec<_> = set.members.extract_if(.., |member| member.worker.id == id).collect();
        for member in &gone {
            selector.loads().forget(member.slot);
            self.close_rank(registry, &key, member);
        }
        info!(worker = %id, "worker left");
        registry.drop_empty_sets();
        true
    }

    fn publish(&self, registry: &mut Registry) {
        registry.generation += 1;
        let sets = registry.sets.iter().map(|set| Arc::new(set.view())).collect();
        let adapters: Vec<_> = registry.sets.iter().map(|set| set.card.lora_adapters.clone()).collect();
        self.view.store(Arc::new(FleetView::of(registry.generation, sets, &adapters)));
    }
}

impl Lease {
    fn of(length: Duration) -> Self {
        Self { length, expires: Instant::now() + length }
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

    /// A set without members is gone: the next worker of its key founds it anew, under its own card.
    fn drop_empty_sets(&mut self) {
        self.sets.retain(|set| !set.members.is_empty());
    }
}
