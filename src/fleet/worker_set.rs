//! Worker sets: instances that serve the same thing under one routing configuration.

use std::{fmt, sync::Arc};

use tracing::{error, info, warn};

use super::{
    affinity::Sessions,
    card::WorkerType,
    cohort::{Cohort, Standing, differing_fields},
    disagg::PrefillPool,
    fingerprint::Fingerprint,
    frontend_routing::FrontendRouting,
    mismatch::OnConfigMismatch,
    model_type::ModelType,
    router_config::RouterConfig,
    view::{RankMember, SetView},
};
use crate::{load::Loads, slot::WorkerId};

/// What makes instances one worker set.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SetKey {
    /// The name that clients use.
    pub model: String,
    /// The worker's address, in three parts.
    pub namespace: String,
    /// Second part.
    pub component: String,
    /// Third part.
    pub endpoint: String,
    /// The parts of the API that they serve.
    pub model_type: ModelType,
    /// Role in a prefill/decode deployment.
    pub worker_type: WorkerType,
}

impl fmt::Display for SetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, namespace, component, endpoint, .. } = self;
        write!(f, "{model}@{namespace}.{component}.{endpoint}/{}", self.worker_type.name())
    }
}

/// Where a worker set's effective configuration came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfigSource {
    /// Its cards advertise one.
    Card,
    /// They do not: it inherits the frontend's.
    Frontend,
    /// They do not, and it computes prompts for a decode set: it inherits that set's.
    DecodeSet,
}

impl ConfigSource {
    /// The name on the admin listener.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Card => "card",
            Self::Frontend => "frontend",
            Self::DecodeSet => "decode_set",
        }
    }
}

/// Whether a worker set takes requests, as far as its configuration goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetState {
    /// One cohort is admitted.
    Serving,
    /// Its members disagree, and none is admitted.
    Conflict,
}

impl SetState {
    /// The name on the admin listener.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Conflict => "conflict",
        }
    }
}

/// A worker set as the registry keeps it. It has members; without any it is gone.
pub(super) struct WorkerSet {
    pub(super) key: SetKey,
    /// What its slots are doing; outlives every change of configuration.
    pub(super) loads: Arc<Loads>,
    /// Where its sessions went; as long as the loads.
    sessions: Arc<Sessions>,
    /// In order of founding.
    pub(super) cohorts: Vec<Standing>,
    pub(super) members: Vec<Arc<RankMember>>,
    /// Workers that take nothing new, or are about to.
    draining: Vec<WorkerId>,
    /// Who was admitted in the last view.
    admitted: Option<Fingerprint>,
    /// The cohorts that the last report of a disagreement named.
    reported: Vec<Fingerprint>,
}

impl WorkerSet {
    pub(super) fn new(key: SetKey, loads: Arc<Loads>) -> Self {
        Self {
            key,
            loads,
            sessions: Arc::default(),
            cohorts: Vec::new(),
            members: Vec::new(),
            draining: Vec::new(),
            admitted: None,
            reported: Vec::new(),
        }
    }

    pub(super) fn cohort(&self, fingerprint: Fingerprint) -> Option<&Arc<Cohort>> {
        let mut cohorts = self.cohorts.iter().map(|standing| &standing.cohort);
        cohorts.find(|cohort| cohort.fingerprint == fingerprint)
    }

    /// Takes the ranks of a worker in.
    pub(super) fn join(&mut self, cohort: &Arc<Cohort>, members: Vec<Arc<RankMember>>, registered_ms: u64) {
        self.members.extend(members);
        let known = self.cohorts.iter_mut().find(|known| known.cohort.fingerprint == cohort.fingerprint);
        if let Some(known) = known {
            // Only ever earlier: when its first members leave before its last, a cohort keeps its place.
            known.registered_ms = known.registered_ms.min(registered_ms);
        } else {
            self.cohorts.push(Standing { cohort: Arc::clone(cohort), registered_ms });
        }
    }

    /// Takes a worker's ranks out. What they were doing is still known.
    pub(super) fn leave(&mut self, id: WorkerId) -> Vec<Arc<RankMember>> {
        let Self { members, cohorts, draining, .. } = self;
        draining.retain(|draining| *draining != id);
        let gone: Vec<_> = members.extract_if(.., |member| member.worker.id == id).collect();
        cohorts.retain(|standing| members.iter().any(|member| Arc::ptr_eq(&member.cohort, &standing.cohort)));
        gone
    }

    /// A worker is about to take nothing new.
    pub(super) fn drain(&mut self, id: WorkerId) {
        if !self.draining.contains(&id) {
            self.draining.push(id);
        }
    }

    /// The same set as it is under another configuration of the frontend. Its workers agree or disagree anew: one that advertises what
    /// the frontend had and one that advertises nothing part, and others may meet.
    pub(super) fn reconfigured(&self, frontend: &RouterConfig) -> Self {
        let mut cohorts: Vec<Standing> = Vec::new();
        let regrouped = self.members.iter().map(|member| {
            let (card, since) = (member.worker.spec.card(), member.worker.registered_ms);
            let facts = card.routing_facts(frontend);
            let fingerprint = Fingerprint::of(&facts);
            let known = cohorts.iter_mut().find(|known| known.cohort.fingerprint == fingerprint);
            if let Some(known) = known {
                known.registered_ms = known.registered_ms.min(since);
                return regroup(member, &known.cohort);
            }
            let cohort = member.cohort.under(&card, facts, frontend);
            let member = regroup(member, &cohort);
            cohorts.push(Standing { cohort, registered_ms: since });
            member
        });
        let members: Vec<_> = regrouped.collect();
        // A cohort that stays together keeps its place, whoever of it has left.
        for before in &self.cohorts {
            let moved = self.members.iter().zip(&members);
            let moved = moved.filter(|(old, _)| Arc::ptr_eq(&old.cohort, &before.cohort));
            let mut to: Vec<_> = moved.map(|(_, new)| new.cohort.fingerprint).collect();
            to.dedup();
            if let [to] = to[..]
                && let Some(after) = cohorts.iter_mut().find(|after| after.cohort.fingerprint == to)
            {
                after.registered_ms = after.registered_ms.min(before.registered_ms);
            }
        }
        Self {
            key: self.key.clone(),
            loads: Arc::clone(&self.loads),
            sessions: Arc::clone(&self.sessions),
            cohorts,
            members,
            draining: self.draining.clone(),
            admitted: self.admitted,
            reported: self.reported.clone(),
        }
    }

