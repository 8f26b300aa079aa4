//! Whether each worker is what it was announced as: `--admission-check`.
//!
//! Every worker that joins is examined once ([`crate::doctor`]), in the background: requests never wait for it. One that is not
//! in order is examined again now and then, and so is one whose engine was started anew. Afterwards its answers are held against
//! what was predicted of them; where they part, its stream is read anew, and if that does not help it is as one that differs. Under `strict` a worker's overlaps count 0
//! until it was shown that they are predicted rightly, and one that would fail its requests is not taken in.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use ahash::AHashMap;
use serde_json::{Value, json};
use tokio::{sync::Semaphore, task::JoinSet};
use tracing::{error, info, warn};

use super::{app::App, drift, settings::AdmissionCheck};
use crate::{
    doctor::{
        Admission, Check, Credited, Ears, Patience, Report, Subject, Verdict, examine, judge, judge_told,
        look,
    },
    fleet::{
        FleetView, Parity, ParityVerdict, RankMember, StreamDirection, StreamState, WorkerInfo, WorkerSpec,
    },
    hash::{BlockHasher, Identity, Prompt},
    index,
    metrics::Page,
    slot::WorkerId,
};

/// What a whole examination may take.
const LIMIT: Duration = Duration::from_secs(30);

/// What a registration waits for the engine's own word, at the most.
const WORD: Duration = Duration::from_secs(1);

/// Examinations at a time: a fleet that comes up is not to be sent a canary each at the same moment.
const AT_A_TIME: usize = 16;

/// From one examination to the next, of a worker that is not in order; it doubles up to the second.
const AGAIN: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(300)];

/// How often it is looked whether an engine was started anew.
const GLANCE: Duration = Duration::from_secs(1);

/// Examinations, by how they ended.
#[derive(Debug, Default)]
pub(super) struct ParityCounters {
    /// In the order of [`ParityVerdict::ALL`]. Relaxed: statistics.
    ended: [AtomicU64; ParityVerdict::ALL.len()],
}

impl ParityCounters {
    fn count(&self, verdict: ParityVerdict) {
        self.ended[verdict as usize].fetch_add(1, Relaxed);
    }
}

/// Examines workers as they come, until it is aborted.
pub(super) async fn check_admissions(app: Arc<App>) {
    if app.settings.admission_check == AdmissionCheck::Off {
        return;
    }
    let mut changes = app.fleet.changes();
    let turns = Arc::new(Semaphore::new(AT_A_TIME));
    let mut known: AHashMap<WorkerId, Arc<WorkerInfo>> = AHashMap::new();
    let mut checks = JoinSet::new();
    loop {
        changes.borrow_and_update();
        let view = app.fleet.view();
        known.retain(|_, worker| is_there(&view, worker));
        for (_, member) in view.members() {
            let worker = &member.worker;
            if known.get(&worker.id).is_none_or(|known| !Arc::ptr_eq(known, worker)) {
                known.insert(worker.id, Arc::clone(worker));
                checks.spawn(keep_checked(Arc::clone(&app), Arc::clone(worker), Arc::clone(&turns)));
            }
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            Some(_) = checks.join_next() => {}
        }
    }
}

/// Why a worker that wants to register is refused, if it is: by its engine's own word, which is had without a canary.
pub(super) async fn refusal(app: &App, spec: &WorkerSpec) -> Option<String> {
    if app.settings.admission_check != AdmissionCheck::Strict {
        return None;
    }
    // Whoever says nothing in time is taken in, with overlaps that count 0, and examined.
    let told = tokio::time::timeout(WORD, look(spec, &app.settings.upstream, WORD)).await.ok()?.ok()?;
    let report = judge_told(spec, &told);
    (report.admission() == Admission::Refuse).then(|| {
        app.counters.parity.count(ParityVerdict::Refuse);
        format!(
            "the worker is not what its registration says (--admission-check strict): {}",
            report.reason()
        )
    })
}

