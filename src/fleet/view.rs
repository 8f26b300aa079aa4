//! What a request sees of the fleet: one immutable view, taken once.

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::AtomicU64},
};

use ahash::AHashMap;

use super::{
    affinity::Sessions,
    card::WorkerType,
    cohort::{Cohort, Standing, differing_fields},
    device_status::DeviceStatus,
    disagg::PrefillPool,
    fence::Fence,
    fingerprint::Fingerprint,
    frontend_routing::FrontendRouting,
    prediction::Predictions,
    rank::Expected,
    router_config::RouterConfig,
    stream_status::StreamStatus,
    worker_info::WorkerInfo,
    worker_set::{ConfigSource, SetKey, SetState},
    worker_spec::WorkerSpec,
};
use crate::{
    device::DeviceClass,
    hash::BlockSize,
    index::PrefixIndex,
    select::{Exclusion, Member, Selector},
    slot::{Rank, Slot, WorkerId},
};

/// One rank of one worker, in one incarnation.
#[derive(Debug)]
pub struct RankMember {
    /// What the index and the loads know it by.
    pub slot: Slot,
    /// Its worker.
    pub worker: Arc<WorkerInfo>,
    /// Whom it agrees with.
    pub cohort: Arc<Cohort>,
    /// Its rank.
    pub rank: Rank,
    /// What it computes on.
    pub class: DeviceClass,
    /// Its event stream.
    pub status: Arc<StreamStatus>,
    /// Who expects what is sent there to be cached there, if anybody does.
    pub expected: Option<Arc<Expected>>,
    /// How its devices are doing, as far as anybody tells. This and what follows is shared with what the rank is in views under
    /// another configuration.
    pub devices: Arc<DeviceStatus>,
    /// How far off what was predicted of its cache has been.
    pub predictions: Arc<Predictions>,
    /// What it was sent, and what its answers said.
    pub tally: Arc<RankTally>,
}

/// Counts of one rank. Statistics: every access is Relaxed.
#[derive(Debug, Default)]
pub struct RankTally {
    /// Requests sent there.
    pub chosen: AtomicU64,
    /// Prompt tokens of its answers that also said how many of them were cached.
    pub prompt_tokens: AtomicU64,
    /// How many those were.
    pub cached_tokens: AtomicU64,
}

impl RankMember {
    pub(super) fn new(
        (slot, rank): (Slot, Rank),
        worker: &Arc<WorkerInfo>,
        cohort: &Arc<Cohort>,
        status: Arc<StreamStatus>,
        expected: Option<Expected>,
    ) -> Self {
        let (worker, cohort) = (Arc::clone(worker), Arc::clone(cohort));
        let class = worker.spec.device.class();
        Self {
            slot,
            worker,
            cohort,
            rank,
            class,
            status,
            expected: expected.map(Arc::new),
            devices: Arc::default(),
            predictions: Arc::default(),
            tally: Arc::default(),
        }
    }

    /// The same rank where it agrees with others, and somebody else expects what it caches.
    pub(super) fn within(&self, cohort: &Arc<Cohort>, expected: Option<Arc<Expected>>) -> Self {
        Self {
            slot: self.slot,
            worker: Arc::clone(&self.worker),
            cohort: Arc::clone(cohort),
            rank: self.rank,
            class: self.class,
            status: Arc::clone(&self.status),
            expected,
            devices: Arc::clone(&self.devices),
            predictions: Arc::clone(&self.predictions),
            tally: Arc::clone(&self.tally),
        }
    }

    /// The slot under which the index has what was sent there lately, if that stands beside what its events say.
    #[must_use]
    pub fn expected_beside(&self) -> Option<Slot> {
        let slot = self.expected.as_ref()?.slot;
        (slot != self.slot).then_some(slot)
    }

    /// The rank as selection sees it at `now_ms` on the fleet's clock, if its cohort is admitted.
    #[must_use]
    pub fn member(&self, now_ms: u64) -> Member {
        self.member_with(self.exclusion(now_ms), now_ms)
    }

