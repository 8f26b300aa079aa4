//! Asking workers how they are: `GET /health`, every `--health-check-interval` seconds.
//!
//! A worker that does not answer three times in a row gets no requests until it does. That finds one that hangs, or that nobody has
//! sent anything for a while, without a request that has to fail first; what requests find out is the breaker's, and
//! stands apart.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};
use tracing::{info, warn};

use super::{app::App, exposition::Ranks};
use crate::{
    fleet::{HealthChange, HealthChecks, RankMember, WorkerInfo},
    metrics::{Labels, Page},
    proxy::Caller,
};

/// A worker that takes longer to say that it is well is not well.
const PATIENCE: Duration = Duration::from_secs(5);

/// Checks, by what they found. Relaxed: statistics.
#[derive(Debug, Default)]
pub(super) struct CheckCounters {
    ok: AtomicU64,
    failed: AtomicU64,
}

/// Asks every worker, again and again, until it is aborted.
pub(super) async fn run(app: Arc<App>) {
    let every = app.settings.health_check_interval;
    if every.is_zero() {
        return;
    }
    let caller = Caller::over(&app.settings.upstream, PATIENCE.min(every.max(Duration::from_secs(1))));
    let mut rounds = interval(every);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        let workers: Vec<_> = app.fleet.view().workers().map(Arc::clone).collect();
        let mut checks = JoinSet::new();
        // Spread over the interval: a fleet is not asked all in one moment.
        let gap = every / u32::try_from(workers.len()).unwrap_or(u32::MAX).max(1);
        for worker in workers {
            checks.spawn(check(Arc::clone(&app), caller.clone(), worker));
            sleep(gap).await;
        }
        while checks.join_next().await.is_some() {}
    }
}

async fn check(app: Arc<App>, caller: Caller, worker: Arc<WorkerInfo>) {
    let found = caller.is_well(&worker.url).await;
    let counters = &app.counters.checks;
    let count = if found.is_ok() { &counters.ok } else { &counters.failed };
    count.fetch_add(1, Relaxed);
    let problem = found.as_ref().err().cloned().unwrap_or_default();
    match app.fleet.note_check(&worker, found) {
        HealthChange::None => {}
        HealthChange::Down => {
            warn!(
                worker = %worker.id, url = %worker.url, problem,
                "a worker does not answer its health checks: it gets no requests until it does"
            );
        }
        HealthChange::Up => {
            info!(worker = %worker.id, url = %worker.url, "a worker answers its health checks again");
        }
    }
}

/// What is known of a worker's health: by asking it (`active`), and by its answers to requests (`passive`).
pub(super) fn object(member: &RankMember, now_ms: u64) -> Value {
    let worker = &member.worker;
    let checks = worker.checks();
    json!({
        "active": {
            "state": HealthChecks::name(checks.as_deref()),
            "missed": checks.as_ref().map(|checks| checks.missed),
            "problem": checks.as_ref().and_then(|checks| checks.problem.clone()),
            "age_seconds": checks.as_ref().map(|checks| now_ms.saturating_sub(checks.checked_ms) as f64 / 1000.0),
        },
        "passive": {
            "breaker": worker.breaker(now_ms).name(),
            "failures": worker.failures(),
            "inhibited_seconds": worker.inhibited_ms(now_ms) as f64 / 1000.0,
        },
    })
}

/// The states of a rank's worker, as its checks stand.
const STATES: [&str; 4] = ["unchecked", "ok", "missing", "down"];

/// Writes what checks found.
pub(super) fn write(app: &App, ranks: &Ranks<'_>, page: &mut Page<'_>) -> fmt::Result {
    let CheckCounters { ok, failed } = &app.counters.checks;
    let counts = [("ok", ok.load(Relaxed)), ("failed", failed.load(Relaxed))];
    page.counters_by("result", "health_checks", "Times that a worker was asked for its health", counts)?;
    let rows = ranks.rows("state", |member| {
        let now = HealthChecks::name(member.worker.checks().as_deref());
        STATES.map(|state| (state, i64::from(state == now)))
    });
    page.gauges(
        "worker_health",
        "1 for what active checks say of the worker",
        rows.iter().map(|(labels, value)| (labels as Labels<'_>, *value)),
    )
}