/// Examines one worker, and watches its answers, for as long as it is there.
async fn keep_checked(app: Arc<App>, worker: Arc<WorkerInfo>, turns: Arc<Semaphore>) {
    let mut pause = AGAIN[0];
    // Whether it was tried already to put right what its answers say.
    let mut resynced = false;
    loop {
        // Before the check: an engine that is started anew during it is to be checked again.
        let restarts = restarts(&app, worker.id);
        let mut in_order = {
            let Ok(_turn) = turns.acquire().await else { return };
            check(&app, &worker).await
        };
        drift::forget(&app, worker.id);
        let mut since = Instant::now();
        loop {
            tokio::time::sleep(GLANCE).await;
            if !is_there(&app.fleet.view(), &worker) {
                return;
            }
            if self::restarts(&app, worker.id) != restarts {
                (pause, resynced) = (AGAIN[0], false);
                break;
            }
            if in_order && let Some(reason) = drift::drift(&app, worker.id) {
                if resynced {
                    demote(&app, &worker, reason);
                    (in_order, since) = (false, Instant::now());
                } else {
                    info!(worker = %worker.id, reason, "the worker's event stream is read anew");
                    drift::resync(&app, worker.id);
                }
                resynced = !resynced;
            }
            if !in_order && since.elapsed() >= pause {
                pause = (pause * 2).min(AGAIN[1]);
                break;
            }
        }
    }
}

/// A worker whose answers disagree with what was predicted of them, again after its stream was read anew.
fn demote(app: &App, worker: &WorkerInfo, reason: String) {
    let strict = app.settings.admission_check == AdmissionCheck::Strict;
    app.counters.parity.count(ParityVerdict::LoadOnly);
    if worker.parity.set(Parity { verdict: ParityVerdict::LoadOnly, reason }, strict) {
        say(worker, strict);
    }
}

/// One examination and what follows from it. True if the worker is in order.
async fn check(app: &Arc<App>, worker: &Arc<WorkerInfo>) -> bool {
    let strict = app.settings.admission_check == AdmissionCheck::Strict;
    let encoder = app.prompts.encoder(&worker.spec.model).map(Arc::clone);
    let mut spec = WorkerSpec { lora_adapters: worker.adapters().to_vec(), ..worker.spec.clone() };
    if !follows(app, worker.id) {
        // Its cache is guessed, which needs no events.
        (spec.kv_events_endpoint, spec.kv_replay_endpoint) = (None, None);
    }
    let subject = Subject { spec, encoder, upstream: app.settings.upstream.clone() };
    let credited = |tokens: &[u32], identity| credited(app, &subject.spec, worker.id, tokens, identity);
    let ears = match subject.spec.kv_events_direction {
        StreamDirection::Connect => Ears::Own,
        // The address is the stream's already.
        StreamDirection::Bind => Ears::Index(&credited),
    };
    let examined = tokio::time::timeout(LIMIT, examine(&subject, Patience::default(), ears)).await;
    let parity = match examined {
        Err(_) => Parity { verdict: ParityVerdict::NoAnswer, reason: format!("no end within {LIMIT:?}") },
        Ok(Err(reason)) => Parity { verdict: ParityVerdict::NoAnswer, reason },
        Ok(Ok(evidence)) => {
            let report = judge(&subject.spec, &evidence);
            verdict(&report, strict && subject.spec.kv_events_endpoint.is_some())
        }
    };
    app.counters.parity.count(parity.verdict);
    let verdict = parity.verdict;
    let in_order = verdict == ParityVerdict::Admit;
    if worker.parity.set(parity, strict && !in_order) {
        say(worker, strict);
    }
    if strict && verdict == ParityVerdict::Refuse {
        let (fleet, id) = (Arc::clone(&app.fleet), worker.id);
        let _ = tokio::task::spawn_blocking(move || fleet.remove(id)).await;
    }
    in_order
}

/// Whether the worker's events are followed.
fn follows(app: &App, id: WorkerId) -> bool {
    let view = app.fleet.view();
    let mut ranks = view.ranks_of(id);
    ranks.any(|(_, member)| !matches!(member.status.state(), StreamState::Absent | StreamState::Approximate))
}

/// What a report makes of a worker. With `to_be_shown` it takes more than the absence of differences: the canary's blocks have to
/// have been seen to match.
fn verdict(report: &Report, to_be_shown: bool) -> Parity {
    let verdict = match report.admission() {
        Admission::Admit => ParityVerdict::Admit,
        Admission::LoadOnly => ParityVerdict::LoadOnly,
        Admission::Refuse => ParityVerdict::Refuse,
    };
    let shown = report.findings.iter().any(|f| f.check == Check::HashRule && f.verdict == Verdict::Ok);
    if verdict == ParityVerdict::Admit && to_be_shown && !shown {
        let doubts = report.findings.iter().filter(|finding| {
            finding.verdict == Verdict::Unknown
                && matches!(finding.check, Check::Canary | Check::Events | Check::HashRule)
        });
        let doubts: Vec<_> = doubts.map(ToString::to_string).collect();
        return Parity {
            verdict: ParityVerdict::LoadOnly,
            reason: format!("not shown: {}", doubts.join("; ")),
        };
    }
    Parity { verdict, reason: report.reason() }
}

