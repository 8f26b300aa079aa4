//! How many tries beyond the first the fleet is spared: a budget for all requests together.
//!
//! Where much fails at once, every request that fails would come again, and what is left of the fleet would get its own
//! load and the failed one's too. So retries are paid for: each request brings a share of one, and every second brings a few,
//! for a fleet that has little to do. What is not used within ten seconds is gone. (The idea and its figures are those of
//! Finagle's and Linkerd's retry budgets.)
//!
//! Requests only count themselves. What they brought is worked out when a retry asks, from how many came since another
//! did, so that a fleet in which nothing fails pays one addition for each.

use std::time::Duration;

/// How long what requests brought can be used.
const WINDOW: Duration = Duration::from_secs(10);

/// What a retry budget is filled by.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RetryBudget {
    /// Retries that each request brings, 0 to 10. Default 0.2: one request in five may be tried again.
    pub share: f64,
    /// Retries that each second brings, whatever comes. Default 10.
    pub per_second: u32,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self { share: 0.2, per_second: 10 }
    }
}

/// A budget as it stands. The time and the number of requests so far are those of whoever asks.
#[derive(Debug)]
pub(super) struct Balance {
    retries: f64,
    at: Duration,
    /// Requests that had come by then.
    requests: u64,
}

impl Balance {
    /// That of a fleet that starts at `now`: what the seconds bring is there as if it had been there for long.
    pub(super) fn new(budget: RetryBudget, now: Duration) -> Self {
        Self { retries: f64::from(budget.per_second) * WINDOW.as_secs_f64(), at: now, requests: 0 }
    }

    /// How many retries there are at `now`, after so many requests.
    pub(super) fn retries(&mut self, budget: RetryBudget, now: Duration, requests: u64) -> f64 {
        let elapsed = now.saturating_sub(self.at).as_secs_f64();
        let came = requests.saturating_sub(self.requests) as f64;
        let (window, brought) =
            (WINDOW.as_secs_f64(), budget.share * came + f64::from(budget.per_second) * elapsed);
        // Nobody knows when in between they came. Over a long time they are taken to have come evenly.
        let (kept, counts) = if elapsed < window {
            (self.retries * (1.0 - elapsed / window), 1.0)
        } else {
            (0.0, window / elapsed)
        };
        *self = Self { retries: kept + brought * counts, at: self.at.max(now), requests };
        self.retries
    }

    /// Takes a retry out; false if there is none.
    pub(super) fn take(&mut self, budget: RetryBudget, now: Duration, requests: u64) -> bool {
        let enough = self.retries(budget, now, requests) >= 1.0;
        if enough {
            self.retries -= 1.0;
        }
        enough
    }

    /// Puts back one that was not made.
    pub(super) fn put_back(&mut self) {
        self.retries += 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARE: RetryBudget = RetryBudget { share: 0.2, per_second: 0 };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// How many retries can be had at once.
    fn available(balance: &mut Balance, budget: RetryBudget, now: Duration, requests: u64) -> u32 {
        (0..).find(|_| !balance.take(budget, now, requests)).unwrap()
    }

    #[test]
    fn five_requests_bring_a_retry() {
        let mut balance = Balance::new(SHARE, at(0));
        assert!(!balance.take(SHARE, at(0), 4));
        assert!(balance.take(SHARE, at(0), 5));
        assert!(!balance.take(SHARE, at(0), 9));
        assert_eq!(available(&mut balance, SHARE, at(0), 1009), 200);
    }

    #[test]
    fn a_quiet_fleet_has_what_the_seconds_bring() {
        let quiet = RetryBudget { share: 0.0, per_second: 3 };
        let mut balance = Balance::new(quiet, at(100));
        assert_eq!(available(&mut balance, quiet, at(100), 1), 30);
        assert_eq!(available(&mut balance, quiet, at(101), 2), 3);
        assert_eq!(available(&mut balance, quiet, at(1000), 3), 30, "no more for a longer time");
        let none = RetryBudget { per_second: 0, ..quiet };
        assert_eq!(available(&mut Balance::new(none, at(5)), none, at(50), 9), 0);
    }

    #[test]
    fn what_is_not_used_is_gone_after_ten_seconds() {
        let mut balance = Balance::new(SHARE, at(0));
        assert_eq!(balance.retries(SHARE, at(0), 1000), 200.0);
        assert_eq!(balance.retries(SHARE, at(5), 1000), 100.0);
        assert_eq!(balance.retries(SHARE, at(15), 1000), 0.0);
    }

    #[test]
    fn requests_of_a_long_time_count_as_those_of_its_last_ten_seconds() {
        let mut balance = Balance::new(SHARE, at(0));
        // A thousand a second for a hundred seconds, and nobody asked.
        assert_eq!(balance.retries(SHARE, at(100), 100_000), 2000.0);
    }

    #[test]
    fn what_was_not_made_is_put_back() {
        let mut balance = Balance::new(SHARE, at(0));
        assert!(balance.take(SHARE, at(0), 5));
        balance.put_back();
        assert!(balance.take(SHARE, at(0), 5));
        assert!(!balance.take(SHARE, at(0), 5));
    }
}