    fn member_with(&self, exclusion: Option<Exclusion>, now_ms: u64) -> Member {
        Member {
            slot: self.slot,
            worker: self.worker.id,
            rank: self.rank,
            class: self.class,
            device: self.devices.condition(now_ms),
            credits_overlap: self.credits_overlap(),
            expected: self.expected_beside(),
            slow_start: self.worker.slow_start(now_ms),
            capacity: self.worker.capacity(),
            exclusion,
        }
    }

    /// Whether blocks that the index holds for the rank may be credited to it: its stream can be trusted, and no parity check
    /// says otherwise.
    #[must_use]
    pub fn credits_overlap(&self) -> bool {
        self.status.state().credits_overlap() && !self.worker.parity.withholds()
    }

    /// Whether device telemetry or an operator keeps requests away at `now_ms` on the fleet's clock.
    #[must_use]
    pub fn fenced(&self, now_ms: u64) -> bool {
        match self.worker.fence() {
            Fence::Auto => self.devices.fenced(&self.cohort.config.tuning.device_weights, now_ms),
            fence => fence == Fence::On,
        }
    }

    /// Why the rank takes no request at `now_ms`, if it does not, whatever its set thinks of its cohort.
    fn exclusion(&self, now_ms: u64) -> Option<Exclusion> {
        match self.worker.exclusion(now_ms) {
            Some(Exclusion::Draining) => Some(Exclusion::Draining),
            _ if self.fenced(now_ms) => Some(Exclusion::Fenced),
            other => other,
        }
    }
}

/// A worker set at one moment. What is said of its configuration and its cards is that of the cohort that is
/// admitted, or, in a conflict, of the one that was registered first.
#[derive(Clone, Debug)]
pub struct SetView {
    /// Which set.
    pub key: SetKey,
    /// The generation of the view that it is in: whoever decides on it later decides on that.
    pub generation: u64,
    /// Tokens per block.
    pub block_size: BlockSize,
    /// Whether block hashes look one token ahead.
    pub eagle: bool,
    /// Longest prompt plus output, where known.
    pub max_model_len: Option<u64>,
    /// The effective routing configuration.
    pub config: Arc<RouterConfig>,
    /// Where it came from.
    pub source: ConfigSource,
    /// What the frontend said when that was made of it.
    pub frontend: Arc<FrontendRouting>,
    /// Decides and keeps the set's loads; the same over all views of the set under one configuration.
    pub selector: Arc<Selector>,
    /// Where its sessions went; the same over all views of the set.
    pub sessions: Arc<Sessions>,
    /// Who holds what; shared by the sets of one model and hash rule.
    pub index: PrefixIndex,
    /// Every rank of every worker, admitted or not.
    pub members: Vec<Arc<RankMember>>,
    /// Who agrees with whom, first registered first.
    pub cohorts: Vec<Standing>,
    /// The cohort whose members take requests; `None` in a conflict.
    pub admitted: Option<Fingerprint>,
    /// Who computes its prompts, if it is a decode set.
    pub prefill: PrefillPool,
}

impl SetView {
    /// Writes the members as selection sees them at `now_ms` into `out`, for a request for `adapter` if it asks for one. True if
    /// failures keep requests from all that could take them, so that the least bad takes them all the same.
    pub fn gather(&self, adapter: Option<&str>, now_ms: u64, out: &mut Vec<Member>) -> bool {
        out.clear();
        let exclusion = |member| self.exclusion_for(member, adapter, now_ms);
        out.extend(self.members.iter().map(|member| member.member_with(exclusion(member), now_ms)));
        let nobody = out.iter().all(|member| member.exclusion.is_some());
        if nobody {
            self.admit_the_least_bad(adapter, now_ms, out);
        }
        nobody
    }

    /// Where failures alone, of requests or of active checks, keep requests from every worker that could take them, the one whose
    /// time is over first takes them all the same, of those whose checks are well if there are any: to try is better than to
    /// refuse, and it may be well by now.
    fn admit_the_least_bad(&self, adapter: Option<&str>, now_ms: u64, members: &mut [Member]) {
        let failed = |of: &RankMember| {
            let serves = adapter.is_none_or(|adapter| of.worker.serves(adapter));
            serves && self.exclusion(of, now_ms).is_some_and(Exclusion::is_a_failure)
        };
        let least = self.members.iter().filter(|of| failed(of));
        let least = least
            .min_by_key(|of| (of.worker.is_down(), of.worker.inhibited_ms(now_ms)))
            .map(|of| of.worker.id);
        for (member, of) in members.iter_mut().zip(&self.members) {
            if Some(member.worker) == least && failed(of) {
                member.exclusion = None;
            }
        }
    }

