//! What a request would cost on a slot.
//!
//! There are two models. [`time`] is in seconds, learns how fast each slot is, and is the default; [`blocks`] is
//! Dynamo's formula. Each has a file a term. They share what cached blocks are worth (`credit.rs`), and every setting of
//! a [`Tuning`] means the same in both; where the blocks model counts in blocks, the time model takes the
//! time that their prefill would take.

pub mod blocks;
mod credit;
mod device;
mod model;
mod predicted;
mod session;
pub mod time;

pub use credit::{cached_tokens, credit, decay};
pub use device::{on_devices, weighed};
pub use model::{CostModel, UnknownCostModel};
pub use predicted::predicted;
pub use session::session_bonus;

use self::{blocks::BlockCost, time::TimeCost};
use super::{Demand, Phase, Tuning};

/// One candidate's cost, term by term.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Cost {
    /// In seconds.
    Time(TimeCost),
    /// In blocks.
    Blocks(BlockCost),
}

impl Cost {
    /// The sum of the terms, in the model's unit; never NaN.
    #[must_use]
    pub const fn total(&self) -> f64 {
        match self {
            Self::Time(cost) => cost.total,
            Self::Blocks(cost) => cost.total,
        }
    }

    /// The model that made it.
    #[must_use]
    pub const fn model(&self) -> CostModel {
        match self {
            Self::Time(_) => CostModel::Time,
            Self::Blocks(_) => CostModel::Blocks,
        }
    }

    /// Seconds from the booking to the first token, as far as the model predicts it.
    #[must_use]
    pub const fn first_token(&self) -> Option<f64> {
        match self {
            Self::Time(cost) => cost.first_token,
            Self::Blocks(_) => None,
        }
    }
}

/// Whether a decode worker is chosen, with prefill untracked and the cache worth something.
fn decodes_only(demand: &Demand<'_>, tuning: &Tuning) -> bool {
    demand.phase == Phase::Decode && !tuning.router_track_prefill_tokens && tuning.overlap_score_credit > 0.0
}
