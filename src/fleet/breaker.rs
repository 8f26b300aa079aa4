//! A worker's circuit breaker: what keeps requests away from one that failed some, and lets it back.
//!
//! *Closed*: it gets requests. A failure *opens* it: it gets none for a while, for twice as long with each further failure. Then it is
//! *half-open*: one request is let through as a probe, and everybody else goes on keeping away until that says how it went. An
//! answer closes the breaker, a failure opens it again. A probe that says nothing, since its client left or the
//! failure may be the request's, makes room for the next; so does one that takes long, since an answer may.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// For how long a worker gets no requests after its first failure, unless the fleet was told otherwise.
pub const DEFAULT_INHIBITION: Duration = Duration::from_secs(5);

/// The longest that any failure keeps requests away.
const LONGEST_MS: u64 = 60_000;

/// How a worker's breaker stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BreakerState {
    /// It gets requests.
    Closed,
    /// It failed, and gets none.
    Open,
    /// It failed, and one request tries whether it is well again, or will.
    HalfOpen,
}

impl BreakerState {
    /// Every state.
    pub const ALL: [Self; 3] = [Self::Closed, Self::Open, Self::HalfOpen];

    /// The name in metrics and on the admin listener.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

/// One word, so that all of it changes together: from the top until when requests are kept away, in milliseconds; whether a probe is
/// under way; and, in the lowest byte, failures in a row. Every access is Relaxed: nothing else hangs on it, and a request that
/// misses a fresh value is retried elsewhere.
#[derive(Debug, Default)]
pub(super) struct Breaker(AtomicU64);

const FAILURES: u64 = 0xff;
const PROBED: u64 = 0x100;
const UNTIL_SHIFT: u32 = 9;

/// The word as it is read.
#[derive(Clone, Copy)]
struct Word {
    until_ms: u64,
    probed: bool,
    failures: u64,
}

impl Word {
    const fn read(word: u64) -> Self {
        Self { until_ms: word >> UNTIL_SHIFT, probed: word & PROBED != 0, failures: word & FAILURES }
    }

    const fn write(self) -> u64 {
        let probed = if self.probed { PROBED } else { 0 };
        self.until_ms << UNTIL_SHIFT | probed | self.failures
    }
}

/// What a failure did to a breaker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Opening {
    /// It was closed, and is open.
    First,
    /// It was half-open, and is open again.
    Again,
    /// It was open.
    Already,
}

/// What a request that was chosen for the worker is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Entry {
    /// One of many.
    Free,
    /// The one that tries it; to be given back by this word if it says nothing.
    Probe(u64),
    /// One too many: another one tries it already.
    Taken,
}

impl Breaker {
    /// The worker failed a request at `now_ms`: it gets none for `first_ms`, and for twice as long with each further failure
    /// in a row. What fails while it gets none anyway was sent before, or is the trial of one that is better than nobody: it
    /// keeps others away for as long again, and counts for no more.
    pub(super) fn fail(&self, now_ms: u64, first_ms: u64) -> Opening {
        let change = |word: u64| {
            let Word { until_ms, probed, failures } = Word::read(word);
            let again = until_ms > now_ms && !probed;
            let failures = if again { failures.max(1) } else { (failures + 1).min(FAILURES) };
            // From so many doublings on the longest holds whatever the first was.
            let doublings = u32::try_from(failures.saturating_sub(1)).unwrap_or(0).min(16);
            let length = first_ms.saturating_mul(1 << doublings).min(LONGEST_MS.max(first_ms));
            let own_ms = now_ms.saturating_add(length);
            // What a probe keeps others away for is none of the failures'.
            let until_ms = if again { until_ms.max(own_ms) } else { own_ms };
            Some(Word { until_ms, probed: false, failures }.write())
        };
        // It always changes.
        let before = self.0.fetch_update(Relaxed, Relaxed, change).unwrap_or_else(|word| word);
        match Word::read(before) {
            Word { failures: 0, .. } => Opening::First,
            Word { until_ms, probed: false, .. } if until_ms > now_ms => Opening::Already,
            _ => Opening::Again,
        }
    }

    /// The worker served a request: whatever it failed before is over. True if there was anything.
    pub(super) fn close(&self) -> bool {
        self.0.load(Relaxed) != 0 && self.0.swap(0, Relaxed) != 0
    }

    /// A request was chosen for the worker at `now_ms`, which its failures do not keep away as far as the choice knew. The first one after a failure is
    /// a probe, and keeps others away until it says how it went, for `patience_ms` at the most.
    pub(super) fn enter(&self, now_ms: u64, patience_ms: u64) -> Entry {
        let mut word = self.0.load(Relaxed);
        loop {
            let Word { until_ms, failures, .. } = Word::read(word);
            if failures == 0 {
                return Entry::Free;
            }
            if until_ms > now_ms {
                return Entry::Taken;
            }
            let until_ms = now_ms.saturating_add(patience_ms);
            let probe = Word { until_ms, probed: true, failures }.write();
            match self.0.compare_exchange_weak(word, probe, Relaxed, Relaxed) {
                Ok(_) => return Entry::Probe(probe),
                Err(other) => word = other,
            }
        }
    }

