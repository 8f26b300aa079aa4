//! Requests that wait for a worker.
//!
//! What waits, for what and in which order is `select`'s to say. Here is what makes that a server's: a queue for every worker
//! set whose configuration makes requests wait, a task that drives it while anybody is in it ([`SetQueue`]), and the way of a
//! request through it (`wait.rs`). Where no configuration does, nothing of this is touched.
//!
//! Whoever gives up leaves: a request that waits is a future with a place in the queue, which goes with it. What the task finds for
//! somebody who has just left is dropped with its booking.

mod page;
mod set_queue;
mod tally;
mod wait;

use std::sync::Arc;

use ahash::AHashMap;
use parking_lot::RwLock;

use super::settings::{FrontendSettings, QueueTurns};
use crate::{
    fleet::SetView,
    load::Loads,
    select::queue::{Limits, QueueSettings},
};

pub(super) use page::write;
pub(super) use set_queue::SetQueue;
pub(super) use tally::{Left, Tally};
pub(super) use wait::{NotPlaced, describe};

/// The queues of all worker sets.
#[derive(Debug, Default)]
pub(super) struct Queues {
    /// By the loads of the set, which wake one queue and no other for as long as they are there: a set that is founded anew under the
    /// same name has others, and requests that came before that may still look for the first. Written only for a set that is new, or is
    /// gone.
    sets: RwLock<AHashMap<LoadsId, Arc<SetQueue>>>,
    pub(super) tally: Arc<Tally>,
}

impl Queues {
    /// That of `set`.
    pub(super) fn of(&self, set: &SetView, settings: &FrontendSettings) -> Arc<SetQueue> {
        if let Some(queue) = self.known(set) {
            return queue;
        }
        let mut sets = self.sets.write();
        let queue = sets.entry(LoadsId::of(set.selector.loads()));
        Arc::clone(queue.or_insert_with(|| SetQueue::new(set, Rules::of(settings), &self.tally)))
    }

    /// That of `set`, if anybody has ever waited there.
    pub(super) fn known(&self, set: &SetView) -> Option<Arc<SetQueue>> {
        self.sets.read().get(&LoadsId::of(set.selector.loads())).map(Arc::clone)
    }

    /// Drops those of sets that are gone. Who waits in one is told by its task. A set that is there must keep its queue, which is the one
    /// that its loads wake.
    pub(super) fn drop_forgotten(&self) {
        let is_forgotten = |queue: &Arc<SetQueue>| queue.is_forgotten();
        if self.sets.read().values().any(is_forgotten) {
            self.sets.write().retain(|_, queue| !is_forgotten(queue));
        }
    }
}

/// Which loads: their address, which is nobody else's while their queue holds them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct LoadsId(usize);

impl LoadsId {
    fn of(loads: &Arc<Loads>) -> Self {
        Self(Arc::as_ptr(loads).addr())
    }
}

/// What the operator says of every queue.
#[derive(Clone, Copy, Debug)]
struct Rules {
    limits: Limits,
    turns: QueueTurns,
}

impl Rules {
    fn of(settings: &FrontendSettings) -> Self {
        let limits = Limits { requests: Some(settings.queue_limit), isl_tokens: settings.queue_token_limit };
        Self { limits, turns: settings.queue_turns }
    }

    /// How the queue of `set` works under its present configuration.
    fn settings(&self, set: &SetView) -> QueueSettings {
        let tuning = &set.config.tuning;
        QueueSettings {
            policy: tuning.queue_policy,
            hold: tuning.hold,
            limits: self.limits,
            tenants_share: self.turns == QueueTurns::Tenant,
        }
    }
}