    /// Why one of its members takes no request for `adapter`, or for the model itself, at `now_ms`, if it does not.
    fn exclusion_for(&self, member: &RankMember, adapter: Option<&str>, now_ms: u64) -> Option<Exclusion> {
        let lacks = || adapter.is_some_and(|adapter| !member.worker.serves(adapter));
        self.exclusion(member, now_ms).or_else(|| lacks().then_some(Exclusion::AdapterNotLoaded))
    }

    /// Why one of its members takes no request at `now_ms`, if it does not.
    #[must_use]
    pub fn exclusion(&self, member: &RankMember, now_ms: u64) -> Option<Exclusion> {
        match member.exclusion(now_ms) {
            Some(Exclusion::Draining) => Some(Exclusion::Draining),
            other if self.admitted == Some(member.cohort.fingerprint) => other,
            _ => Some(Exclusion::ConflictingConfiguration),
        }
    }

    /// How many ranks take requests at `now_ms`; one, if failures alone keep them from all.
    #[must_use]
    pub fn routable(&self, now_ms: u64) -> usize {
        self.routable_for(None, now_ms)
    }

    /// How many ranks take requests for `adapter`, or for the model itself, at `now_ms`; one, if failures alone keep them
    /// from all.
    #[must_use]
    pub fn routable_for(&self, adapter: Option<&str>, now_ms: u64) -> usize {
        let serving = || {
            let serves =
                |member: &&Arc<RankMember>| adapter.is_none_or(|adapter| member.worker.serves(adapter));
            self.members.iter().filter(serves).map(|member| self.exclusion(member, now_ms))
        };
        match serving().filter(Option::is_none).count() {
            0 => usize::from(serving().any(|why| why.is_some_and(Exclusion::is_a_failure))),
            some => some,
        }
    }

    /// Whether any cohort is admitted.
    #[must_use]
    pub const fn state(&self) -> SetState {
        if self.admitted.is_some() { SetState::Serving } else { SetState::Conflict }
    }

    /// Where its cost model came from, which is a key of its own on the card.
    #[must_use]
    pub fn cost_model_source(&self) -> ConfigSource {
        self.source_of(|spec| spec.router_cost_model.is_some())
    }

    /// Where its hold came from, which is a key of its own on the card.
    #[must_use]
    pub fn hold_source(&self) -> ConfigSource {
        self.source_of(|spec| spec.router_hold.is_some())
    }

    /// Where a setting came from that has a key of its own on the card: a card with a configuration that leaves it out leaves
    /// it to the frontend.
    fn source_of(&self, on_card: impl Fn(&WorkerSpec) -> bool) -> ConfigSource {
        match self.source {
            _ if self.says(on_card) => ConfigSource::Card,
            ConfigSource::DecodeSet => ConfigSource::DecodeSet,
            ConfigSource::Card | ConfigSource::Frontend => ConfigSource::Frontend,
        }
    }

    /// Where its device weights came from, which are a key of their own on the card.
    #[must_use]
    pub fn device_weights_source(&self) -> ConfigSource {
        if self.says(|spec| spec.device_weights.is_some()) {
            ConfigSource::Card
        } else {
            ConfigSource::Frontend
        }
    }

    /// Whether any member whose cohort holds for the set has that on its card.
    pub(super) fn says(&self, on_card: impl Fn(&WorkerSpec) -> bool) -> bool {
        let first = || self.cohorts.first().map(|standing| standing.cohort.fingerprint);
        let holds = self.admitted.or_else(first);
        let mut members = self.members.iter().filter(|member| Some(member.cohort.fingerprint) == holds);
        members.any(|member| on_card(&member.worker.spec))
    }

    /// The fields in which the members' cards differ, with their paths, sorted; none in most sets.
    #[must_use]
    pub fn differing_fields(&self) -> Vec<String> {
        differing_fields(&self.cohorts)
    }

