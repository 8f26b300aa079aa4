//! Members of a worker set that agree.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::Value;

use super::{
    card::Card,
    fingerprint::{Fingerprint, differing_paths},
    router_config::RouterConfig,
    streams::IndexKey,
};
use crate::{hash::BlockSize, index::PrefixIndex, load::Loads, select::Selector};

/// What the members with one fingerprint have in common, ready to serve whether or not it does.
#[derive(Debug)]
pub struct Cohort {
    /// Its name.
    pub fingerprint: Fingerprint,
    /// What routing depends on, as the fingerprint covers it.
    facts: Value,
    /// Tokens per block.
    pub block_size: BlockSize,
    /// Whether block hashes look one token ahead.
    pub eagle: bool,
    /// Longest prompt plus output, where known.
    pub max_model_len: Option<u64>,
    /// The effective routing configuration.
    pub config: Arc<RouterConfig>,
    /// Decides by that configuration, over loads that all cohorts of the set share.
    pub selector: Arc<Selector>,
    /// Who holds what; shared by all cohorts of one model and hash rule.
    pub index: PrefixIndex,
    pub(super) index_key: IndexKey,
}

impl Cohort {
    /// The cohort of `card`, whose facts are given. The card's configuration replaces the frontend's as a whole.
    pub(super) fn of(
        card: &Card,
        facts: Value,
        block_size: BlockSize,
        frontend: &RouterConfig,
        index: PrefixIndex,
        loads: Arc<Loads>,
    ) -> Self {
        let config = card.effective_config(frontend);
        Self {
            fingerprint: Fingerprint::of(&facts),
            facts,
            block_size,
            eagle: card.eagle,
            max_model_len: card.max_model_len,
            selector: Arc::new(Selector::with_loads(config.mode, config.tuning, loads)),
            config: Arc::new(config),
            index,
            index_key: IndexKey::of(card),
        }
    }

    /// The cohort that `card`, which is of one of its members, makes under another configuration of the frontend, with the same
    /// index and loads; itself where nothing changes for it.
    pub(super) fn under(self: &Arc<Self>, card: &Card, facts: Value, frontend: &RouterConfig) -> Arc<Self> {
        let config = card.effective_config(frontend);
        let fingerprint = Fingerprint::of(&facts);
        // Not all of a configuration is in the fingerprint: what no card can say is the same for all.
        if fingerprint == self.fingerprint && config == *self.config {
            return Arc::clone(self);
        }
        Arc::new(Self {
            fingerprint,
            facts,
            block_size: self.block_size,
            eagle: self.eagle,
            max_model_len: self.max_model_len,
            selector: Arc::new(self.selector.under(config.mode, config.tuning)),
            config: Arc::new(config),
            index: self.index.clone(),
            index_key: self.index_key.clone(),
        })
    }

    /// The fields in which the cards of two cohorts differ in effect, with their paths, as in
    /// `router_config.kv_router_config.overlap_score_credit`; sorted.
    #[must_use]
    pub fn differing_fields(&self, other: &Self) -> Vec<String> {
        differing_paths(&self.facts, &other.facts)
    }
}

/// A cohort within its set, as long as it has members there.
#[derive(Clone, Debug)]
pub struct Standing {
    /// The cohort.
    pub cohort: Arc<Cohort>,
    /// The earliest time that any member it had was registered at, in milliseconds since the Unix epoch.
    pub registered_ms: u64,
}

/// The fields in which any of the cohorts differs from the first; sorted.
pub(super) fn differing_fields(cohorts: &[Standing]) -> Vec<String> {
    let Some((first, others)) = cohorts.split_first() else { return Vec::new() };
    let differing = others.iter().flat_map(|other| first.cohort.differing_fields(&other.cohort));
    let fields: BTreeSet<_> = differing.collect();
    fields.into_iter().collect()
}