    /// Whether it takes no requests because its members disagree.
    pub(super) fn stops(&self, policy: OnConfigMismatch) -> bool {
        policy == OnConfigMismatch::Stop && self.contenders().len() > 1
    }

    /// The set as requests see it, having logged what changed since the last view; `None` without members.
    pub(super) fn publish(
        &mut self,
        policy: OnConfigMismatch,
        frontend: &Arc<FrontendRouting>,
        generation: u64,
    ) -> Option<SetView> {
        let contenders = self.contenders();
        let leading = Arc::clone(&contenders.first()?.cohort);
        let admitted = match policy {
            OnConfigMismatch::Stop if contenders.len() > 1 => None,
            OnConfigMismatch::Stop | OnConfigMismatch::KeepFirst => Some(leading.fingerprint),
        };
        self.report(policy, &contenders, admitted);
        let advertised = |member: &Arc<RankMember>| member.worker.spec.router_config.is_some();
        let mut of_leading = self.members.iter().filter(|member| Arc::ptr_eq(&member.cohort, &leading));
        let source = if of_leading.any(advertised) { ConfigSource::Card } else { ConfigSource::Frontend };
        Some(SetView {
            key: self.key.clone(),
            generation,
            block_size: leading.block_size,
            eagle: leading.eagle,
            max_model_len: leading.max_model_len,
            config: Arc::clone(&leading.config),
            source,
            frontend: Arc::clone(frontend),
            selector: Arc::clone(&leading.selector),
            sessions: Arc::clone(&self.sessions),
            index: leading.index.clone(),
            members: self.members.clone(),
            cohorts: self.in_order(),
            admitted,
            prefill: PrefillPool::None,
        })
    }

    /// The cohorts, first registered first. Of those registered in the same millisecond the fingerprint decides, so
    /// that all frontends agree.
    fn in_order(&self) -> Vec<Standing> {
        let mut cohorts = self.cohorts.clone();
        cohorts.sort_by_key(|standing| (standing.registered_ms, standing.cohort.fingerprint));
        cohorts
    }

    /// The cohorts that could take requests, in order. Workers that drain take nothing new, so a cohort of which all
    /// do stands in nobody's way; if all cohorts are like that, the first stays.
    fn contenders(&self) -> Vec<Standing> {
        let mut all = self.in_order();
        let stays = |of: &Standing| {
            let mut members = self.members.iter().filter(|member| Arc::ptr_eq(&member.cohort, &of.cohort));
            members.any(|member| !self.draining.contains(&member.worker.id))
        };
        if all.iter().any(stays) {
            all.retain(stays);
        } else {
            all.truncate(1);
        }
        all
    }

    fn report(&mut self, policy: OnConfigMismatch, contenders: &[Standing], admitted: Option<Fingerprint>) {
        let set = &self.key;
        let before = std::mem::replace(&mut self.admitted, admitted);
        match (before, admitted) {
            (None, Some(fingerprint)) if !self.reported.is_empty() => {
                info!(%set, %fingerprint, "worker set serves again: its members agree");
            }
            (Some(old), Some(fingerprint)) if old != fingerprint => {
                info!(%set, %fingerprint, %old, "worker set serves under another configuration now");
            }
            _ => {}
        }
        let named: Vec<_> = contenders.iter().map(|standing| standing.cohort.fingerprint).collect();
        let news = named.iter().any(|fingerprint| !self.reported.contains(fingerprint));
        self.reported = if named.len() > 1 { named } else { Vec::new() };
        if self.reported.is_empty() || !news {
            return;
        }
        let fields = differing_fields(contenders).join(", ");
        let cohorts: Vec<_> = contenders.iter().map(|standing| self.described(standing)).collect();
        let cohorts = cohorts.join("; ");
        match policy {
            OnConfigMismatch::Stop => error!(
                %set, fields, cohorts,
                "worker set takes no requests: its members' cards differ; it serves again when one configuration is left"
            ),
            OnConfigMismatch::KeepFirst => warn!(
                %set, fields, cohorts,
                "worker set has members whose cards differ: those registered first serve, the others wait until they left"
            ),
        }
    }

    /// A cohort and its workers, for a person to read.
    fn described(&self, standing: &Standing) -> String {
        let members = self.members.iter().filter(|member| Arc::ptr_eq(&member.cohort, &standing.cohort));
        let mut ids: Vec<_> = members.map(|member| member.worker.id).collect();
        ids.dedup();
        let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
        format!("{} has workers {}", standing.cohort.fingerprint, ids.join(", "))
    }
}

/// A member where it agrees with others: itself, if it was there already.
fn regroup(member: &Arc<RankMember>, cohort: &Arc<Cohort>) -> Arc<RankMember> {
    if Arc::ptr_eq(&member.cohort, cohort) {
        return Arc::clone(member);
    }
    Arc::new(member.within(cohort, member.expected.clone()))
}