/// Says it once: a check that ends as the one before says nothing.
fn say(worker: &WorkerInfo, strict: bool) {
    let Parity { verdict, reason } = &*worker.parity.get();
    let (id, url) = (worker.id, &worker.url);
    match verdict {
        ParityVerdict::Unchecked => {}
        ParityVerdict::Admit => info!(worker = %id, %url, "parity check: predictions will be right"),
        ParityVerdict::Refuse if strict => {
            error!(worker = %id, %url, reason, "parity check: the worker is let go, it would fail its requests");
        }
        ParityVerdict::NoAnswer => {
            warn!(worker = %id, %url, reason, "parity check: the engine does not answer");
        }
        ParityVerdict::LoadOnly | ParityVerdict::Refuse if strict => {
            warn!(worker = %id, %url, reason, "parity check: the worker is routed by load alone");
        }
        ParityVerdict::LoadOnly | ParityVerdict::Refuse => {
            warn!(worker = %id, %url, reason, "parity check: predictions will be wrong");
        }
    }
}

fn credited(app: &App, spec: &WorkerSpec, id: WorkerId, tokens: &[u32], identity: Identity) -> Credited {
    let view = app.fleet.view();
    let member = view.ranks_of(id).find(|(_, member)| member.rank.0 == spec.first_rank);
    let Some((_, member)) = member else { return Credited { blocks: 0, state: StreamState::Absent } };
    let mut hashes = Vec::new();
    let prompt = Prompt { eagle: member.cohort.eagle, ..Prompt::text(tokens) };
    BlockHasher::new(member.cohort.block_size, identity).hash(&prompt, &mut hashes);
    let mut scratch = index::Scratch::new();
    // Before what it holds: see `StreamStatus::state`.
    let state = member.status.state();
    let overlap = member.cohort.index.overlap(&hashes, &mut scratch).of(member.slot);
    let blocks = if state.credits_overlap() { overlap.total() as usize } else { 0 };
    Credited { blocks, state }
}

fn is_there(view: &FleetView, worker: &Arc<WorkerInfo>) -> bool {
    view.worker(worker.id).is_some_and(|known| Arc::ptr_eq(known, worker))
}

fn restarts(app: &App, id: WorkerId) -> u64 {
    let view = app.fleet.view();
    view.ranks_of(id).map(|(_, member)| member.status.totals().restarts).sum()
}

/// How a worker stands, for the admin listener.
pub(super) fn object(member: &RankMember) -> Value {
    let status = &member.worker.parity;
    let Parity { verdict, reason } = &*status.get();
    json!({
        "verdict": verdict.name(),
        "reason": (!reason.is_empty()).then_some(reason),
        "overlap_withheld": status.withholds(),
    })
}

/// The metrics of checks.
pub(super) fn write(app: &App, view: &FleetView, page: &mut Page<'_>) -> fmt::Result {
    let ended = ParityVerdict::ALL.into_iter().zip(&app.counters.parity.ended);
    let ended = ended.filter(|(verdict, _)| *verdict != ParityVerdict::Unchecked);
    let ended = ended.map(|(verdict, count)| (verdict.name(), count.load(Relaxed)));
    page.counters_by("outcome", "parity_checks", "Parity checks, by how they ended", ended)?;
    let workers: Vec<_> = view.workers().map(|worker| (worker, worker.id.to_string())).collect();
    let rows: Vec<_> = workers
        .iter()
        .flat_map(|(worker, id)| {
            let stands = worker.parity.get().verdict;
            ParityVerdict::ALL.map(|verdict| {
                let labels = [
                    ("worker", id.as_str()),
                    ("model", worker.spec.model.as_str()),
                    ("verdict", verdict.name()),
                ];
                (labels, i64::from(verdict == stands))
            })
        })
        .collect();
    page.gauges(
        "worker_parity",
        "1 for how the last parity check of a worker ended, 0 for the other verdicts",
        rows.iter().map(|(labels, value)| (&labels[..], *value)),
    )?;
    let rows: Vec<_> = workers
        .iter()
        .map(|(worker, id)| {
            let labels = [("worker", id.as_str()), ("model", worker.spec.model.as_str())];
            (labels, i64::from(worker.parity.withholds()))
        })
        .collect();
    page.gauges(
        "worker_parity_withheld",
        "1 if a worker's overlaps count 0 because of its parity check",
        rows.iter().map(|(labels, value)| (&labels[..], *value)),
    )
}
