//! `load_threshold_config` as a card and the admin listener spell it.

use serde::{Deserialize, Serialize};

use crate::load::Thresholds;

/// The keys of Dynamo's busy thresholds. Those that are not set are not written.
#[derive(Deserialize, Serialize, Clone, Copy, PartialEq, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub struct LoadThresholdConfig {
    /// See [`Thresholds::active_decode_blocks`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_decode_blocks_threshold: Option<f64>,
    /// See [`Thresholds::active_prefill_tokens`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_prefill_tokens_threshold: Option<u64>,
    /// See [`Thresholds::active_prefill_tokens_frac`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_prefill_tokens_threshold_frac: Option<f64>,
}

impl LoadThresholdConfig {
    /// A value that nobody would take, in words.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        if let Some(share) = self.active_decode_blocks_threshold.filter(|share| !(0.0..=1.0).contains(share))
        {
            return Some(format!(
                "active_decode_blocks_threshold must be between 0.0 and 1.0, and is {share}"
            ));
        }
        let factor = self.active_prefill_tokens_threshold_frac;
        let factor = factor.filter(|factor| !(factor.is_finite() && *factor >= 0.0))?;
        Some(format!("active_prefill_tokens_threshold_frac must be finite and non-negative, and is {factor}"))
    }
}

impl From<LoadThresholdConfig> for Thresholds {
    fn from(config: LoadThresholdConfig) -> Self {
        Self {
            active_decode_blocks: config.active_decode_blocks_threshold,
            active_prefill_tokens: config.active_prefill_tokens_threshold,
            active_prefill_tokens_frac: config.active_prefill_tokens_threshold_frac,
        }
    }
}

impl From<Thresholds> for LoadThresholdConfig {
    fn from(thresholds: Thresholds) -> Self {
        // Adding zero makes -0.0 the 0.0 that it is equal to, so that equal thresholds are written alike.
        Self {
            active_decode_blocks_threshold: thresholds.active_decode_blocks.map(|share| share + 0.0),
            active_prefill_tokens_threshold: thresholds.active_prefill_tokens,
            active_prefill_tokens_threshold_frac: thresholds.active_prefill_tokens_frac.map(|of| of + 0.0),
        }
    }
}
