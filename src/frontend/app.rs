//! What all handlers share.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use super::{counters::Counters, prompts::Prompts, settings::FrontendSettings};
use crate::{fleet::Fleet, ingest::FleetStreams, proxy::Pool};

/// The state behind both listeners.
pub struct App {
    pub(super) settings: FrontendSettings,
    pub(super) fleet: Arc<Fleet>,
    pub(super) prompts: Prompts,
    pub(super) pool: Pool,
    pub(super) counters: Arc<Counters>,
    pub(super) streams: FleetStreams,
    draining: AtomicBool,
}

impl App {
    /// The state of a frontend that serves `fleet`.
    #[must_use]
    pub fn new(
        settings: FrontendSettings,
        fleet: Arc<Fleet>,
        prompts: Prompts,
        streams: FleetStreams,
    ) -> Self {
        let pool = Pool::new(&settings.upstream);
        Self {
            settings,
            fleet,
            prompts,
            pool,
            counters: Arc::default(),
            streams,
            draining: AtomicBool::new(false),
        }
    }

    /// The fleet.
    #[must_use]
    pub const fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(super) fn set_draining(&self) {
        // Relaxed: only `/ready` reads it, and may read it a moment late.
        self.draining.store(true, Ordering::Relaxed);
    }

    pub(super) fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}

/// Seconds since the Unix epoch, for OpenAI's `created`.
pub(super) fn unix_secs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Milliseconds since the Unix epoch.
pub(super) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
