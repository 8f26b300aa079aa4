//! `kv_router_config` as a card spells it: every key that Dynamo 1.6.1 knows, with its default.

use serde::{Deserialize, Serialize};

use super::router_config::{RouterConfigError, only};
use crate::select::{ApproximateCache, ConditionalDisagg, Tuning, queue::UnknownQueuePolicy};

/// The keys. Unknown ones are refused by name. What is written are the keys that Dynamo always writes, so that its
/// frontends read our cards, and of the others those that are not at their default, so that older ones do too.
#[derive(Deserialize, Serialize, Clone, PartialEq, Debug)]
#[serde(deny_unknown_fields, default)]
#[expect(clippy::struct_excessive_bools, reason = "the keys are Dynamo's")]
pub(super) struct KvRouterConfig {
    overlap_score_credit: f64,
    overlap_score_credit_decay: f64,
    prefill_load_scale: f64,
    #[serde(skip_serializing_if = "is_zero")]
    decode_active_request_weight: f64,
    host_cache_hit_weight: f64,
    disk_cache_hit_weight: f64,
    router_temperature: f64,
    router_track_active_blocks: bool,
    router_track_output_blocks: bool,
    router_assume_kv_reuse: bool,
    router_track_prefill_tokens: bool,
    router_queue_threshold: Option<f64>,
    router_queue_policy: String,
    use_kv_events: bool,
    router_ttl_secs: f64,
    router_predicted_ttl_secs: Option<f64>,
    // Of no effect here, whatever it says: how many threads a router applies events with is its own affair.
    router_event_threads: u32,
    // From here on accepted only where they ask for nothing.
    router_replica_sync: bool,
    router_prefill_load_model: String,
    router_policy_config: Option<String>,
    skip_initial_worker_wait: bool,
    use_remote_indexer: bool,
    serve_indexer: bool,
    shared_cache_type: String,
    // Never written, since always at their default.
    #[serde(skip_serializing)]
    shared_cache_multiplier: Option<f64>,
    #[serde(skip_serializing)]
    router_tracking_hash: String,
    #[serde(skip_serializing)]
    router_tracking_key_file: Option<String>,
    #[serde(skip_serializing)]
    router_tracking_key_id: Option<String>,
    #[serde(skip_serializing)]
    enable_session_prefix_index: bool,
    #[serde(skip_serializing_if = "is_default::enabled")]
    conditional_disagg_enabled: bool,
    #[serde(skip_serializing_if = "is_default::policy")]
    conditional_disagg_policy: String,
    #[serde(skip_serializing_if = "is_default::eff_isl")]
    conditional_disagg_eff_isl_threshold: u64,
    #[serde(skip_serializing_if = "is_default::eff_isl_ratio")]
    conditional_disagg_eff_isl_ratio_threshold: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    conditional_disagg_prefill_busy_threshold: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    conditional_disagg_decode_busy_threshold: Option<f64>,
    // Keys of older cards.
    #[serde(skip_serializing)]
    overlap_score_weight: Option<f64>,
    #[serde(skip_serializing)]
    durable_kv_events: bool,
    /// Said what a durable event log did; there is none.
    #[serde(skip_serializing)]
    router_snapshot_threshold: Option<u32>,
    /// The same.
    #[serde(skip_serializing)]
    router_reset_states: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

/// Whether a key of `conditional_disagg_*` is at its default.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
mod is_default {
    use crate::select::{BypassPolicy, ConditionalDisagg};

    pub(super) fn enabled(value: &bool) -> bool {
        !value
    }

    pub(super) fn policy(value: &str) -> bool {
        value == BypassPolicy::default().name()
    }

    pub(super) fn eff_isl(value: &u64) -> bool {
        *value == ConditionalDisagg::default().eff_isl_threshold
    }

