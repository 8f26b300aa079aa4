//! The clock of a fleet's loads, and that on the wall.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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

/// Milliseconds since the Unix epoch, by this machine's clock: it may be set, and others may tell another time.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
