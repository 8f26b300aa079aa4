//! Why a request got no worker.

use super::{AffinityMode, Demand, Exclusion, ExclusionCounts, Mode, Phase, PinField, Row, demand::Pin};
use crate::slot::{Rank, WorkerId};

/// No worker for this request. The message is fit for the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// The worker set has no members.
    #[error("no workers available")]
    NoWorkers,
    /// There are members, and each is excluded.
    #[error("no workers available: {0}")]
    AllExcluded(ExclusionCounts),
    /// Members could be sent to, if they were not over a busy threshold.
    #[error("all workers are busy, please retry later")]
    AllBusy(ExclusionCounts),
    /// The request is pinned to a worker that nobody knows.
    #[error("nvext.{field}={worker} does not identify a known worker")]
    UnknownWorker {
        /// The field that pins it.
        field: PinField,
        /// The worker as named.
        worker: WorkerId,
    },
    /// The request is pinned to a rank that its worker does not have.
    #[error("worker {worker} (nvext.{field}) has no rank {rank}; it has {ranks} ranks")]
    UnknownRank {
        /// The field that pins the worker.
        field: PinField,
        /// The worker.
        worker: WorkerId,
        /// The rank as named.
        rank: Rank,
        /// How many ranks the worker has.
        ranks: u32,
    },
    /// Mode `kv`, a pin without a rank, and a worker that has several.
    #[error("pinned worker {worker} requires an explicit dp_rank: it has {ranks} ranks")]
    RankRequired {
        /// The worker.
        worker: WorkerId,
        /// How many ranks it has.
        ranks: u32,
    },
    /// The pinned worker or rank is known and may not be chosen.
    #[error("pinned worker {worker} (nvext.{field}) cannot take the request: {exclusion}")]
    PinExcluded {
        /// The field that pins it.
        field: PinField,
        /// The worker.
        worker: WorkerId,
        /// Why not.
        exclusion: Exclusion,
    },
    /// The request is pinned to one worker and belongs to a session that another one must serve.
    #[error(
        "nvext.{field}={worker} contradicts the request's session, which is bound to worker {bound}; leave one of the two \
         out"
    )]
    SessionElsewhere {
        /// The field that pins the worker.
        field: PinField,
        /// The worker.
        worker: WorkerId,
        /// The worker that has the session.
        bound: WorkerId,
    },
    /// Mode `direct`, and the request names no worker.
    #[error("worker ID required for {phase} request in Direct routing mode")]
    WorkerIdRequired {
        /// The phase that has none.
        phase: Phase,
    },
}

/// What a refusal means for whoever asked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RefusalKind {
    /// Nobody can serve this now; it may change by itself.
    Unavailable,
    /// Those who could serve this are over a busy threshold.
    Busy,
    /// The request asks for something that does not exist.
    Invalid,
}

impl RefusalKind {
    /// Every kind, for tables of counters.
    pub const ALL: [Self; 3] = [Self::Unavailable, Self::Busy, Self::Invalid];

    /// The name used in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Busy => "busy",
            Self::Invalid => "invalid",
        }
    }
}

impl Refusal {
    /// What it means for whoever asked.
    #[must_use]
    pub const fn kind(&self) -> RefusalKind {
        match self {
            Self::NoWorkers | Self::AllExcluded(_) => RefusalKind::Unavailable,
            Self::AllBusy(_) | Self::PinExcluded { exclusion: Exclusion::Overloaded, .. } => {
                RefusalKind::Busy
            }
            Self::PinExcluded { .. } => RefusalKind::Unavailable,
            Self::UnknownWorker { .. }
            | Self::UnknownRank { .. }
            | Self::RankRequired { .. }
            | Self::SessionElsewhere { .. }
            | Self::WorkerIdRequired { .. } => RefusalKind::Invalid,
        }
    }

    /// The name used in metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::NoWorkers => "no_workers",
            Self::AllExcluded(_) => "all_excluded",
            Self::AllBusy(_) => "all_busy",
            Self::UnknownWorker { .. } => "unknown_worker",
            Self::UnknownRank { .. } => "unknown_rank",
            Self::RankRequired { .. } => "rank_required",
            Self::PinExcluded { .. } => "pin_excluded",
            Self::SessionElsewhere { .. } => "session_elsewhere",
            Self::WorkerIdRequired { .. } => "worker_id_required",
        }
    }
}

/// Why no row of `rows` can serve `demand`, if so. Where this finds nothing, some row is eligible.
pub(super) fn refuse(mode: Mode, demand: &Demand<'_>, rows: &[Row]) -> Option<Refusal> {
    match demand.pin {
        None if mode == Mode::Direct => Some(Refusal::WorkerIdRequired { phase: demand.phase }),
        _ if rows.is_empty() => Some(Refusal::NoWorkers),
        Some(pin) => refuse_pin(mode, pin, rows),
        None if rows.iter().any(Row::is_eligible) => None,
        None => {
            let counts: ExclusionCounts = rows.iter().filter_map(|row| row.exclusion).collect();
            let busy = counts.get(Exclusion::Overloaded) > 0;
            Some(if busy { Refusal::AllBusy(counts) } else { Refusal::AllExcluded(counts) })
        }
    }
}

fn refuse_pin(mode: Mode, pin: Pin, rows: &[Row]) -> Option<Refusal> {
    let Pin { worker, field, .. } = pin;
    let of_worker = || rows.iter().filter(|row| row.worker == worker);
    let ranks = u32::try_from(of_worker().count()).unwrap_or(u32::MAX);
    if ranks == 0 {
        return Some(Refusal::UnknownWorker { field, worker });
    }
    match pin.rank {
        Some(rank) if of_worker().all(|row| row.rank != rank) => {
            return Some(Refusal::UnknownRank { field, worker, rank, ranks });
        }
        None if mode == Mode::Kv && ranks > 1 => return Some(Refusal::RankRequired { worker, ranks }),
        _ => {}
    }
    // The pin is all that keeps a session from where it must go.
    let bound = rows.iter().find(|row| row.tied == Some(AffinityMode::Hard));
    if let Some(bound) = bound.filter(|row| row.exclusion == Some(Exclusion::NotPinned)) {
        return Some(Refusal::SessionElsewhere { field, worker, bound: bound.worker });
    }
    let mut pinned = of_worker().filter(|row| pin.holds(row.worker, row.rank));
    let first = pinned.next()?.exclusion?;
    if pinned.any(Row::is_eligible) {
        return None;
    }
    Some(Refusal::PinExcluded { field, worker, exclusion: first })
}
