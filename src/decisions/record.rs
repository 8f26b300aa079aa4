//! What is kept of a decision and of its request's end.

use crate::{
    hash::BlockSize,
    select::{Choice, Demand, Mode, Overrides, Phase, Pin, Refusal, Row, Tuning, cost::Cost},
};
use std::{sync::Arc, time::Duration};

/// The routing configuration that decisions were made under.
#[derive(Clone, PartialEq, Debug)]
pub struct Rule {
    /// The worker set, as the admin listener spells it.
    pub worker_set: String,
    /// Its model.
    pub model: String,
    /// The fingerprint of the cards that held for it; `None` where the set's workers disagreed.
    pub fingerprint: Option<String>,
    /// Tokens a block.
    pub block_size: BlockSize,
    /// The router mode.
    pub mode: Mode,
    /// Its settings.
    pub tuning: Tuning,
}

/// What the request asked, as far as the decision depended on it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Question {
    /// Tokens of the prompt.
    pub isl_tokens: u64,
    /// Full blocks of the prompt.
    pub prompt_blocks: u64,
    /// Which part of the work was placed.
    pub phase: Phase,
    /// The worker that the request insisted on.
    pub pin: Option<Pin>,
    /// Settings that the request replaced.
    pub overrides: Overrides,
}

/// One decision, with all that it was made from.
#[derive(Clone, PartialEq, Debug)]
pub struct Decision {
    /// Its number within the run that made it, from 0.
    pub number: u64,
    /// The name of the request, as its answer's `x-request-id` had it.
    pub request: String,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The generation of the fleet that it was made in: it goes up with every change of the fleet or of its configuration.
    pub generation: u64,
    /// The number of the frontend's routing configuration then.
    pub config_generation: u64,
    /// The configuration in force.
    pub rule: Arc<Rule>,
    /// What the request asked.
    pub question: Question,
    /// Requests that the set's round robin had placed.
    pub turn: u64,
    /// The time on the clock of the loads.
    pub now: Duration,
    /// The state of the random source before the decision, as [`fastrand::Rng::with_seed`] takes it.
    pub seed: u64,
    /// Every candidate's row, as it was before it was priced.
    pub rows: Vec<Row>,
    /// What came out.
    pub verdict: Verdict,
}

/// What a decision came to.
#[derive(Clone, PartialEq, Debug)]
pub enum Verdict {
    /// A candidate was chosen.
    Chosen {
        /// The position of its row.
        row: usize,
        /// What it cost, where the mode prices candidates.
        cost: Option<Cost>,
    },
    /// Nobody was.
    Refused {
        /// The [`Refusal::name`].
        reason: String,
    },
}

/// How a request ended, after a decision that chose a worker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Finish {
    /// The worker answered with success, to the end.
    Ok,
    /// The worker answered with an error that is the client's.
    ClientError,
    /// The worker answered with an error of its own.
    ServerError,
    /// The client left while the answer passed.
    Cancelled,
    /// The answer broke off.
    Cut,
    /// No answer came: the worker could not be reached, or the client left before.
    #[default]
    Unanswered,
}

impl Finish {
    /// Every way to end.
    pub const ALL: [Self; 6] =
        [Self::Ok, Self::ClientError, Self::ServerError, Self::Cancelled, Self::Cut, Self::Unanswered];

    /// The name that is shown.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::ClientError => "client_error",
            Self::ServerError => "server_error",
            Self::Cancelled => "cancelled",
            Self::Cut => "cut",
            Self::Unanswered => "unanswered",
        }
    }
}

/// What came of a request at the worker that was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// How it ended.
    pub finish: Finish,
    /// The worker's HTTP status, if it answered.
    pub status: Option<u16>,
    /// From the booking to the first token, where the answer came piece by piece.
    pub first_token: Option<Duration>,
    /// From the booking to the end.
    pub lasted: Duration,
    /// Tokens of the prompt, as the worker counted them.
    pub prompt_tokens: Option<u64>,
    /// Those of them that it had cached, as it said.
    pub cached_tokens: Option<u64>,
}

impl Question {
    /// What is kept of `demand`.
    #[must_use]
    pub fn of(demand: &Demand<'_>) -> Self {
        Self {
            isl_tokens: demand.isl_tokens as u64,
            prompt_blocks: demand.sequence.len() as u64,
            phase: demand.phase,
            pin: demand.pin,
            overrides: demand.overrides,
        }
    }

    /// The demand, as far as [`decide`](crate::select::decide) looks at it.
    #[must_use]
    pub fn demand(&self, block_size: BlockSize) -> Demand<'static> {
        let tokens = usize::try_from(self.isl_tokens).unwrap_or(usize::MAX);
        let Self { phase, pin, overrides, .. } = *self;
        Demand { phase, pin, overrides, ..Demand::new(tokens, block_size, &[]) }
    }
}

impl Verdict {
    /// What is kept of a choice or a refusal.
    #[must_use]
    pub fn of(made: Result<&Choice, &Refusal>) -> Self {
        match made {
            Ok(choice) => Self::Chosen { row: choice.row, cost: choice.cost },
            Err(refusal) => Self::Refused { reason: refusal.name().to_owned() },
        }
    }
}