    /// The names of the adapters that can be asked for: those of the cohort that is admitted; in a conflict all,
    /// so that whoever asks hears of the conflict.
    fn adapters(&self) -> BTreeSet<String> {
        let counts = |member: &&Arc<RankMember>| {
            self.admitted.is_none_or(|admitted| admitted == member.cohort.fingerprint)
        };
        let members = self.members.iter().filter(counts);
        members.flat_map(|member| member.worker.adapters().to_vec()).collect()
    }

    /// The member that has `slot`. Walks through all of them.
    #[must_use]
    pub fn by_slot(&self, slot: Slot) -> Option<&Arc<RankMember>> {
        self.members.iter().find(|member| member.slot == slot)
    }

    /// Number of workers, whatever their ranks.
    #[must_use]
    pub fn worker_count(&self) -> usize {
        let mut ids: Vec<_> = self.members.iter().map(|member| member.worker.id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.len()
    }
}

/// Where requests for one model name go.
#[derive(Clone, Debug, Default)]
pub struct ModelRoute {
    /// Positions in [`FleetView::sets`].
    pub sets: Vec<usize>,
    /// The adapter, if the name is one.
    pub lora: Option<String>,
}

/// The fleet at one moment.
#[derive(Clone, Debug, Default)]
pub struct FleetView {
    /// Goes up with every change.
    pub generation: u64,
    /// What the frontend says, where sets do not.
    pub frontend: Arc<FrontendRouting>,
    /// Every worker set that has members.
    pub sets: Vec<Arc<SetView>>,
    pub(super) routes: AHashMap<String, ModelRoute>,
}

impl FleetView {
    /// Where requests for `model` go; `None` if nobody serves a model of that name.
    #[must_use]
    pub fn route(&self, model: &str) -> Option<&ModelRoute> {
        self.routes.get(model)
    }

    /// Every name that clients may use, sorted.
    #[must_use]
    pub fn models(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.routes.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// The worker of that id.
    #[must_use]
    pub fn worker(&self, id: WorkerId) -> Option<&Arc<WorkerInfo>> {
        self.members().map(|(_, member)| &member.worker).find(|worker| worker.id == id)
    }

    /// Every rank of the worker of that id, with its set.
    pub fn ranks_of(&self, id: WorkerId) -> impl Iterator<Item = (&Arc<SetView>, &Arc<RankMember>)> {
        self.members().filter(move |(_, member)| member.worker.id == id)
    }

    /// Every rank of every set.
    pub fn members(&self) -> impl Iterator<Item = (&Arc<SetView>, &Arc<RankMember>)> {
        self.sets.iter().flat_map(|set| set.members.iter().map(move |member| (set, member)))
    }

    /// Every worker of every set, once.
    pub fn workers(&self) -> impl Iterator<Item = &Arc<WorkerInfo>> {
        // A worker is here once a rank, and its ranks stand together.
        let mut last = None;
        let workers = self.members().map(|(_, member)| &member.worker);
        workers.filter(move |worker| last.replace(worker.id) != Some(worker.id))
    }

    /// Whether there are prefill workers of `model`, which alone serve nobody.
    #[must_use]
    pub fn has_prefill(&self, model: &str) -> bool {
        let of_model = |set: &Arc<SetView>| set.key.model == model;
        self.sets.iter().any(|set| of_model(set) && set.key.worker_type == WorkerType::Prefill)
    }

    /// The view of `sets`. Prefill sets are in it, but no name stands for one: they serve decode sets. A name is either
    /// a model or an adapter: the registry takes nobody in who would make it both.
    pub(super) fn of(generation: u64, frontend: &Arc<FrontendRouting>, sets: Vec<Arc<SetView>>) -> Self {
        let mut routes: AHashMap<String, ModelRoute> = AHashMap::new();
        for (position, set) in sets.iter().enumerate() {
            if set.key.worker_type == WorkerType::Prefill {
                continue;
            }
            routes.entry(set.key.model.clone()).or_default().sets.push(position);
            for adapter in set.adapters() {
                let route = routes.entry(adapter.clone()).or_default();
                route.sets.push(position);
                route.lora = Some(adapter);
            }
        }
        Self { generation, frontend: Arc::clone(frontend), sets, routes }
    }
}
