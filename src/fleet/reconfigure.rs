//! Another configuration of the frontend while it serves.
//!
//! Everything is worked out before anything changes, and then changes in one view: a request sees all of the old configuration or all
//! of the new one, and those in flight keep what they began with. Loads, sessions, slots and streams stay.

use std::sync::Arc;

use thiserror::Error;
use tracing::info;

use super::{
    cohort::differing_fields, frontend_routing::FrontendRouting, registry::Fleet,
    router_config::RouterConfig, worker_set::SetKey,
};
use crate::select::TuningError;

/// What came of another configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reconfigured {
    /// The number of the configuration that holds now.
    pub generation: u64,
    /// The settings that changed, with their paths; none if it is the same as before.
    pub changed: Vec<String>,
}

/// Why another configuration was not taken. The one before holds.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ReconfigureError {
    /// Workers that agree now would not any more: some advertise what the frontend had, others nothing.
    #[error(
        "worker set {set} would take no requests under it: its workers' cards would differ in {}, since some advertise what \
         the frontend has now and others inherit it. Let all of them advertise it or none, or run with \
         --on-config-mismatch keep-first",
        fields.join(", ")
    )]
    Conflict {
        /// The set.
        set: Box<SetKey>,
        /// The fields in which its workers would differ.
        fields: Vec<String>,
    },
    /// What a worker's card says, which has precedence, and the configuration do not go together.
    #[error(
        "worker set {set} could not be routed under it beside what its workers' cards say: {error}. Change the cards first, or \
         leave that setting as it is"
    )]
    Settings {
        /// The set.
        set: Box<SetKey>,
        /// What does not.
        error: TuningError,
    },
}

impl Fleet {
    /// The same with what the frontend says of decode sets without prefill workers.
    #[must_use]
    pub fn enforcing_disagg(self, enforce_disagg: bool) -> Self {
        {
            let mut registry = self.registry.lock();
            if registry.frontend.enforce_disagg == enforce_disagg {
                drop(registry);
                return self;
            }
            registry.frontend = Arc::new(FrontendRouting { enforce_disagg, ..(*registry.frontend).clone() });
            self.publish(&mut registry);
        }
        self
    }

    /// Lets worker sets inherit another configuration from now on. Cards keep precedence: a set that advertises a configuration
    /// keeps it, and has the new values of what is no part of that (its cost model, hold and device weights, where its cards are
    /// silent). What ranks were opened by holds until they leave: whether events are followed, and for how long blocks are
    /// expected to stay. It waits for other changes: call it where blocking is allowed.
    ///
    /// # Errors
    /// See [`ReconfigureError`]; nothing has changed then.
    pub fn reconfigure(
        &self,
        config: RouterConfig,
        enforce_disagg: bool,
    ) -> Result<Reconfigured, ReconfigureError> {
        let mut registry = self.registry.lock();
        let Some((next, changed)) = registry.frontend.followed_by(config, enforce_disagg) else {
            return Ok(Reconfigured { generation: registry.frontend.generation, changed: Vec::new() });
        };
        let mut sets = Vec::with_capacity(registry.sets.len());
        for before in &registry.sets {
            let after = before.reconfigured(&next.config);
            // Under any policy: whoever waits may be the next to serve.
            let mut configs = after.cohorts.iter().map(|standing| &standing.cohort.config);
            if let Some(error) = configs.find_map(|config| config.validate().err()) {
                return Err(ReconfigureError::Settings { set: Box::new(after.key), error });
            }
            let policy = self.on_config_mismatch;
            if after.stops(policy) && !before.stops(policy) {
                let (set, fields) = (Box::new(after.key), differing_fields(&after.cohorts));
                return Err(ReconfigureError::Conflict { set, fields });
            }
            sets.push(after);
        }
        let mut ranks = self.ranks(&mut registry);
        for set in &mut sets {
            let kind = set.key.worker_type;
            set.members.iter_mut().for_each(|member| ranks.guess_as_told(kind, member));
        }
        registry.sets = sets;
        let generation = next.generation;
        registry.frontend = Arc::new(next);
        self.publish(&mut registry);
        info!(generation, changed = changed.join(", "), "another routing configuration is in force");
        Ok(Reconfigured { generation, changed })
    }
}
