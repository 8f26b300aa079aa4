//! What all handlers share.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use ahash::AHashSet;
use parking_lot::Mutex;
use tracing::warn;

use super::{
    access_log::AccessLog, connections::Connections, counters::Counters, decision_log::Recorder, gate::Gate,
    prompts::Prompts, queue::Queues, reload::Files, retry::Retries, routing_reload::RoutingReload,
    settings::FrontendSettings, tokenising::Tokenising, traces::Traces,
};
use crate::{accel::Accelerator, fleet::Fleet, ingest::FleetStreams, proxy::Pool};

/// The state behind both listeners.
pub struct App {
    pub(super) settings: FrontendSettings,
    pub(super) fleet: Arc<Fleet>,
    pub(super) prompts: Prompts,
    pub(super) tokenising: Tokenising,
    pub(super) pool: Pool,
    pub(super) counters: Arc<Counters>,
    pub(super) retries: Retries,
    /// Opened when the frontend starts.
    pub(super) decisions: Arc<Recorder>,
    /// Opened when the frontend starts.
    pub(super) access_log: AccessLog,
    /// Begun when the frontend starts.
    pub(super) traces: Traces,
    pub(super) gate: Arc<Gate>,
    pub(super) public_connections: Arc<Connections>,
    pub(super) admin_connections: Arc<Connections>,
    /// What is read again when it changes; known when the frontend starts.
    pub(super) files: Arc<Files>,
    pub(super) routing: RoutingReload,
    pub(super) streams: FleetStreams,
    pub(super) queues: Queues,
    /// Hashes prompts that come in bulk.
    pub(super) accelerator: Arc<Accelerator>,
    /// Keys of `nvext` that were logged.
    logged_hints: Mutex<AHashSet<String>>,
    draining: AtomicBool,
}

/// How many unknown keys of `nvext` are logged, once each, and how much of each: clients choose them.
const LOGGED_HINTS: usize = 64;
const LOGGED_HINT_CHARS: usize = 64;

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
        let accelerator = Accelerator::new(settings.accelerator.clone());
        let tokenising = Tokenising::new(&settings.tokenizer);
        let retries = Retries::new(settings.retry_budget, fleet.clock().now());
        let routing = RoutingReload::of(settings.routing.as_ref());
        Self {
            settings,
            fleet,
            prompts,
            tokenising,
            pool,
            counters: Arc::default(),
            retries,
            decisions: Arc::default(),
            access_log: AccessLog::default(),
            traces: Traces::default(),
            gate: Arc::default(),
            public_connections: Arc::default(),
            admin_connections: Arc::default(),
            files: Arc::default(),
            routing,
            streams,
            queues: Queues::default(),
            accelerator,
            logged_hints: Mutex::default(),
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

    /// Counts keys of `nvext` that nobody reads, and logs each of them once.
    pub(super) fn note_unknown_hints(&self, keys: &[String]) {
        if keys.is_empty() {
            return;
        }
        // Relaxed: a statistic.
        self.counters.unknown_hints.fetch_add(keys.len() as u64, Ordering::Relaxed);
        let mut logged = self.logged_hints.lock();
        for key in keys {
            let key: String = key.chars().take(LOGGED_HINT_CHARS).collect();
            if logged.len() < LOGGED_HINTS && !logged.contains(&key) {
                warn!(?key, "a request's nvext has a key that this router does not read: it is ignored");
                logged.insert(key);
            }
        }
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
