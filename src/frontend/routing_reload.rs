//! The routing configuration, read again while the frontend serves: when its file changes, at SIGHUP, or when it is asked for.
//!
//! It is read as at the start and taken as a whole, or refused as a whole, and then the one before stays in force.

use std::{
    fmt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use thiserror::Error;
use tracing::{error, info, warn};

use super::{
    app::App,
    error::ApiError,
    file_changes::{FileChanges, LOOK},
};
use crate::{
    fleet::{Fleet, Reconfigured, RouterConfig},
    metrics::Page,
};

/// Where a frontend's routing configuration is read again.
pub trait RoutingSource: fmt::Debug + Send + Sync {
    /// The file.
    fn path(&self) -> &Path;

    /// Reads it, as at the start.
    ///
    /// # Errors
    /// Why it cannot be used, for a person.
    fn read(&self) -> Result<Routing, String>;
}

/// A routing configuration that was read again.
#[derive(Clone, Debug)]
pub struct Routing {
    /// What worker sets inherit.
    pub config: RouterConfig,
    /// Whether decode sets without prefill workers refuse requests.
    pub enforce_disagg: bool,
    /// What a person should know of it.
    pub warnings: Vec<String>,
    /// Keys beside it that are not as they were at the start, and that only a start reads.
    pub needs_restart: Vec<String>,
}

/// Reads a frontend's routing configuration again, if it came from a file.
pub(super) struct RoutingReload {
    watched: Option<Watched>,
    /// In the order of [`OUTCOMES`]. Relaxed, as all that follows: statistics.
    outcomes: [AtomicU64; OUTCOMES.len()],
    failing: AtomicBool,
    needing_restart: AtomicU64,
}

struct Watched {
    source: Arc<dyn RoutingSource>,
    changes: FileChanges,
    /// Held while it is read and put in force, so that of two reloads the one that read later also holds later. What was said to
    /// need a restart.
    turn: Mutex<Vec<String>>,
}

const OUTCOMES: [&str; 3] = ["applied", "unchanged", "refused"];

/// A configuration that holds, new or not.
struct Reloaded {
    now: Reconfigured,
    warnings: Vec<String>,
    needs_restart: Vec<String>,
}

/// Why a configuration does not hold.
#[derive(Debug, Error)]
enum Refused {
    /// There is nothing to read.
    #[error(
        "this frontend was started without --config, so there is no file to read its routing configuration from again"
    )]
    NoFile,
    /// It cannot be used.
    #[error("the routing configuration was refused, and the one before stays in force: {0}")]
    Unusable(String),
}

impl RoutingReload {
    pub(super) fn of(source: Option<&Arc<dyn RoutingSource>>) -> Self {
        let watched = source.map(|source| Watched {
            source: Arc::clone(source),
            changes: FileChanges::since_now(vec![source.path().to_owned()]),
            turn: Mutex::default(),
        });
        Self {
            watched,
            outcomes: Default::default(),
            failing: AtomicBool::new(false),
            needing_restart: AtomicU64::new(0),
        }
    }

    fn has_settled(&self) -> bool {
        self.watched.as_ref().is_some_and(|watched| watched.changes.have_settled())
    }

    /// Reads the file, changed or not, and puts what it says in force. It waits for other changes of the fleet.
    fn reload(&self, fleet: &Fleet) -> Result<Reloaded, Refused> {
        let watched = self.watched.as_ref().ok_or(Refused::NoFile)?;
        let mut told = watched.turn.lock();
        watched.changes.note_reading();
        let taken = watched.take(fleet);
        let outcome = match &taken {
            Ok(reloaded) if reloaded.now.changed.is_empty() => 1,
            Ok(_) => 0,
            Err(_) => 2,
        };
        self.outcomes[outcome].fetch_add(1, Relaxed);
        self.failing.store(taken.is_err(), Relaxed);
        let path = watched.source.path().display();
        let reloaded = taken.map_err(|problem| {
            error!(%path, problem, "the routing configuration was refused: the one before stays in force");
            Refused::Unusable(problem)
        })?;
        if !reloaded.now.changed.is_empty() {
            reloaded.warnings.iter().for_each(|warning| warn!("{warning}"));
        }
        self.needing_restart.store(reloaded.needs_restart.len() as u64, Relaxed);
        if *told != reloaded.needs_restart {
            told.clone_from(&reloaded.needs_restart);
            let keys = told.join(", ");
            if told.is_empty() {
                info!(%path, "the keys that needed a restart are as they were at the start again");
            } else {
                warn!(%path, keys, "the file has changed in keys that only a start reads: they need a restart");
            }
        }
        Ok(reloaded)
    }