    pub(super) fn eff_isl_ratio(value: &f64) -> bool {
        *value == ConditionalDisagg::default().eff_isl_ratio_threshold
    }
}

impl Default for KvRouterConfig {
    fn default() -> Self {
        let tuning = Tuning::default();
        let rule = ConditionalDisagg::default();
        Self {
            overlap_score_credit: tuning.overlap_score_credit,
            overlap_score_credit_decay: tuning.overlap_score_credit_decay,
            prefill_load_scale: tuning.prefill_load_scale,
            decode_active_request_weight: tuning.decode_active_request_weight,
            host_cache_hit_weight: tuning.host_cache_hit_weight,
            disk_cache_hit_weight: tuning.disk_cache_hit_weight,
            router_temperature: tuning.router_temperature,
            router_track_active_blocks: tuning.router_track_active_blocks,
            router_track_output_blocks: tuning.router_track_output_blocks,
            router_assume_kv_reuse: tuning.router_assume_kv_reuse,
            router_track_prefill_tokens: tuning.router_track_prefill_tokens,
            router_event_threads: 4,
            router_ttl_secs: tuning.approximate_cache.ttl_secs,
            use_kv_events: tuning.use_kv_events,
            router_replica_sync: false,
            router_prefill_load_model: "none".to_owned(),
            router_queue_threshold: None,
            router_queue_policy: "fcfs".to_owned(),
            router_policy_config: None,
            skip_initial_worker_wait: false,
            use_remote_indexer: false,
            serve_indexer: false,
            shared_cache_type: "none".to_owned(),
            router_predicted_ttl_secs: tuning.router_predicted_ttl_secs,
            shared_cache_multiplier: None,
            router_tracking_hash: "public-xxh3-v1".to_owned(),
            router_tracking_key_file: None,
            router_tracking_key_id: None,
            enable_session_prefix_index: false,
            conditional_disagg_enabled: false,
            conditional_disagg_policy: rule.policy.name().to_owned(),
            conditional_disagg_eff_isl_threshold: rule.eff_isl_threshold,
            conditional_disagg_eff_isl_ratio_threshold: rule.eff_isl_ratio_threshold,
            conditional_disagg_prefill_busy_threshold: rule.prefill_busy_threshold,
            conditional_disagg_decode_busy_threshold: rule.decode_busy_threshold,
            overlap_score_weight: None,
            durable_kv_events: false,
            router_snapshot_threshold: None,
            router_reset_states: false,
        }
    }
}

/// Refuses keys that stand at anything but what asks for nothing.
macro_rules! refuse_unless_default {
    ($given:expr, $default:expr, $($key:ident)+) => {
        $(only(stringify!($key), &$given.$key, &$default.$key)?;)+
    };
}

impl KvRouterConfig {
    /// What is asked for.
    ///
    /// # Errors
    /// A value out of its range, or one that this router does not do.
    pub(super) fn tuning(&self) -> Result<Tuning, RouterConfigError> {
        self.refuse_unsupported()?;
        let mut tuning = Tuning {
            overlap_score_credit: self.overlap_score_credit,
            overlap_score_credit_decay: self.overlap_score_credit_decay,
            prefill_load_scale: self.prefill_load_scale,
            decode_active_request_weight: self.decode_active_request_weight,
            host_cache_hit_weight: self.host_cache_hit_weight,
            disk_cache_hit_weight: self.disk_cache_hit_weight,
            router_temperature: self.router_temperature,
            router_track_active_blocks: self.router_track_active_blocks,
            router_track_output_blocks: self.router_track_output_blocks,
            router_assume_kv_reuse: self.router_assume_kv_reuse,
            router_track_prefill_tokens: self.router_track_prefill_tokens,
            conditional_disagg: self.conditional_disagg()?,
            use_kv_events: self.use_kv_events,
            approximate_cache: ApproximateCache {
                ttl_secs: self.router_ttl_secs,
                ..ApproximateCache::default()
            },
            router_predicted_ttl_secs: self.router_predicted_ttl_secs,
            queue_threshold: self.router_queue_threshold,
            queue_policy: self.router_queue_policy.parse().map_err(|error: UnknownQueuePolicy| {
                RouterConfigError::Tuning(format!("router_queue_policy: {error}"))
            })?,
            ..Tuning::default()
        };
        if let Some(weight) = self.overlap_score_weight {
            tuning.set_overlap_score_weight(weight);
        }
        tuning.validate().map_err(|error| RouterConfigError::Tuning(error.to_string()))?;
        Ok(tuning)
    }

