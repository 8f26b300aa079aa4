//! How long single calls took.

use crate::clock::{nanos_per_tick, ticks};

/// Of lookups the slowest of each thousand are dropped from a mean; and of calls that take ten times as long, and lose
/// their core ten times as often, the slowest of each hundred.
pub(crate) const OF_LOOKUPS: f64 = 0.001;
pub(crate) const OF_LONG_CALLS: f64 = 0.01;

/// Durations of calls, in ticks.
#[derive(Default)]
pub(crate) struct Latencies {
    ticks: Vec<u64>,
}

impl Latencies {
    /// Times one call.
    #[inline(always)]
    pub(crate) fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let start = ticks();
        let result = call();
        self.ticks.push(ticks() - start);
        result
    }

    pub(crate) fn sort(&mut self) {
        self.ticks.sort_unstable();
    }

    /// A quantile in nanoseconds, of sorted durations.
    pub(crate) fn quantile(&self, of: f64) -> f64 {
        let at = (self.ticks.len().saturating_sub(1) as f64 * of) as usize;
        self.ticks.get(at).map_or(f64::NAN, |&ticks| ticks as f64 * nanos_per_tick())
    }

    /// The mean in nanoseconds, of sorted durations, without the slowest of them: there the thread had lost its core.
    /// `dropped` is how many, as a fraction.
    pub(crate) fn mean(&self, dropped: f64) -> f64 {
        let kept = &self.ticks[..(self.ticks.len() as f64 * (1.0 - dropped)) as usize];
        kept.iter().sum::<u64>() as f64 * nanos_per_tick() / kept.len() as f64
    }
}