    /// The probe that entered by this word is over. If nothing was learned since, the next request is one.
    pub(super) fn give_back(&self, probe: u64) {
        let next = Word { until_ms: 0, probed: false, ..Word::read(probe) };
        let _ = self.0.compare_exchange(probe, next.write(), Relaxed, Relaxed);
    }

    /// Until when it gets no requests.
    pub(super) fn until_ms(&self) -> u64 {
        Word::read(self.0.load(Relaxed)).until_ms
    }

    /// Failures in a row, as far as they are counted.
    pub(super) fn failures(&self) -> u64 {
        Word::read(self.0.load(Relaxed)).failures
    }

    /// How it stands at `now_ms`.
    pub(super) fn state(&self, now_ms: u64) -> BreakerState {
        match Word::read(self.0.load(Relaxed)) {
            Word { failures: 0, .. } => BreakerState::Closed,
            Word { until_ms, probed: false, .. } if until_ms > now_ms => BreakerState::Open,
            _ => BreakerState::HalfOpen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_in_a_row_doubles_the_time_up_to_a_minute() {
        let breaker = Breaker::default();
        let mut now = 1000;
        for seconds in [5, 10, 20, 40, 60, 60] {
            breaker.fail(now, 5000);
            assert_eq!(breaker.until_ms() - now, seconds * 1000);
            now = breaker.until_ms();
        }
        assert_eq!(breaker.failures(), 6);
        assert!(breaker.close() && !breaker.close());
        assert_eq!((breaker.until_ms(), breaker.failures()), (0, 0));
        breaker.fail(now, 5000);
        assert_eq!(breaker.until_ms() - now, 5000);
    }

    #[test]
    fn many_that_fail_at_once_are_one_failure() {
        let breaker = Breaker::default();
        let opened = [1000, 1001, 1002].map(|now| breaker.fail(now, 5000));
        assert_eq!(opened, [Opening::First, Opening::Already, Opening::Already]);
        assert_eq!((breaker.until_ms(), breaker.failures()), (6002, 1));
        assert_eq!(breaker.fail(7000, 5000), Opening::Again, "it was half-open");
        assert_eq!((breaker.until_ms(), breaker.failures()), (17_000, 2));
    }

    #[test]
    fn a_first_time_beyond_a_minute_stands() {
        let breaker = Breaker::default();
        breaker.fail(0, 90_000);
        breaker.fail(90_000, 90_000);
        assert_eq!(breaker.until_ms(), 180_000);
        for _ in 0..1000 {
            breaker.fail(breaker.until_ms(), 5000);
        }
        assert_eq!(breaker.failures(), FAILURES, "it counts no further and does not wrap");
    }

    /// A breaker that has been half-open since 6000.
    fn half_open() -> Breaker {
        let breaker = Breaker::default();
        assert_eq!(breaker.enter(0, 5000), Entry::Free);
        breaker.fail(1000, 5000);
        assert_eq!((breaker.state(5999), breaker.enter(5999, 5000)), (BreakerState::Open, Entry::Taken));
        assert_eq!(breaker.state(6000), BreakerState::HalfOpen);
        breaker
    }

    #[test]
    fn one_request_at_a_time_tries_it() {
        let breaker = half_open();
        let Entry::Probe(probe) = breaker.enter(6000, 5000) else { panic!() };
        assert_eq!((breaker.enter(6000, 5000), breaker.enter(10_999, 5000)), (Entry::Taken, Entry::Taken));
        assert_eq!((breaker.state(6000), breaker.until_ms()), (BreakerState::HalfOpen, 11_000));
        breaker.give_back(probe);
        assert!(matches!(breaker.enter(6001, 5000), Entry::Probe(_)));
    }

    #[test]
    fn the_next_one_may_try_if_the_first_takes_long() {
        let breaker = half_open();
        let Entry::Probe(slow) = breaker.enter(6000, 5000) else { panic!() };
        let Entry::Probe(next) = breaker.enter(11_000, 5000) else { panic!() };
        breaker.give_back(slow);
        assert_eq!(breaker.enter(11_001, 5000), Entry::Taken, "what is over is not the second one's probe");
        breaker.give_back(next);
        assert!(matches!(breaker.enter(11_001, 5000), Entry::Probe(_)));
    }

    #[test]
    fn a_probe_closes_it_or_opens_it_for_longer() {
        let breaker = half_open();
        let Entry::Probe(probe) = breaker.enter(7000, 5000) else { panic!() };
        assert_eq!(breaker.fail(7500, 5000), Opening::Again);
        assert_eq!((breaker.until_ms(), breaker.failures()), (17_500, 2));
        breaker.give_back(probe);
        assert_eq!((breaker.until_ms(), breaker.state(7500)), (17_500, BreakerState::Open));
        let Entry::Probe(probe) = breaker.enter(17_500, 5000) else { panic!() };
        assert!(breaker.close());
        breaker.give_back(probe);
        assert_eq!((breaker.enter(17_501, 5000), breaker.state(17_501)), (Entry::Free, BreakerState::Closed));
    }
}