    /// What the `conditional_disagg_*` keys say. Those beside `enabled` do nothing without it, and are refused then.
    fn conditional_disagg(&self) -> Result<Option<ConditionalDisagg>, RouterConfigError> {
        if !self.conditional_disagg_enabled {
            let default = Self::default();
            let settings = |of: &Self| {
                (
                    of.conditional_disagg_eff_isl_threshold,
                    of.conditional_disagg_eff_isl_ratio_threshold,
                    of.conditional_disagg_prefill_busy_threshold,
                    of.conditional_disagg_decode_busy_threshold,
                )
            };
            let same = self.conditional_disagg_policy == default.conditional_disagg_policy;
            if same && settings(self) == settings(&default) {
                return Ok(None);
            }
            let problem = "conditional_disagg_* keys require conditional_disagg_enabled=true";
            return Err(RouterConfigError::Tuning(problem.to_owned()));
        }
        let policy = self.conditional_disagg_policy.parse();
        let mut rule = ConditionalDisagg {
            policy: policy
                .map_err(|error| RouterConfigError::Tuning(format!("conditional_disagg_policy: {error}")))?,
            eff_isl_threshold: self.conditional_disagg_eff_isl_threshold,
            eff_isl_ratio_threshold: self.conditional_disagg_eff_isl_ratio_threshold,
            prefill_busy_threshold: self.conditional_disagg_prefill_busy_threshold,
            decode_busy_threshold: self.conditional_disagg_decode_busy_threshold,
        };
        rule.fall_back_to(self.router_queue_threshold);
        Ok(Some(rule))
    }

    fn refuse_unsupported(&self) -> Result<(), RouterConfigError> {
        if let Some(problem) = self.problem() {
            return Err(RouterConfigError::Tuning(problem));
        }
        // The multiplier was set, but to nothing.
        let given = Self {
            shared_cache_multiplier: self.shared_cache_multiplier.filter(|multiplier| !is_zero(multiplier)),
            ..self.clone()
        };
        refuse_unless_default!(given, Self::default(),
            router_replica_sync router_prefill_load_model router_policy_config
            skip_initial_worker_wait use_remote_indexer serve_indexer shared_cache_type
            shared_cache_multiplier router_tracking_hash router_tracking_key_file
            router_tracking_key_id enable_session_prefix_index);
        Ok(())
    }
}

impl From<&Tuning> for KvRouterConfig {
    fn from(tuning: &Tuning) -> Self {
        let rule = tuning.conditional_disagg.unwrap_or_default();
        // Adding zero makes -0.0 the 0.0 that it is equal to, so that equal tunings are written alike.
        Self {
            overlap_score_credit: tuning.overlap_score_credit + 0.0,
            overlap_score_credit_decay: tuning.overlap_score_credit_decay + 0.0,
            prefill_load_scale: tuning.prefill_load_scale + 0.0,
            decode_active_request_weight: tuning.decode_active_request_weight + 0.0,
            host_cache_hit_weight: tuning.host_cache_hit_weight + 0.0,
            disk_cache_hit_weight: tuning.disk_cache_hit_weight + 0.0,
            router_temperature: tuning.router_temperature + 0.0,
            router_track_active_blocks: tuning.router_track_active_blocks,
            router_track_output_blocks: tuning.router_track_output_blocks,
            router_assume_kv_reuse: tuning.router_assume_kv_reuse,
            router_track_prefill_tokens: tuning.router_track_prefill_tokens,
            use_kv_events: tuning.use_kv_events,
            router_ttl_secs: tuning.approximate_cache.ttl_secs + 0.0,
            router_predicted_ttl_secs: tuning.router_predicted_ttl_secs.map(|ttl| ttl + 0.0),
            router_queue_threshold: tuning.queue_threshold.map(|factor| factor + 0.0),
            router_queue_policy: tuning.queue_policy.name().to_owned(),
            conditional_disagg_enabled: tuning.conditional_disagg.is_some(),
            conditional_disagg_policy: rule.policy.name().to_owned(),
            conditional_disagg_eff_isl_threshold: rule.eff_isl_threshold,
            conditional_disagg_eff_isl_ratio_threshold: rule.eff_isl_ratio_threshold + 0.0,
            conditional_disagg_prefill_busy_threshold: rule.prefill_busy_threshold.map(|share| share + 0.0),
            conditional_disagg_decode_busy_threshold: rule.decode_busy_threshold.map(|share| share + 0.0),
            ..Self::default()
        }
    }
}

/// What is wrong with a card whichever of its keys are supported: what nobody would take.
impl KvRouterConfig {
    /// A key out of its range, or keys that do not go together. The weights are judged as a tuning.
    fn problem(&self) -> Option<String> {
        let at_least_zero = [
            ("router_ttl_secs", Some(self.router_ttl_secs)),
            ("router_queue_threshold", self.router_queue_threshold),
            ("router_predicted_ttl_secs", self.router_predicted_ttl_secs),
        ];
        let below = |value: f64| !(value.is_finite() && value >= 0.0);
        if let Some((key, _)) = at_least_zero.into_iter().find(|(_, value)| value.is_some_and(below)) {
            return Some(format!("{key} must be greater than or equal to 0"));
        }
        if self.overlap_score_weight.is_some_and(below) {
            return Some("overlap_score_weight must be finite and non-negative".to_owned());
        }
        let broken = self.demands().into_iter().find(|(broken, _)| *broken);
        broken.map(|(_, demand)| demand.to_owned())
    }

