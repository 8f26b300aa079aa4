//! What workers' failures and answers do to their breakers.

use std::{
    fmt::Display,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tracing::{info, warn};

use super::{
    breaker::{DEFAULT_INHIBITION, Entry, Opening},
    registry::Fleet,
    worker_info::WorkerInfo,
};

/// For how long failures keep requests away, and how often breakers changed.
#[derive(Debug)]
pub(super) struct Failures {
    inhibition: Duration,
    // Relaxed: statistics.
    opened: AtomicU64,
    probed: AtomicU64,
    closed: AtomicU64,
}

impl Default for Failures {
    fn default() -> Self {
        let (opened, probed, closed) = Default::default();
        Self { inhibition: DEFAULT_INHIBITION, opened, probed, closed }
    }
}

/// The request that tries a worker whose breaker is half-open. Dropping it makes room for another one, unless it was learned
/// meanwhile how the worker is.
#[derive(Debug)]
pub struct Probe {
    worker: Arc<WorkerInfo>,
    word: u64,
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.worker.breaker.give_back(self.word);
    }
}

/// Another request tries the worker already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProbeTaken;

impl Fleet {
    /// The same, keeping requests for so long from a worker that failed one for the first time; zero keeps none away.
    #[must_use]
    pub fn inhibiting_for(mut self, inhibition: Duration) -> Self {
        self.failures.inhibition = inhibition;
        self
    }

    /// Keeps requests away from a worker that failed one, for a few seconds; for longer, if it did so before and served none
    /// in between. What it was sent is held to be lost. The log says once `why`.
    pub fn note_failure(&self, worker: &WorkerInfo, why: &dyn Display) {
        let first_ms = self.first_ms();
        let opening = (first_ms > 0).then(|| worker.breaker.fail(self.now_ms(), first_ms));
        if opening == Some(Opening::First) {
            warn!(worker = %worker.id, url = %worker.url, %why, "a worker failed: it gets no requests for a while");
        }
        if matches!(opening, Some(Opening::First | Opening::Again)) {
            self.failures.opened.fetch_add(1, Relaxed);
        }
        let view = self.view();
        view.ranks_of(worker.id)
            .filter_map(|(_, member)| member.expected.as_ref())
            .for_each(|expected| expected.kept_by.doubt());
    }

    /// A worker answered a request: what it failed before is forgotten, and it starts slowly.
    pub fn note_answer(&self, worker: &WorkerInfo) {
        if worker.breaker.close() {
            self.failures.closed.fetch_add(1, Relaxed);
            worker.slow_start.again(self.now_ms());
            info!(worker = %worker.id, url = %worker.url, "a worker that failed answers again");
        }
    }

    /// Lets a request through that was chosen for a worker: as one of many, or as the one that tries it.
    ///
    /// # Errors
    /// Another one tries it: choose again.
    pub fn enter(&self, worker: &Arc<WorkerInfo>) -> Result<Option<Probe>, ProbeTaken> {
        match worker.breaker.enter(self.now_ms(), self.first_ms()) {
            Entry::Free => Ok(None),
            Entry::Probe(word) => {
                self.failures.probed.fetch_add(1, Relaxed);
                Ok(Some(Probe { worker: Arc::clone(worker), word }))
            }
            Entry::Taken => Err(ProbeTaken),
        }
    }

    /// How often breakers opened, let a probe through, and closed.
    #[must_use]
    pub fn breaker_changes(&self) -> [(&'static str, u64); 3] {
        let Failures { opened, probed, closed, .. } = &self.failures;
        [("open", opened), ("half_open", probed), ("closed", closed)]
            .map(|(to, count)| (to, count.load(Relaxed)))
    }

    fn first_ms(&self) -> u64 {
        u64::try_from(self.failures.inhibition.as_millis()).unwrap_or(u64::MAX)
    }
}
