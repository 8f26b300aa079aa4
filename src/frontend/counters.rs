//! What the frontend counts: plain atomics, read by the metrics page.
//!
//! Every access is Relaxed: each number is a fact of its own, and a scrape that sees one a moment before
//! another misleads nobody.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use super::{
    first_token::FirstTokens, health_checks::CheckCounters, parity::ParityCounters, session::SessionOutcome,
};
use crate::{
    metrics::Histogram,
    select::{BypassVerdict, Exclusion, RefusalKind},
};

/// The frontend's counters and stage histograms.
#[derive(Debug, Default)]
pub struct Counters {
    /// From the request body to its tokens.
    pub tokenise: Histogram,
    /// From tokens to block hashes.
    pub hash: Histogram,
    /// The index lookup.
    pub lookup: Histogram,
    /// Reading loads, deciding and booking.
    pub admit: Histogram,
    /// From the request's last byte in to the answer's first byte out.
    pub first_byte: Histogram,
    /// Requests between their last byte in and the end of their answer.
    pub in_flight: AtomicI64,
    requests: [AtomicU64; Surface::ALL.len() * Outcome::ALL.len()],
    exclusions: [AtomicU64; Exclusion::ALL.len()],
    refusals: [AtomicU64; RefusalKind::ALL.len()],
    sessions: [AtomicU64; SessionOutcome::ALL.len()],
    pub(super) prefills: [AtomicU64; Handover::ALL.len()],
    pub(super) bypasses: [AtomicU64; BypassVerdict::ALL.len()],
    /// Bypasses that no worker took.
    pub(super) failed_bypasses: AtomicU64,
    /// Choices made.
    pub choices: AtomicU64,
    /// Candidates looked at, over all choices.
    pub candidates: AtomicU64,
    /// Blocks of the prompts routed.
    pub prompt_blocks: AtomicU64,
    /// Blocks of those that the chosen worker held.
    pub overlap_blocks: AtomicU64,
    /// Costs of the chosen workers that are in blocks, in thousandths.
    pub cost_block_thousandths: AtomicU64,
    /// Costs of the chosen workers that are in seconds, in millionths.
    pub cost_microseconds: AtomicU64,
    pub(super) first_tokens: FirstTokens,
    pub(super) parity: ParityCounters,
    pub(super) checks: CheckCounters,
    /// Prompt tokens that workers reported in `usage`.
    pub reported_prompt_tokens: AtomicU64,
    /// Of those, tokens that they reported as cached.
    pub reported_cached_tokens: AtomicU64,
    /// Answers that carried `cached_tokens`.
    pub reported: AtomicU64,
    /// Requests routed by load alone because nobody could tell their tokens.
    pub untokenised: AtomicU64,
    /// Keys of `nvext` that nobody reads.
    pub unknown_hints: AtomicU64,
}

/// Which API a request came by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Surface {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
    /// Every other route that names a model.
    Other,
}

impl Surface {
    /// Every surface.
    pub const ALL: [Self; 3] = [Self::Chat, Self::Completions, Self::Other];

    /// The label in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Other => "other",
        }
    }
}

/// How the prefill hop of a request in two hops ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handover {
    /// A decode worker takes the prompt's blocks over.
    HandedOver,
    /// The model had nothing to say: there is nothing to decode.
    Ended,
    /// The engine handed nothing over: the prompt is computed again.
    Missing,
    /// There was no answer, or an error.
    Failed,
}

impl Handover {
    /// Every way.
    pub const ALL: [Self; 4] = [Self::HandedOver, Self::Ended, Self::Missing, Self::Failed];

    /// The label in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::HandedOver => "handed_over",
            Self::Ended => "ended",
            Self::Missing => "missing",
            Self::Failed => "failed",
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// A worker answered with success, to the end.
    Ok,
    /// Refused: the client's fault.
    ClientError,
    /// Refused or failed: ours or a worker's fault.
    ServerError,
    /// The client left.
    Cancelled,
    /// The answer broke off.
    Cut,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 5] = [Self::Ok, Self::ClientError, Self::ServerError, Self::Cancelled, Self::Cut];

    /// The label in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::ClientError => "client_error",
            Self::ServerError => "server_error",
            Self::Cancelled => "cancelled",
            Self::Cut => "cut",
        }
    }

    /// The outcome of an answer with this status that arrived whole.
    #[must_use]
    pub fn of_status(status: http::StatusCode) -> Self {
        if status.is_client_error() {
            Self::ClientError
        } else if status.is_server_error() {
            Self::ServerError
        } else {
            Self::Ok
        }
    }
}

impl Counters {
    /// Counts a finished request.
    pub fn request(&self, surface: Surface, outcome: Outcome) {
        self.requests[surface as usize * Outcome::ALL.len() + outcome as usize].fetch_add(1, Relaxed);
    }

    /// Counts an excluded candidate.
    pub fn exclusion(&self, exclusion: Exclusion) {
        self.exclusions[exclusion as usize].fetch_add(1, Relaxed);
    }

    /// Counts a refused admission.
    pub fn refusal(&self, kind: RefusalKind) {
        self.refusals[kind as usize].fetch_add(1, Relaxed);
    }

    /// Counts a placed request that belongs to a session.
    pub fn session(&self, outcome: SessionOutcome) {
        self.sessions[outcome as usize].fetch_add(1, Relaxed);
    }

    /// Placed requests of sessions by what became of the session.
    pub fn sessions(&self) -> impl Iterator<Item = (&'static str, u64)> {
        SessionOutcome::ALL
            .into_iter()
            .zip(&self.sessions)
            .map(|(how, count)| (how.name(), count.load(Relaxed)))
    }

    /// Requests by surface and outcome.
    pub fn requests(&self) -> impl Iterator<Item = (Surface, Outcome, u64)> {
        Surface::ALL.into_iter().flat_map(move |surface| {
            Outcome::ALL.into_iter().map(move |outcome| {
                let at = surface as usize * Outcome::ALL.len() + outcome as usize;
                (surface, outcome, self.requests[at].load(Relaxed))
            })
        })
    }

    /// Exclusions by reason.
    pub fn exclusions(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Exclusion::ALL.iter().map(|&reason| (reason.name(), self.exclusions[reason as usize].load(Relaxed)))
    }

    /// Prefill hops by how they ended.
    pub fn prefills(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Handover::ALL.into_iter().zip(&self.prefills).map(|(how, count)| (how.name(), count.load(Relaxed)))
    }

    /// What was decided of requests that could have bypassed the prefill workers.
    pub fn bypasses(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let verdicts = BypassVerdict::ALL.into_iter().zip(&self.bypasses);
        let verdicts = verdicts.map(|(verdict, count)| (verdict.name(), count.load(Relaxed)));
        verdicts.chain([("failed", self.failed_bypasses.load(Relaxed))])
    }

    /// Refusals by reason.
    pub fn refusals(&self) -> impl Iterator<Item = (&'static str, u64)> {
        RefusalKind::ALL
            .into_iter()
            .zip(&self.refusals)
            .map(|(kind, count)| (kind.name(), count.load(Relaxed)))
    }
}
