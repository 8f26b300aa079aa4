//! The retries of all requests: what they may take, and what became of them.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use parking_lot::Mutex;

use super::{
    budget::{Balance, RetryBudget},
    reason::{GivenUp, RetryReason},
};
use crate::metrics::Page;

/// Shared by all requests. Counters are Relaxed: statistics, and to the budget a request more or less is nothing.
#[derive(Debug)]
pub(in crate::frontend) struct Retries {
    budget: RetryBudget,
    requests: AtomicU64,
    /// Locked by requests that failed, and by a scrape.
    balance: Mutex<Balance>,
    made: [AtomicU64; RetryReason::ALL.len()],
    given_up: [AtomicU64; GivenUp::ALL.len()],
}

impl Retries {
    /// None so far, at `now` on the fleet's clock.
    pub(in crate::frontend) fn new(budget: RetryBudget, now: Duration) -> Self {
        let balance = Mutex::new(Balance::new(budget, now));
        let (requests, made, given_up) = Default::default();
        Self { budget, requests, balance, made, given_up }
    }

    /// Counts a request that is sent to its first worker, for what it brings.
    pub(in crate::frontend) fn request(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    /// Takes a retry out of the budget; false if there is none.
    pub(super) fn take(&self, now: Duration) -> bool {
        self.balance.lock().take(self.budget, now, self.requests.load(Relaxed))
    }

    /// Puts back one that was not made.
    pub(super) fn put_back(&self) {
        self.balance.lock().put_back();
    }

    pub(super) fn made(&self, reason: RetryReason) {
        self.made[reason as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn given_up(&self, why: GivenUp) {
        self.given_up[why as usize].fetch_add(1, Relaxed);
    }

    /// Writes the numbers, as of `now`.
    pub(in crate::frontend) fn write(&self, now: Duration, page: &mut Page<'_>) -> fmt::Result {
        let made = RetryReason::ALL.into_iter().zip(&self.made);
        let made = made.map(|(reason, count)| (reason.name(), count.load(Relaxed)));
        page.counters_by("reason", "retries", "Requests tried on another worker", made)?;
        let given_up = GivenUp::ALL.into_iter().zip(&self.given_up);
        let given_up = given_up.map(|(why, count)| (why.name(), count.load(Relaxed)));
        let help = "Requests that could have been tried on another worker and were not";
        page.counters_by("reason", "retries_given_up", help, given_up)?;
        let left = self.balance.lock().retries(self.budget, now, self.requests.load(Relaxed));
        page.gauge("retry_budget", "Retries that may be made now", left)
    }
}
