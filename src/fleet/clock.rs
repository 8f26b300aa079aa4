//! The clock of a fleet's loads.

use std::time::{Duration, Instant};

/// Tells the time since the fleet was made. Copies tell the same time, so whoever watches an answer can carry one.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    epoch: Instant,
}

impl Clock {
    pub(super) fn start() -> Self {
        Self { epoch: Instant::now() }
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.epoch.elapsed()
    }
}
