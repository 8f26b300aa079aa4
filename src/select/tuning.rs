//! What an operator can set about a choice.

use super::{
    ApproximateCache, BypassPolicy, ConditionalDisagg, CostModel, Overrides, SessionAffinity,
    queue::QueuePolicy,
};
use crate::{
    device::{DEFAULT_ACCELERATOR_TO_CPU_RATIO, Weights, WeightsError},
    load::Thresholds,
};
use std::{num::NonZeroU32, time::Duration};

/// The settings of a worker set that a choice depends on. The weights serve mode `kv`, in both of its cost models; the
/// tracking switches say what every booking counts.
///
/// Names and defaults, but for the cost model, are those of Dynamo's `kv_router_config`. They suit the time model. In
/// the blocks model they make a block of context in use cost as much as a block to prefill, so with long prompts load
/// outweighs the cache: there `prefill_load_scale` 20 together with `overlap_score_credit` 2 serves better; the scale should
/// not be raised alone.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tuning {
    /// What a candidate's cost is. Default [`CostModel::Time`].
    pub cost_model: CostModel,
    /// Worth of a cached GPU block, in blocks of prefill saved. At least 0; may exceed 1. Default 1.
    pub overlap_score_credit: f64,
    /// How fast that worth falls on a slot with more prefill waiting than the least busy one; 0 keeps it.
    /// At least 0. Default 0.
    pub overlap_score_credit_decay: f64,
    /// Weight of the prefill term. At least 0. Default 1.
    pub prefill_load_scale: f64,
    /// Cost of each request in flight. At least 0. Default 0.
    pub decode_active_request_weight: f64,
    /// Worth of a block cached in host memory, 0 to 1. Default 0.75.
    pub host_cache_hit_weight: f64,
    /// Worth of a block cached on disk or in an external store, 0 to 1. Default 0.25.
    pub disk_cache_hit_weight: f64,
    /// 0 takes the cheapest slot; above, costlier ones get a share too. At least 0. Default 0.
    pub router_temperature: f64,
    /// Whether blocks in use count as load. Default true.
    pub router_track_active_blocks: bool,
    /// Whether the blocks that output fills count too. Default false.
    pub router_track_output_blocks: bool,
    /// Whether requests of one slot share the blocks they have in common. Default true.
    pub router_assume_kv_reuse: bool,
    /// Whether prompt tokens waiting for prefill count as load. Default true.
    pub router_track_prefill_tokens: bool,
    /// When a decode set computes prompts itself, though there are prefill workers; `None`: never. Default `None`.
    pub conditional_disagg: Option<ConditionalDisagg>,
    /// Whether what workers have cached is known from their KV events; otherwise it is guessed from what they were sent.
    /// Default true.
    pub use_kv_events: bool,
    /// How it is guessed.
    pub approximate_cache: ApproximateCache,
    /// For how many seconds what a worker was sent counts as cached there, beside what its events say; `None`: not beyond
    /// its request. At least 0. Default `None`.
    pub router_predicted_ttl_secs: Option<f64>,
    /// What ties the requests of a session together, in every mode. Default: nothing.
    pub session_affinity: SessionAffinity,
    /// In mode `kv`, requests wait while every rank that could take them has more prefill tokens outstanding than so many of its
    /// largest batches. At least 0; `None`: nobody waits. Default `None`.
    pub queue_threshold: Option<f64>,
    /// Who of those goes first. Default [`QueuePolicy::Fcfs`].
    pub queue_policy: QueuePolicy,
    /// In mode `kv`, for how long a request is held at most while the rank that is cheapest for it is not done with others.
    /// `None`: nobody is held. Default `None`.
    pub hold: Option<Duration>,
    /// From when on ranks count as busy. Default: never.
    pub busy: Thresholds,
    /// How many CPU slots one accelerator is worth, for mode `device-aware-weighted`. Default 8.
    pub accelerator_to_cpu_ratio: NonZeroU32,
    /// What devices have to say, for modes `kv` and `device-aware-weighted`, and whether they fence.
    pub device_weights: Weights,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            cost_model: CostModel::Time,
            overlap_score_credit: 1.0,
            overlap_score_credit_decay: 0.0,
            prefill_load_scale: 1.0,
            decode_active_request_weight: 0.0,
            host_cache_hit_weight: 0.75,
            disk_cache_hit_weight: 0.25,
            router_temperature: 0.0,
            router_track_active_blocks: true,
            router_track_output_blocks: false,
            router_assume_kv_reuse: true,
            router_track_prefill_tokens: true,
            conditional_disagg: None,
            use_kv_events: true,
            approximate_cache: ApproximateCache::default(),
            router_predicted_ttl_secs: None,
            session_affinity: SessionAffinity::default(),
            queue_threshold: None,
            queue_policy: QueuePolicy::Fcfs,
            hold: None,
            busy: Thresholds::default(),
            accelerator_to_cpu_ratio: DEFAULT_ACCELERATOR_TO_CPU_RATIO,
            device_weights: Weights::default(),
        }
    }
}

