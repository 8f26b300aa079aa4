//! Trying another worker, where one failed before it answered.
//!
//! A worker that could not be reached has seen nothing of a request, and one that answers 429, 502 or 503 is held to have done nothing
//! for it, unless it is a router that says otherwise; what else it answers is the answer, an error or not. So the request may go to another one, up to `--retries` of them, as
//! long as the budget of all requests ([`RetryBudget`]) has a retry left. The chooser is asked anew and told where the request was
//! already. If there is nobody else, the client gets what the last worker said, with its `retry-after`.
//!
//! Once a byte of an answer is on its way to the client nothing is tried again, nor after a connection that broke when the request
//! had been sent: the worker may have run it.

mod budget;
mod reason;
mod tally;

use http::request::Parts;
use tracing::debug;

pub use budget::RetryBudget;
pub(super) use tally::Retries;

use super::{app::App, request_id};
use crate::{
    fleet::WorkerInfo,
    proxy::{Answer, ProxyError},
    slot::WorkerId,
};
use reason::{GivenUp, RetryReason};

/// The tries of one request, or of one hop of it. Each hop that is begun brings its share of a retry ([`Retries::request`]).
#[derive(Debug, Default)]
pub(super) struct Tries {
    /// Where it failed.
    avoid: Vec<WorkerId>,
    /// Another try is allowed, and paid for; it has no worker yet.
    next: Option<RetryReason>,
}

impl Tries {
    /// The workers at which the request failed, which are not chosen again.
    pub(super) fn avoid(&self) -> &[WorkerId] {
        &self.avoid
    }

    /// Whether another worker is to be tried after this answer of `worker`.
    pub(super) fn after_answer(
        &mut self,
        app: &App,
        answer: &Answer,
        worker: &WorkerInfo,
        head: &Parts,
    ) -> bool {
        let Some(reason) = RetryReason::of_answer(answer.status(), answer.headers()) else { return false };
        let again = self.again(app, reason, worker);
        if again {
            let request = request_id::named(&head.headers);
            debug!(worker = %worker.id, status = %answer.status(), request, "a worker turned a request away; trying another");
        }
        again
    }

    /// Whether another worker is to be tried after this failure at `worker`, whose breaker opens if it could not be reached.
    pub(super) fn after_error(
        &mut self,
        app: &App,
        error: &ProxyError,
        worker: &WorkerInfo,
        head: &Parts,
    ) -> bool {
        let Some(reason) = RetryReason::of_error(error) else { return false };
        app.fleet.note_failure(worker, error);
        let again = self.again(app, reason, worker);
        if again {
            let request = request_id::named(&head.headers);
            debug!(%error, request, "a request did not reach its worker; trying another");
        }
        again
    }

    fn again(&mut self, app: &App, reason: RetryReason, worker: &WorkerInfo) -> bool {
        if self.avoid.len() >= app.settings.retries as usize {
            app.retries.given_up(GivenUp::Limit);
            return false;
        }
        if !app.retries.take(app.fleet.clock().now()) {
            app.retries.given_up(GivenUp::Budget);
            return false;
        }
        self.avoid.push(worker.id);
        self.next = Some(reason);
        true
    }

    /// Whether the last worker answered, so that there is something to tell the client if nobody else takes the request.
    pub(super) const fn answered(&self) -> bool {
        matches!(
            self.next,
            Some(RetryReason::TooManyRequests | RetryReason::BadGateway | RetryReason::Unavailable)
        )
    }

    /// There is a worker for the next try.
    pub(super) fn placed(&mut self, app: &App) {
        if let Some(reason) = self.next.take() {
            app.retries.made(reason);
        }
    }

    /// There is none: the try is not made.
    pub(super) fn nobody(&mut self, app: &App) {
        if self.next.take().is_some() {
            app.retries.put_back();
            app.retries.given_up(GivenUp::NoWorker);
        }
    }
}