    /// Demands, each with whether it is broken.
    fn demands(&self) -> [(bool, &'static str); 16] {
        let load_model = self.router_prefill_load_model != "none";
        let keyed = self.router_tracking_hash == "keyed-xxh3-v1";
        let (file, id) = (self.router_tracking_key_file.as_deref(), self.router_tracking_key_id.as_deref());
        let share = self.shared_cache_multiplier.unwrap_or(0.0);
        [
            (self.durable_kv_events, "durable_kv_events=true is not supported by this runtime"),
            (self.router_event_threads == 0, "router_event_threads must be at least 1"),
            (!(0.0..=1.0).contains(&share), "shared_cache_multiplier must be between 0 and 1"),
            (
                share > 0.0 && self.shared_cache_type == "none",
                "shared_cache_multiplier above 0 requires a shared_cache_type",
            ),
            (
                load_model && !self.router_track_prefill_tokens,
                "router_prefill_load_model requires router_track_prefill_tokens=true",
            ),
            (
                self.use_remote_indexer && self.serve_indexer,
                "use_remote_indexer and serve_indexer are mutually exclusive",
            ),
            (
                self.enable_session_prefix_index && !self.use_kv_events,
                "enable_session_prefix_index requires use_kv_events=true",
            ),
            (
                self.enable_session_prefix_index && self.use_remote_indexer,
                "enable_session_prefix_index and use_remote_indexer are mutually exclusive",
            ),
            (
                self.conditional_disagg_enabled && !self.use_kv_events,
                "conditional_disagg_enabled requires use_kv_events=true",
            ),
            (
                self.router_predicted_ttl_secs.is_some() && !self.use_kv_events,
                "router_predicted_ttl_secs requires use_kv_events=true",
            ),
            (keyed && file.is_none(), "router_tracking_hash=keyed-xxh3-v1 requires router_tracking_key_file"),
            (keyed && id.is_none(), "router_tracking_hash=keyed-xxh3-v1 requires router_tracking_key_id"),
            (
                !keyed && file.is_some(),
                "router_tracking_key_file requires router_tracking_hash=keyed-xxh3-v1",
            ),
            (id.is_some_and(str::is_empty), "router_tracking_key_id must not be empty"),
            (id.is_some_and(|id| id.trim() != id), "router_tracking_key_id must have no spaces around it"),
            (!keyed && id.is_some(), "router_tracking_key_id requires router_tracking_hash=keyed-xxh3-v1"),
        ]
    }
}
