//! The router flags: strategy and tuning.

use clap::Args;
use serde::Deserialize;

use crate::{fleet::RouterConfig, select::Tuning};

/// Router flags as given; what is absent falls to the file, then to the default.
#[derive(Args, Deserialize, Clone, Debug, Default)]
#[command(next_help_heading = "Router")]
#[serde(deny_unknown_fields, default)]
pub struct RouterArgs {
    /// How a worker is chosen: round-robin, random, power-of-two, least-loaded, direct,
    /// device-aware-weighted or kv [default: round-robin]
    #[arg(long, env = "DYN_ROUTER_MODE", value_name = "MODE")]
    pub router_mode: Option<String>,
    /// kv: what a cached block is worth, in blocks of prefill [default: 1.0]
    #[arg(long, env = "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT", value_name = "CREDIT")]
    pub router_kv_overlap_score_credit: Option<f64>,
    /// kv: how fast that credit fades on a worker with more prefill queued than the others [default: 0.0]
    #[arg(long, env = "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY", value_name = "DECAY")]
    pub router_kv_overlap_score_credit_decay: Option<f64>,
    /// kv: weight of prefill against decode blocks [default: 1.0]
    #[arg(long, env = "DYN_ROUTER_PREFILL_LOAD_SCALE", value_name = "SCALE")]
    pub router_prefill_load_scale: Option<f64>,
    /// kv: cost of each request in flight, in blocks [default: 0.0]
    #[arg(long, env = "DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT", value_name = "WEIGHT")]
    pub router_decode_active_request_weight: Option<f64>,
    /// kv: what a block in host memory is worth, 0 to 1 [default: 0.75]
    #[arg(long, env = "DYN_ROUTER_HOST_CACHE_HIT_WEIGHT", value_name = "WEIGHT")]
    pub router_host_cache_hit_weight: Option<f64>,
    /// kv: what a block on disk is worth, 0 to 1 [default: 0.25]
    #[arg(long, env = "DYN_ROUTER_DISK_CACHE_HIT_WEIGHT", value_name = "WEIGHT")]
    pub router_disk_cache_hit_weight: Option<f64>,
    /// kv: 0 takes the cheapest worker, above 0 draws by cost [default: 0.0]
    #[arg(long, env = "DYN_ROUTER_TEMPERATURE", value_name = "T")]
    pub router_temperature: Option<f64>,
}

impl RouterArgs {
    /// These flags, with `below` where they say nothing.
    #[must_use]
    pub fn or(self, below: Self) -> Self {
        Self {
            router_mode: self.router_mode.or(below.router_mode),
            router_kv_overlap_score_credit: self
                .router_kv_overlap_score_credit
                .or(below.router_kv_overlap_score_credit),
            router_kv_overlap_score_credit_decay: self
                .router_kv_overlap_score_credit_decay
                .or(below.router_kv_overlap_score_credit_decay),
            router_prefill_load_scale: self.router_prefill_load_scale.or(below.router_prefill_load_scale),
            router_decode_active_request_weight: self
                .router_decode_active_request_weight
                .or(below.router_decode_active_request_weight),
            router_host_cache_hit_weight: self
                .router_host_cache_hit_weight
                .or(below.router_host_cache_hit_weight),
            router_disk_cache_hit_weight: self
                .router_disk_cache_hit_weight
                .or(below.router_disk_cache_hit_weight),
            router_temperature: self.router_temperature.or(below.router_temperature),
        }
    }

    /// The configuration they make, with `default` where they say nothing.
    ///
    /// # Errors
    /// A text that names the flag, the value and what is accepted.
    pub fn build(&self, default: &RouterConfig) -> Result<RouterConfig, String> {
        let mode = match self.router_mode.as_deref().filter(|mode| !mode.is_empty()) {
            Some(text) => text.parse().map_err(|error| format!("--router-mode: {error}"))?,
            None => default.mode,
        };
        let default = default.tuning;
        let tuning = Tuning {
            overlap_score_credit: self.router_kv_overlap_score_credit.unwrap_or(default.overlap_score_credit),
            overlap_score_credit_decay: self
                .router_kv_overlap_score_credit_decay
                .unwrap_or(default.overlap_score_credit_decay),
            prefill_load_scale: self.router_prefill_load_scale.unwrap_or(default.prefill_load_scale),
            decode_active_request_weight: self
                .router_decode_active_request_weight
                .unwrap_or(default.decode_active_request_weight),
            host_cache_hit_weight: self.router_host_cache_hit_weight.unwrap_or(default.host_cache_hit_weight),
            disk_cache_hit_weight: self.router_disk_cache_hit_weight.unwrap_or(default.disk_cache_hit_weight),
            router_temperature: self.router_temperature.unwrap_or(default.router_temperature),
            ..default
        };
        tuning.validate().map_err(|error| format!("router flags: {error}"))?;
        Ok(RouterConfig { mode, tuning })
    }
}
