//! The router flags: strategy and tuning.

use clap::Args;
use serde::Deserialize;

use crate::{
    fleet::RouterConfig,
    select::{Tuning, TuningError},
};

/// Router flags as given; what is absent falls to the file, then to the default.
#[derive(Args, Deserialize, Clone, PartialEq, Debug, Default)]
#[command(next_help_heading = "Router")]
#[serde(deny_unknown_fields, default)]
pub struct RouterArgs {
    /// How a worker is chosen: round-robin, random, power-of-two, least-loaded, direct,
    /// device-aware-weighted or kv [default: round-robin; up and drive: kv]
    #[arg(long, env = "DYN_ROUTER_MODE", value_name = "MODE")]
    pub router_mode: Option<String>,
    /// kv: what a cached block is worth, in blocks of prefill [default: 1.0; up and drive: 2.0]
    #[arg(
        long,
        env = "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT",
        value_name = "CREDIT",
        allow_negative_numbers = true
    )]
    pub router_kv_overlap_score_credit: Option<f64>,
    /// kv: how fast that credit fades on a worker with more prefill queued than the others; 0 keeps it
    /// [default: 0.0]
    #[arg(
        long,
        env = "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY",
        value_name = "DECAY",
        allow_negative_numbers = true
    )]
    pub router_kv_overlap_score_credit_decay: Option<f64>,
    /// kv: weight of prefill against decode blocks [default: 1.0; up and drive: 20.0]
    #[arg(long, env = "DYN_ROUTER_PREFILL_LOAD_SCALE", value_name = "SCALE", allow_negative_numbers = true)]
    pub router_prefill_load_scale: Option<f64>,
    /// kv: cost of each request in flight, in blocks [default: 0.0]
    #[arg(
        long,
        env = "DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT",
        value_name = "WEIGHT",
        allow_negative_numbers = true
    )]
    pub router_decode_active_request_weight: Option<f64>,
    /// kv: what a block in host memory is worth, 0 to 1 [default: 0.75]
    #[arg(
        long,
        env = "DYN_ROUTER_HOST_CACHE_HIT_WEIGHT",
        value_name = "WEIGHT",
        allow_negative_numbers = true
    )]
    pub router_host_cache_hit_weight: Option<f64>,
    /// kv: what a block on disk or in an external store is worth, 0 to 1 [default: 0.25]
    #[arg(
        long,
        env = "DYN_ROUTER_DISK_CACHE_HIT_WEIGHT",
        value_name = "WEIGHT",
        allow_negative_numbers = true
    )]
    pub router_disk_cache_hit_weight: Option<f64>,
    /// kv: 0 takes the cheapest worker, above 0 gives costlier ones a share too [default: 0.0]
    #[arg(long, env = "DYN_ROUTER_TEMPERATURE", value_name = "T", allow_negative_numbers = true)]
    pub router_temperature: Option<f64>,
}

impl RouterArgs {
    /// Whether any flag was given.
    #[must_use]
    pub fn any(&self) -> bool {
        *self != Self::default()
    }

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
        tuning.validate().map_err(|error| format!("{}: {error}", flag_of(error)))?;
        Ok(RouterConfig { mode, tuning })
    }
}

/// The flag that sets what `error` complains of; the file's key is the same with underscores.
fn flag_of(error: TuningError) -> String {
    match error {
        TuningError::Credit => "--router-kv-overlap-score-credit".to_owned(),
        TuningError::Weight { field: "overlap_score_credit_decay" } => {
            "--router-kv-overlap-score-credit-decay".to_owned()
        }
        TuningError::Weight { field } | TuningError::Share { field } => {
            format!("--router-{}", field.trim_start_matches("router_").replace('_', "-"))
        }
        // No flag sets the switches that this is about.
        TuningError::OutputWithoutActive => "router".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::select::Mode;

    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        router: RouterArgs,
    }

    #[test]
    fn a_value_out_of_range_names_a_flag_that_exists() {
        let bad = -1.0;
        let each: [fn(&mut RouterArgs) -> &mut Option<f64>; 7] = [
            |args| &mut args.router_kv_overlap_score_credit,
            |args| &mut args.router_kv_overlap_score_credit_decay,
            |args| &mut args.router_prefill_load_scale,
            |args| &mut args.router_decode_active_request_weight,
            |args| &mut args.router_host_cache_hit_weight,
            |args| &mut args.router_disk_cache_hit_weight,
            |args| &mut args.router_temperature,
        ];
        let command = Flags::command();
        for field in each {
            let mut args = RouterArgs::default();
            *field(&mut args) = Some(bad);
            let error = args.build(&RouterConfig::default()).unwrap_err();
            let flag = error.split(':').next().unwrap().trim_start_matches("--");
            assert!(command.get_arguments().any(|arg| arg.get_long() == Some(flag)), "{error}");
        }
    }

    #[test]
    fn what_a_flag_leaves_open_comes_from_below() {
        let above = RouterArgs { router_temperature: Some(0.5), ..RouterArgs::default() };
        let below = RouterArgs {
            router_mode: Some("random".to_owned()),
            router_temperature: Some(0.1),
            ..RouterArgs::default()
        };
        let config = above.or(below).build(&RouterConfig::default()).unwrap();
        assert_eq!((config.mode, config.tuning.router_temperature), (Mode::Random, 0.5));
    }
}
