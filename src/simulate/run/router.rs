//! The router: the production selector, loads and index, and what it is told.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use fastrand::Rng;

use crate::{
    event::Event,
    hash::{BlockHash, BlockSize},
    index::{self, IndexWriter, PrefixIndex},
    load::{Booking, Capacity, SlotLoad},
    select::{
        Admission, Demand, Exclusion, Member, Mode, Pin, PinField, Scratch, Selector, Tuning,
        queue::{Limits, Look, Polled, Queue, QueueSettings, Urgency, Wait, WaitReason, Waiting},
    },
    simulate::{
        gpu::Told,
        model::EngineModel,
        peer::Gauge,
        policy::{Policy, Rule},
        workload::Job,
    },
    slot::{Rank, Slot, WorkerId},
};

pub(super) struct Router {
    rule: Rule,
    block_size: BlockSize,
    /// One an engine that is there, and nobody else.
    members: Vec<Member>,
    /// The slot of each engine, there or not.
    slots: Vec<Slot>,
    capacity: Capacity,
    selector: Selector,
    /// Requests that wait, by their numbers.
    queue: Queue<usize>,
    /// When somebody may leave it though nothing else happens.
    wakes: Option<Duration>,
    index: PrefixIndex,
    writers: Vec<IndexWriter>,
    found: index::Scratch,
    scratch: Scratch,
    /// What each member's engine said when it was asked last, and when that was.
    gauges: Vec<Gauge>,
    asked: Option<Duration>,
    rng: Rng,
}

/// What became of a request that was to be placed.
pub(super) enum Placed {
    /// It goes to this engine.
    At(usize, Booking),
    /// It waits in the router.
    Waits,
    /// Nobody can take it.
    Nowhere,
}

impl Router {
    pub(super) fn new(
        policy: &Policy,
        model: &EngineModel,
        engines: usize,
        block_size: BlockSize,
        seed: u64,
    ) -> Self {
        let mode = match policy.rule {
            Rule::Selector(mode) => mode,
            // A pin chooses; the mode is what prices the least.
            Rule::Peer(_) => Mode::LeastLoaded,
            Rule::Pooled => Mode::Kv,
        };
        // A policy's weight is for blocks of 16 tokens, and the selector's for those of this run.
        let in_blocks = 16.0 / f64::from(block_size.get());
        let tuning = Tuning {
            decode_active_request_weight: policy.tuning.decode_active_request_weight * in_blocks,
            ..policy.tuning
        };
        let (index, writers) = PrefixIndex::new(NonZeroUsize::MIN);
        Self {
            rule: policy.rule,
            block_size,
            members: Vec::new(),
            slots: (0..).map(|index| Slot { index, generation: 0 }).take(engines).collect(),
            capacity: Capacity {
                kv_blocks: Some(model.cache_tokens / u64::from(block_size.get())),
                batch_tokens: Some(model.step_tokens),
            },
            selector: Selector::new(mode, tuning),
            queue: Queue::new(QueueSettings {
                policy: tuning.queue_policy,
                hold: tuning.hold,
                limits: Limits::default(),
                tenants_share: false,
            }),
            wakes: None,
            index,
            writers,
            found: index::Scratch::new(),
            scratch: Scratch::new(),
            gauges: Vec::new(),
            asked: None,
            rng: Rng::with_seed(seed),
        }
    }

    /// An engine came, with nothing in its cache.
    pub(super) fn comes(&mut self, engine: usize) {
        let Some(&slot) = self.slots.get(engine) else { return };
        self.members
            .push(Member { capacity: self.capacity, ..Member::new(slot, WorkerId(engine as u64), Rank(0)) });
        self.members.sort_unstable_by_key(|member| member.worker);
        self.asked = None;
    }

    /// An engine is gone, and with it what it held: its successor has another slot.
    pub(super) fn goes(&mut self, engine: usize) {
        self.members.retain(|member| member.worker != WorkerId(engine as u64));
        self.asked = None;
        let Some(slot) = self.slots.get_mut(engine) else { return };
        self.selector.loads().forget(*slot);
        if self.rule != Rule::Pooled {
            self.writers.iter_mut().for_each(|writer| {
                writer.retire(*slot);
            });
        }
        slot.generation += 1;
    }

    /// What it has at an engine.
    pub(super) fn load_of(&self, engine: usize) -> SlotLoad {
        self.slots.get(engine).map_or_else(SlotLoad::default, |&slot| self.selector.loads().get(slot))
    }

    /// It hears how an engine's GPU is doing.
    pub(super) fn tell(&mut self, engine: usize, told: Told) {
        let fenced = told.fault && self.selector.tuning().device_weights.enabled;
        for member in self.members.iter_mut().filter(|member| engine_of(member.worker) == engine) {
            member.device = Some(told.condition);
            member.exclusion = fenced.then_some(Exclusion::Fenced);
        }
    }

