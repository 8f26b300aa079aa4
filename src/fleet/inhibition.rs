//! Keeping requests away from a worker that failed some.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// For how long a worker gets no requests after its first failure, unless the fleet was told otherwise.
pub const DEFAULT_INHIBITION: Duration = Duration::from_secs(5);

/// The longest that any failure keeps requests away.
const LONGEST_MS: u64 = 60_000;

/// A worker's failures in a row, and until when it gets no requests because of them. One word, so that both change together:
/// the milliseconds above the lowest byte, which has the failures. Every access is Relaxed: a request that misses a fresh
/// value is retried elsewhere.
#[derive(Debug, Default)]
pub(super) struct Inhibition(AtomicU64);

const FAILURES: u64 = 0xff;

impl Inhibition {
    /// The worker failed a request at `now_ms`: it gets none for `first_ms`, and for twice as long with each further failure
    /// in a row. What fails while it gets none anyway was sent before, or is the trial of one that is better than nobody: it
    /// keeps others away for as long again, and counts for no more.
    pub(super) fn fail(&self, now_ms: u64, first_ms: u64) {
        let change = |word: u64| {
            let (until, failures) = (word >> 8, word & FAILURES);
            let again = until > now_ms;
            let failures = if again { failures.max(1) } else { (failures + 1).min(FAILURES) };
            // From so many doublings on the longest holds whatever the first was.
            let doublings = u32::try_from(failures.saturating_sub(1)).unwrap_or(0).min(16);
            let length = first_ms.saturating_mul(1 << doublings).min(LONGEST_MS.max(first_ms));
            Some(until.max(now_ms.saturating_add(length)) << 8 | failures)
        };
        // It always changes.
        let _ = self.0.fetch_update(Relaxed, Relaxed, change);
    }

    /// The worker served a request: whatever it failed before is over.
    pub(super) fn end(&self) {
        if self.0.load(Relaxed) != 0 {
            self.0.store(0, Relaxed);
        }
    }

    /// Until when it gets no requests.
    pub(super) fn until_ms(&self) -> u64 {
        self.0.load(Relaxed) >> 8
    }

    /// Failures in a row, as far as they are counted.
    pub(super) fn failures(&self) -> u64 {
        self.0.load(Relaxed) & FAILURES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_in_a_row_doubles_the_time_up_to_a_minute() {
        let inhibition = Inhibition::default();
        let mut now = 1000;
        for seconds in [5, 10, 20, 40, 60, 60] {
            inhibition.fail(now, 5000);
            assert_eq!(inhibition.until_ms() - now, seconds * 1000);
            now = inhibition.until_ms();
        }
        assert_eq!(inhibition.failures(), 6);
        inhibition.end();
        assert_eq!((inhibition.until_ms(), inhibition.failures()), (0, 0));
        inhibition.fail(now, 5000);
        assert_eq!(inhibition.until_ms() - now, 5000);
    }

    #[test]
    fn many_that_fail_at_once_are_one_failure() {
        let inhibition = Inhibition::default();
        for now in [1000, 1001, 1002] {
            inhibition.fail(now, 5000);
        }
        assert_eq!((inhibition.until_ms(), inhibition.failures()), (6002, 1));
        inhibition.fail(7000, 5000);
        assert_eq!((inhibition.until_ms(), inhibition.failures()), (17_000, 2));
    }

    #[test]
    fn a_first_time_beyond_a_minute_stands() {
        let inhibition = Inhibition::default();
        inhibition.fail(0, 90_000);
        inhibition.fail(90_000, 90_000);
        assert_eq!(inhibition.until_ms(), 180_000);
        for _ in 0..1000 {
            inhibition.fail(inhibition.until_ms(), 5000);
        }
        assert_eq!(inhibition.failures(), FAILURES, "it counts no further and does not wrap");
    }
}