/// A setting out of its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TuningError {
    /// The credit is negative or not finite.
    #[error("overlap_score_credit must be a finite, non-negative number")]
    Credit,
    /// A weight is negative or not finite.
    #[error("{field} must be finite and non-negative")]
    Weight {
        /// Which one.
        field: &'static str,
    },
    /// A share is not between 0 and 1.
    #[error("{field} must be between 0 and 1")]
    Share {
        /// Which one.
        field: &'static str,
    },
    /// Output blocks are to be counted where no blocks are.
    #[error("router_track_output_blocks requires router_track_active_blocks=true")]
    OutputWithoutActive,
    /// How busy prefill workers are is to be judged, and by nothing.
    #[error(
        "the policy {policy} needs prefill_busy_threshold (conditional_disagg_prefill_busy_threshold on a card), or the queue's \
         threshold in its place: how many of its largest batches may wait at a prefill worker that is not busy"
    )]
    NoPrefillBusyThreshold {
        /// The policy that asks.
        policy: BypassPolicy,
    },
    /// A time is negative or not finite.
    #[error("{field} must be greater than or equal to 0")]
    Seconds {
        /// Which one.
        field: &'static str,
    },
    /// Predictions stand beside events, and there are none.
    #[error("router_predicted_ttl_secs requires use_kv_events=true")]
    PredictedWithoutEvents,
    /// Two orders for one queue.
    #[error(
        "router_queue_policy={policy} and router_hold exclude each other: requests that are held go by an order of their own"
    )]
    TwoOrders {
        /// The policy.
        policy: QueuePolicy,
    },
    /// A device weight.
    #[error(transparent)]
    DeviceWeights(#[from] WeightsError),
}

impl Tuning {
    /// A hold of so many seconds, as flags and cards say it: 0, and what is no time at all, holds nobody.
    #[must_use]
    pub fn hold_of(seconds: f64) -> Option<Duration> {
        Duration::try_from_secs_f64(seconds).ok().filter(|hold| !hold.is_zero())
    }

    /// The hold as flags and cards say it: 0 holds nobody.
    #[must_use]
    pub fn hold_seconds(&self) -> f64 {
        self.hold.map_or(0.0, |hold| hold.as_secs_f64())
    }

    /// Whether it is followed which blocks requests in flight use: as load, or, in the time model, because they will be
    /// cached there whoever counts them.
    pub(super) const fn follows_blocks(&self) -> bool {
        self.router_assume_kv_reuse
            && (self.router_track_active_blocks || matches!(self.cost_model, CostModel::Time))
    }

    /// Checks every range, and that no two settings contradict each other.
    ///
    /// # Errors
    /// The first setting out of its range, in order of the fields; else the first two that do not go together.
    pub fn validate(&self) -> Result<(), TuningError> {
        self.validate_ranges()?;
        if self.router_track_output_blocks && !self.router_track_active_blocks {
            return Err(TuningError::OutputWithoutActive);
        }
        if self.router_predicted_ttl_secs.is_some() && !self.use_kv_events {
            return Err(TuningError::PredictedWithoutEvents);
        }
        if self.hold.is_some() && self.queue_policy != QueuePolicy::Fcfs {
            return Err(TuningError::TwoOrders { policy: self.queue_policy });
        }
        self.conditional_disagg.map_or(Ok(()), |rule| rule.validate())
    }

    /// Checks every range, whatever goes together: all that a choice relies on. Which settings exclude each other is a rule for
    /// whoever gives them, and what was decided before a rule was made, or past it, stays decided.
    ///
    /// # Errors
    /// The first setting out of its range, in order of the fields.
    pub fn validate_ranges(&self) -> Result<(), TuningError> {
        credit(self.overlap_score_credit)?;
        weight("overlap_score_credit_decay", self.overlap_score_credit_decay)?;
        weight("prefill_load_scale", self.prefill_load_scale)?;
        weight("decode_active_request_weight", self.decode_active_request_weight)?;
        share("host_cache_hit_weight", self.host_cache_hit_weight)?;
        share("disk_cache_hit_weight", self.disk_cache_hit_weight)?;
        weight("router_temperature", self.router_temperature)?;
        seconds("router_ttl_secs", self.approximate_cache.ttl_secs)?;
        self.router_predicted_ttl_secs.map_or(Ok(()), |ttl| seconds("router_predicted_ttl_secs", ttl))?;
        self.queue_threshold.map_or(Ok(()), |factor| weight("router_queue_threshold", factor))?;
        self.busy.active_decode_blocks.map_or(Ok(()), |of| share("active_decode_blocks_threshold", of))?;
        let factor = self.busy.active_prefill_tokens_frac;
        factor.map_or(Ok(()), |of| weight("active_prefill_tokens_threshold_frac", of))?;
        self.device_weights.validate()?;
        self.conditional_disagg.map_or(Ok(()), |rule| rule.validate_ranges())
    }

