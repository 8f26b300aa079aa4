//! A worker that is new, or back after a failure, gets its share of requests by and by.
//!
//! Its weight in a choice begins at a tenth and grows with time to 1. Loads of the router's own are booked at once, so that a newcomer is not
//! flooded without this; but engines that compile kernels, capture graphs or fill memory with their first requests serve those
//! slowly, and the router learns of it only from answers.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use super::{clock::unix_ms, registry::Fleet, worker_info::WorkerInfo};

/// What a worker weighs at first.
pub const LEAST_SLOW_START: f64 = 0.1;

/// How far a worker is in its slow start. Relaxed: a request that misses a fresh value weighs by the one before.
#[derive(Debug, Default)]
pub(super) struct SlowStart {
    /// When it ends, in milliseconds on the fleet's clock.
    until_ms: AtomicU64,
    window_ms: u64,
}

impl SlowStart {
    /// That of a worker that began so long ago, with `window_ms` to go through; none if that is 0.
    pub(super) fn begun(window_ms: u64, now_ms: u64, ago_ms: u64) -> Self {
        let left_ms = window_ms.saturating_sub(ago_ms);
        let until_ms = if left_ms == 0 { 0 } else { now_ms.saturating_add(left_ms) };
        Self { until_ms: AtomicU64::new(until_ms), window_ms }
    }

    /// Begins anew.
    pub(super) fn again(&self, now_ms: u64) {
        if self.window_ms > 0 {
            self.until_ms.store(now_ms.saturating_add(self.window_ms), Relaxed);
        }
    }

    /// What it weighs at `now_ms`: [`LEAST_SLOW_START`] at the beginning, 1 from the end on, and in a straight line between.
    pub(super) fn weight(&self, now_ms: u64) -> f64 {
        let left_ms = self.until_ms.load(Relaxed).saturating_sub(now_ms).min(self.window_ms);
        if left_ms == 0 {
            return 1.0;
        }
        let left = left_ms as f64 / self.window_ms as f64;
        LEAST_SLOW_START + (1.0 - LEAST_SLOW_START) * (1.0 - left)
    }
}

impl Fleet {
    /// The same, with workers that are new or recovered weighing less in choices for so long; zero is not at all.
    #[must_use]
    pub fn slow_starting(mut self, slow_start: Duration) -> Self {
        self.slow_start = slow_start;
        self
    }

    /// The slow start of a worker that joins now, and that says when it was started, if it says so. Clocks may differ: one that
    /// comes from the future is new.
    pub(super) fn slow_start_of(&self, started_ms: Option<u64>) -> SlowStart {
        let window_ms = u64::try_from(self.slow_start.as_millis()).unwrap_or(u64::MAX);
        let ago_ms = started_ms.map_or(0, |started| unix_ms().saturating_sub(started));
        SlowStart::begun(window_ms, self.now_ms(), ago_ms)
    }
}

impl WorkerInfo {
    /// What it weighs in a choice at `now_ms` because it is new or recovered: [`LEAST_SLOW_START`] to 1, which most weigh.
    #[must_use]
    pub fn slow_start(&self, now_ms: u64) -> f64 {
        self.slow_start.weight(now_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weight_grows_in_a_straight_line_and_is_exact_at_both_ends() {
        let start = SlowStart::begun(10_000, 5_000, 0);
        let weights = [5_000, 10_000, 14_999, 15_000, u64::MAX].map(|now| start.weight(now));
        assert_eq!((weights[0], weights[3], weights[4]), (LEAST_SLOW_START, 1.0, 1.0));
        assert!((weights[1] - 0.55).abs() < 1e-12 && weights[2] < 1.0, "{weights:?}");
        assert_eq!(start.weight(0), LEAST_SLOW_START, "an older time is no less");
    }

    #[test]
    fn one_that_began_before_is_further_or_through() {
        assert!((SlowStart::begun(10_000, 0, 5_000).weight(0) - 0.55).abs() < 1e-12);
        for ago_ms in [10_000, 10_001, u64::MAX] {
            assert_eq!(SlowStart::begun(10_000, 3, ago_ms).weight(0), 1.0);
        }
    }

    #[test]
    fn it_begins_again_unless_there_is_none() {
        let start = SlowStart::begun(10_000, 0, 10_000);
        start.again(50_000);
        assert_eq!((start.weight(50_000), start.weight(60_000)), (LEAST_SLOW_START, 1.0));
        let none = SlowStart::begun(0, 7, 0);
        none.again(7);
        assert_eq!(none.weight(7), 1.0);
    }
}
