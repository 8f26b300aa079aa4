//! Worker sets: instances that serve the same thing under one routing configuration.

use std::{fmt, sync::Arc};

use super::{card::Card, router_config::RouterConfig, streams::IndexKey, view::RankMember};
use crate::{
    fleet::{SetView, WorkerType},
    hash::BlockSize,
    index::PrefixIndex,
    select::Selector,
};

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
    /// API surfaces, joined by `|`.
    pub model_type: String,
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
}

impl ConfigSource {
    /// The name on the admin listener.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Card => "card",
            Self::Frontend => "frontend",
        }
    }
}

/// A worker set as the registry keeps it: what stays the same while members come and go.
pub(super) struct WorkerSet {
    pub(super) key: SetKey,
    /// The card that every member must match.
    pub(super) card: Card,
    block_size: BlockSize,
    pub(super) index_key: IndexKey,
    index: PrefixIndex,
    config: Arc<RouterConfig>,
    source: ConfigSource,
    pub(super) selector: Arc<Selector>,
    pub(super) members: Vec<Arc<RankMember>>,
}

impl WorkerSet {
    /// The set that `card` founds. The card's configuration replaces the frontend's as a whole.
    pub(super) fn found(
        card: Card,
        block_size: BlockSize,
        index: PrefixIndex,
        frontend: &Arc<RouterConfig>,
    ) -> Self {
        let (config, source) = match &card.router_config {
            Some(advertised) => (Arc::new(advertised.clone()), ConfigSource::Card),
            None => (Arc::clone(frontend), ConfigSource::Frontend),
        };
        Self {
            key: card.set.clone(),
            index_key: IndexKey::of(&card),
            selector: Arc::new(Selector::new(config.mode, config.tuning)),
            card,
            block_size,
            index,
            config,
            source,
            members: Vec::new(),
        }
    }

    /// Its members' ids, for a person to read.
    pub(super) fn worker_ids(&self) -> String {
        let mut ids: Vec<_> = self.members.iter().map(|member| member.worker.id.0).collect();
        ids.dedup();
        ids.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
    }

    pub(super) fn view(&self) -> SetView {
        SetView {
            key: self.key.clone(),
            block_size: self.block_size,
            eagle: self.card.eagle,
            max_model_len: self.card.max_model_len,
            config: Arc::clone(&self.config),
            source: self.source,
            selector: Arc::clone(&self.selector),
            index: self.index.clone(),
            members: self.members.clone(),
        }
    }
}