    /// Applies Dynamo's legacy `overlap_score_weight`: it is the prefill scale, and 0 also takes the credit.
    pub fn set_overlap_score_weight(&mut self, weight: f64) {
        self.prefill_load_scale = weight;
        if weight == 0.0 {
            self.overlap_score_credit = 0.0;
        }
    }

    /// The settings as they hold for a request that overrides some. Overriding twice is overriding once.
    #[must_use]
    pub fn with(&self, overrides: &Overrides) -> Self {
        Self {
            overlap_score_credit: overrides.overlap_score_credit.unwrap_or(self.overlap_score_credit),
            prefill_load_scale: overrides.prefill_load_scale.unwrap_or(self.prefill_load_scale),
            router_temperature: overrides.router_temperature.unwrap_or(self.router_temperature),
            router_assume_kv_reuse: overrides.assume_kv_reuse.unwrap_or(self.router_assume_kv_reuse),
            router_track_prefill_tokens: overrides
                .track_prefill_tokens
                .unwrap_or(self.router_track_prefill_tokens),
            ..*self
        }
    }
}

pub(super) fn credit(value: f64) -> Result<(), TuningError> {
    weight("", value).map_err(|_| TuningError::Credit)
}

pub(super) fn weight(field: &'static str, value: f64) -> Result<(), TuningError> {
    if value.is_finite() && value >= 0.0 { Ok(()) } else { Err(TuningError::Weight { field }) }
}

fn seconds(field: &'static str, value: f64) -> Result<(), TuningError> {
    weight(field, value).map_err(|_| TuningError::Seconds { field })
}

pub(super) fn share(field: &'static str, value: f64) -> Result<(), TuningError> {
    if (0.0..=1.0).contains(&value) { Ok(()) } else { Err(TuningError::Share { field }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut Tuning)) -> String {
        let mut tuning = Tuning::default();
        change(&mut tuning);
        tuning.validate().unwrap_err().to_string()
    }

    #[test]
    fn the_defaults_are_valid() {
        assert_eq!(Tuning::default().validate(), Ok(()));
    }

    #[test]
    fn a_credit_above_one_is_valid() {
        let tuning = Tuning { overlap_score_credit: 2.5, ..Tuning::default() };
        assert_eq!(tuning.validate(), Ok(()));
    }

    #[test]
    fn each_range_has_its_text() {
        assert_eq!(
            refused(|tuning| tuning.overlap_score_credit = f64::NAN),
            "overlap_score_credit must be a finite, non-negative number"
        );
        assert_eq!(
            refused(|tuning| tuning.router_temperature = -0.1),
            "router_temperature must be finite and non-negative"
        );
        assert_eq!(
            refused(|tuning| tuning.prefill_load_scale = f64::INFINITY),
            "prefill_load_scale must be finite and non-negative"
        );
        assert_eq!(
            refused(|tuning| tuning.host_cache_hit_weight = 1.5),
            "host_cache_hit_weight must be between 0 and 1"
        );
        assert_eq!(
            refused(|tuning| tuning.disk_cache_hit_weight = f64::NAN),
            "disk_cache_hit_weight must be between 0 and 1"
        );
        assert_eq!(
            refused(|tuning| {
                tuning.router_track_output_blocks = true;
                tuning.router_track_active_blocks = false;
            }),
            "router_track_output_blocks requires router_track_active_blocks=true"
        );
    }

    #[test]
    fn the_legacy_weight_sets_the_scale_and_zero_takes_the_credit() {
        let mut tuning = Tuning::default();
        tuning.set_overlap_score_weight(3.0);
        assert_eq!((tuning.prefill_load_scale, tuning.overlap_score_credit), (3.0, 1.0));
        tuning.set_overlap_score_weight(0.0);
        assert_eq!((tuning.prefill_load_scale, tuning.overlap_score_credit), (0.0, 0.0));
    }
}
