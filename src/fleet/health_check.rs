//! What active checks found out about a worker: whether it answers when it is asked how it is.
//!
//! It stands beside the breaker, which knows what became of requests. Neither decides for the other: an engine may say that
//! it is well and refuse every request, and one may serve requests while it says that it is not.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use arc_swap::ArcSwapOption;

use super::{registry::Fleet, worker_info::WorkerInfo};

/// Checks in a row without an answer from which on a worker gets no requests. One may be lost, or come while an engine is
/// busy with a prompt.
pub const MISSED_CHECKS: u32 = 3;

/// A worker's checks as they stand.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct HealthChecks {
    /// Checks in a row that found it unwell.
    pub missed: u32,
    /// What the last one found, if it found it unwell.
    pub problem: Option<String>,
    /// When it was asked last, in milliseconds on the fleet's clock.
    pub checked_ms: u64,
}

impl HealthChecks {
    /// Whether requests are kept away because of them.
    #[must_use]
    pub const fn is_down(&self) -> bool {
        self.missed >= MISSED_CHECKS
    }

    /// The name in metrics and on the admin listener; `None` is a worker that was never asked.
    #[must_use]
    pub const fn name(of: Option<&Self>) -> &'static str {
        match of {
            None => "unchecked",
            Some(Self { missed: 0, .. }) => "ok",
            Some(checks) if checks.is_down() => "down",
            Some(_) => "missing",
        }
    }
}

/// The checks of one worker: written by whoever asks. Every request reads of every worker whether it is down, and nothing else.
#[derive(Debug, Default)]
pub(super) struct HealthCell {
    /// Relaxed: nothing else hangs on it, and a request that misses a fresh value is one of the last.
    down: AtomicBool,
    checks: ArcSwapOption<HealthChecks>,
}

impl HealthCell {
    pub(super) fn get(&self) -> Option<Arc<HealthChecks>> {
        self.checks.load_full()
    }

    pub(super) fn is_down(&self) -> bool {
        self.down.load(Relaxed)
    }

    fn set(&self, checks: HealthChecks) {
        self.down.store(checks.is_down(), Relaxed);
        self.checks.store(Some(Arc::new(checks)));
    }
}

/// What a check changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HealthChange {
    /// Nothing that matters to a choice.
    None,
    /// The worker gets no requests from now on.
    Down,
    /// It gets requests again.
    Up,
}

impl Fleet {
    /// Takes in what a check found: nothing, or what is wrong. One answer is enough to bring a worker back, which then starts slowly. Checks of a worker
    /// come one after the other.
    pub fn note_check(&self, worker: &WorkerInfo, found: Result<(), String>) -> HealthChange {
        let before = worker.checks();
        let missed = before.as_ref().map_or(0, |checks| checks.missed);
        let (missed, problem) = match found {
            Ok(()) => (0, None),
            Err(problem) => (missed.saturating_add(1), Some(problem)),
        };
        let checks = HealthChecks { missed, problem, checked_ms: self.now_ms() };
        let change = match (before.is_some_and(|checks| checks.is_down()), checks.is_down()) {
            (false, true) => HealthChange::Down,
            (true, false) => HealthChange::Up,
            _ => HealthChange::None,
        };
        if change == HealthChange::Up {
            worker.slow_start.again(self.now_ms());
        }
        worker.health.set(checks);
        change
    }
}
