//! What is still to be said of a decision: how its request ended.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use http::StatusCode;

use super::{
    memory::Kept,
    record::{Queue, Record},
};
use crate::{
    decisions::{Finish, Outcome},
    fleet::Clock,
    frontend::counters,
    proxy::Usage,
};

/// Goes along with a request. Dropped when that is over, however it ended, it records what came of it.
pub(in crate::frontend) struct Ticket {
    pub(super) queue: Arc<Queue>,
    /// Whether the decision is on its way to the file: an outcome alone says nothing there.
    pub(super) queued: bool,
    pub(super) number: u64,
    /// Memory may have let it go by then: a long answer keeps nobody's rows.
    pub(super) kept: Weak<Kept>,
    pub(super) clock: Clock,
    pub(super) booked: Duration,
    pub(super) outcome: Outcome,
}

impl Ticket {
    /// The first token came now.
    pub(in crate::frontend) fn first_token(&mut self) {
        self.outcome.first_token = Some(self.since_booked());
    }

    /// The worker's own account; the last one stands.
    pub(in crate::frontend) const fn usage(&mut self, usage: Usage) {
        self.outcome.prompt_tokens = Some(usage.prompt_tokens);
        self.outcome.cached_tokens = usage.cached_tokens;
    }

    /// The worker answered with `status`, and this is how that ended.
    pub(in crate::frontend) fn end(&mut self, status: StatusCode, outcome: counters::Outcome) {
        self.outcome.status = Some(status.as_u16());
        self.outcome.finish = match outcome {
            counters::Outcome::Ok => Finish::Ok,
            counters::Outcome::ClientError => Finish::ClientError,
            counters::Outcome::ServerError => Finish::ServerError,
            counters::Outcome::Cancelled => Finish::Cancelled,
            counters::Outcome::Cut => Finish::Cut,
        };
    }

    fn since_booked(&self) -> Duration {
        self.clock.now().saturating_sub(self.booked)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.outcome.lasted = self.since_booked();
        if let Some(kept) = self.kept.upgrade() {
            // Nobody else sets it.
            let _ = kept.outcome.set(self.outcome);
        }
        if self.queued {
            self.queue.put(Record::Outcome(self.number, self.outcome));
        }
    }
}