    /// Chooses an engine for request `id` and books it there, or keeps it. `gauge` is what an engine says when it is asked now.
    pub(super) fn place(
        &mut self,
        id: usize,
        job: &Job,
        now: Duration,
        gauge: impl Fn(usize) -> Gauge,
    ) -> Placed {
        let mut pin = None;
        if let Rule::Peer(peer) = self.rule {
            let every = peer.asks_every().map(Duration::from_secs_f64);
            if self.asked.is_none_or(|asked| every.is_some_and(|every| now >= asked + every)) {
                self.asked = Some(now);
                self.gauges.clear();
                self.gauges.extend(self.members.iter().map(|member| gauge(engine_of(member.worker))));
            }
            let Self { selector, members, scratch, rng, .. } = self;
            let (demand, pages) = asked_of(job, self.block_size);
            let overlaps = self.index.overlap(pages, &mut self.found);
            if selector.explain(members, overlaps, &demand, scratch, now, rng).is_err() {
                return Placed::Nowhere;
            }
            let picked = peer.pick(scratch.rows(), &self.gauges, &demand, rng);
            let Some(worker) = picked.and_then(|at| Some(members.get(at)?.worker)) else {
                return Placed::Nowhere;
            };
            pin = Some(Pin { worker, rank: None, field: PinField::BackendInstanceId });
        }
        let admission = self.door().admit(job, pin, false, now);
        match admission {
            Some(Admission::Admitted(choice, booking)) => {
                self.queue.booked(job.sequence.first().copied());
                Placed::At(engine_of(choice.worker), booking)
            }
            Some(Admission::Waits(wait)) => {
                let workers = self.members.len() as u64;
                match self.queue.push(waiting(job, &wait, now), workers, id) {
                    Ok(_) => Placed::Waits,
                    Err(_) => Placed::Nowhere,
                }
            }
            None => Placed::Nowhere,
        }
    }

    /// A request that need not wait any longer, and where it goes; call it until there is none.
    pub(super) fn released<'a>(
        &mut self,
        now: Duration,
        job: impl Fn(usize) -> &'a Job,
    ) -> Option<(usize, Placed)> {
        self.wakes = None;
        if self.queue.is_empty() {
            return None;
        }
        let outlook = self.selector.outlook(&self.members, &mut self.scratch, now);
        let mut queue = std::mem::replace(&mut self.queue, Queue::new(QueueSettings::default()));
        let mut door = self.door();
        let polled = queue.poll(now, outlook.free, |_, &mut id, hold_over| {
            match door.admit(job(id), None, hold_over, now) {
                Some(Admission::Admitted(choice, booking)) => {
                    Look::Leaves(Placed::At(engine_of(choice.worker), booking))
                }
                Some(Admission::Waits(wait)) if wait.reason == WaitReason::Threshold => Look::LaneWaits,
                Some(Admission::Waits(_)) => Look::Waits,
                None => Look::Leaves(Placed::Nowhere),
            }
        });
        self.queue = queue;
        match polled {
            Polled::Ready(id, placed) => Some((id, placed)),
            Polled::Rejected(id, _) => Some((id, Placed::Nowhere)),
            Polled::WaitUntil(moment) => {
                self.wakes = moment.into_iter().chain(outlook.at).min();
                None
            }
        }
    }

    /// When somebody may be released though nothing happens before.
    pub(super) const fn wakes(&self) -> Option<Duration> {
        self.wakes
    }

    fn door(&mut self) -> Door<'_> {
        Door {
            selector: &self.selector,
            members: &self.members,
            index: &self.index,
            block_size: self.block_size,
            found: &mut self.found,
            scratch: &mut self.scratch,
            rng: &mut self.rng,
        }
    }

    /// What an engine said of its cache.
    pub(super) fn learn(&mut self, engine: usize, events: &[Event]) {
        let writer = &mut self.writers[0];
        for event in events {
            match self.rule {
                Rule::Pooled => self.slots.iter().for_each(|&slot| {
                    writer.apply(slot, event);
                }),
                _ => {
                    if let Some(&slot) = self.slots.get(engine) {
                        writer.apply(slot, event);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
impl Router {
    /// GPU blocks that the index holds of each engine.
    pub(super) fn held(&self) -> Vec<u64> {
        self.slots.iter().map(|&slot| self.index.blocks(slot)[0]).collect()
    }

    pub(super) fn load(&self) -> SlotLoad {
        self.selector.loads().total()
    }
}

/// What an admission needs of the router.
struct Door<'a> {
    selector: &'a Selector,
    members: &'a [Member],
    index: &'a PrefixIndex,
    block_size: BlockSize,
    found: &'a mut index::Scratch,
    scratch: &'a mut Scratch,
    rng: &'a mut Rng,
}

impl Door<'_> {
    /// `None` if nobody can take the request.
    fn admit(&mut self, job: &Job, pin: Option<Pin>, hold_over: bool, now: Duration) -> Option<Admission> {
        let (demand, pages) = asked_of(job, self.block_size);
        let demand = Demand { pin, ..demand };
        let overlaps = self.index.overlap(pages, self.found);
        let Self { selector, members, scratch, rng, .. } = self;
        selector.admit_when_free(members, overlaps, &demand, hold_over, scratch, now, rng).ok()
    }
}

/// What a job asks of a choice, and the pages of its prompt.
fn asked_of(job: &Job, block_size: BlockSize) -> (Demand<'_>, &[BlockHash]) {
    let page = u64::from(block_size.get());
    let full = usize::try_from(job.prompt_tokens / page).unwrap_or(usize::MAX).min(job.pages.len());
    let prompt = usize::try_from(job.prompt_tokens).unwrap_or(usize::MAX);
    (Demand::new(prompt, block_size, &job.sequence[..full]), &job.pages[..full])
}

fn waiting(job: &Job, wait: &Wait, now: Duration) -> Waiting {
    Waiting {
        arrived: now,
        urgency: Urgency::default(),
        lane: 0,
        tenant: Arc::default(),
        isl_tokens: job.prompt_tokens,
        uncached_tokens: wait.prefill.uncached_tokens,
        prefill_seconds: wait.prefill.seconds,
        prefix: job.sequence.first().copied(),
    }
}

fn engine_of(worker: WorkerId) -> usize {
    usize::try_from(worker.0).unwrap_or(usize::MAX)
}