    /// Writes how reloading went; nothing has changed where there is no file.
    pub(super) fn write(&self, fleet: &Fleet, page: &mut Page<'_>) -> fmt::Result {
        let generation = fleet.view().frontend.generation;
        page.gauge("config_generation", "Number of the routing configuration in force", generation)?;
        let counts = self.outcomes.iter().map(|count| count.load(Relaxed));
        let help = "Times that the routing configuration was read again";
        page.counters_by("outcome", "config_reloads", help, OUTCOMES.into_iter().zip(counts))?;
        page.gauge(
            "config_reload_failing",
            "1 while the routing configuration in the file is refused and the one before holds",
            u64::from(self.failing.load(Relaxed)),
        )?;
        page.gauge(
            "config_keys_needing_restart",
            "Keys of the file that have changed and that only a start reads",
            self.needing_restart.load(Relaxed),
        )
    }
}

impl Watched {
    fn take(&self, fleet: &Fleet) -> Result<Reloaded, String> {
        let Routing { config, enforce_disagg, warnings, needs_restart } = self.source.read()?;
        let now = fleet.reconfigure(config, enforce_disagg).map_err(|error| error.to_string())?;
        Ok(Reloaded { now, warnings, needs_restart })
    }
}

/// Reads it again whenever its file has changed, for as long as this is polled.
pub(super) async fn watch(app: Arc<App>) {
    if app.routing.watched.is_none() {
        return;
    }
    // The configuration was read a while before the file was first looked at.
    let mut due = true;
    let mut ticks = tokio::time::interval(LOOK);
    loop {
        ticks.tick().await;
        let held = Arc::clone(&app);
        let settled = tokio::task::spawn_blocking(move || held.routing.has_settled()).await;
        if std::mem::take(&mut due) || settled.unwrap_or(false) {
            reload(&app).await;
        }
    }
}

/// Reads it again now. What came of it is in the log.
pub(super) async fn reload(app: &Arc<App>) {
    if app.routing.watched.is_some() {
        let _ = reloaded(app).await;
    }
}

/// On a thread that may wait: reading takes the disk, and changing takes its turn.
async fn reloaded(app: &Arc<App>) -> Result<Reloaded, ApiError> {
    let held = Arc::clone(app);
    let reloaded = tokio::task::spawn_blocking(move || held.routing.reload(&held.fleet)).await;
    let reloaded = reloaded.map_err(|error| ApiError::internal(error.to_string()))?;
    reloaded.map_err(|refused| match refused {
        Refused::NoFile => ApiError::not_found(refused.to_string()),
        Refused::Unusable(_) => ApiError::conflict(refused.to_string()),
    })
}

/// `POST /v1/config/reload`: reads it again, and tells what came of that.
///
/// # Errors
/// 404 without a file, 409 where it was refused.
pub(super) async fn answer(app: &Arc<App>) -> Result<Value, ApiError> {
    let Reloaded { now, warnings, needs_restart } = reloaded(app).await?;
    Ok(json!({
        "outcome": if now.changed.is_empty() { "unchanged" } else { "applied" },
        "config_generation": now.generation,
        "changed": now.changed,
        "warnings": warnings,
        "needs_restart": needs_restart,
    }))
}
