//! The routing configuration of a worker set: a strategy and its tuning, as a card spells them.
//!
//! The spelling is Dynamo's (`router_mode`, `kv_router_config`), so that existing cards and files read. What this
//! router does not do is refused unless it stands at the value that asks for nothing: no key is accepted and
//! then ignored.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::select::{Mode, Tuning};

/// A strategy with its tuning. It replaces the frontend's as a whole, never field by field: a card says
/// nothing about which of its values were meant and which are defaults.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RouterConfig {
    /// How a worker is chosen.
    pub mode: Mode,
    /// The weights of mode `kv`.
    pub tuning: Tuning,
}

/// A `router_config` that cannot be used.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum RouterConfigError {
    /// A mode nobody knows.
    #[error(
        "unknown router mode '{0}'; expected one of device_aware_weighted, direct, k_v (or kv), least_loaded, \
         power_of_two_choices, random, round_robin"
    )]
    UnknownMode(String),
    /// A value out of its range.
    #[error("kv_router_config: {0}")]
    Tuning(String),
    /// Something this router does not do yet.
    #[error("{key} = {value} is not supported by this version; leave it out or set it to {accepted}")]
    Unsupported {
        /// The key, with its path.
        key: &'static str,
        /// The value given.
        value: String,
        /// The one value accepted.
        accepted: &'static str,
    },
}

/// The card's spelling of each mode, and the second spelling that is also read.
const MODES: [(Mode, &str, &str); 7] = [
    (Mode::RoundRobin, "round_robin", "round-robin"),
    (Mode::Random, "random", "random"),
    (Mode::PowerOfTwo, "power_of_two_choices", "power-of-two"),
    (Mode::LeastLoaded, "least_loaded", "least-loaded"),
    (Mode::Direct, "direct", "direct"),
    (Mode::DeviceAwareWeighted, "device_aware_weighted", "device-aware-weighted"),
    (Mode::Kv, "k_v", "kv"),
];

#[derive(Deserialize, Serialize)]
struct Wire {
    router_mode: String,
    #[serde(default)]
    kv_router_config: KvWire,
    #[serde(default)]
    load_threshold_config: ThresholdWire,
    #[serde(default, skip_serializing_if = "is_default")]
    enforce_disagg: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session_affinity_ttl_secs: Option<u64>,
}

#[derive(Deserialize, Serialize, Default)]
#[serde(deny_unknown_fields)]
struct ThresholdWire {
    #[serde(skip_serializing_if = "Option::is_none")]
    active_decode_blocks_threshold: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    active_prefill_tokens_threshold: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    active_prefill_tokens_threshold_frac: Option<f64>,
}

/// Every key that a `kv_router_config` may carry; unknown ones are refused by name.
#[derive(Deserialize, Serialize, Default)]
#[serde(deny_unknown_fields, default)]
struct KvWire {
    overlap_score_credit: Option<f64>,
    overlap_score_credit_decay: Option<f64>,
    prefill_load_scale: Option<f64>,
    decode_active_request_weight: Option<f64>,
    host_cache_hit_weight: Option<f64>,
    disk_cache_hit_weight: Option<f64>,
    router_temperature: Option<f64>,
    router_track_active_blocks: Option<bool>,
    router_track_output_blocks: Option<bool>,
    router_assume_kv_reuse: Option<bool>,
    router_track_prefill_tokens: Option<bool>,
    // Accepted only where they ask for nothing.
    #[serde(skip_serializing)]
    use_kv_events: Option<bool>,
    #[serde(skip_serializing)]
    router_replica_sync: Option<bool>,
    #[serde(skip_serializing)]
    router_prefill_load_model: Option<String>,
    /// Only used without KV events, and those are always used here.
    #[serde(skip_serializing)]
    router_ttl_secs: Option<f64>,
    #[serde(skip_serializing)]
    router_queue_threshold: Option<f64>,
    #[serde(skip_serializing)]
    router_queue_policy: Option<String>,
    #[serde(skip_serializing)]
    router_policy_config: Option<String>,
    /// How many threads a router applies events with is its own affair.
    #[serde(skip_serializing)]
    router_event_threads: Option<u32>,
    #[serde(skip_serializing)]
    skip_initial_worker_wait: Option<bool>,
    #[serde(skip_serializing)]
    use_remote_indexer: Option<bool>,
    #[serde(skip_serializing)]
    serve_indexer: Option<bool>,
    #[serde(skip_serializing)]
    shared_cache_type: Option<String>,
    #[serde(skip_serializing)]
    router_predicted_ttl_secs: Option<f64>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Refuses a key that stands at anything but the value that asks for nothing.
fn only<T: PartialEq + ToString>(
    key: &'static str,
    value: Option<&T>,
    accepted: &T,
    accepted_text: &'static str,
) -> Result<(), RouterConfigError> {
    match value {
        Some(value) if value != accepted => {
            Err(RouterConfigError::Unsupported { key, value: value.to_string(), accepted: accepted_text })
        }
        _ => Ok(()),
    }
}

/// Refuses a key that may only be absent.
fn absent<T: ToString>(key: &'static str, value: Option<&T>) -> Result<(), RouterConfigError> {
    match value {
        Some(value) => {
            Err(RouterConfigError::Unsupported { key, value: value.to_string(), accepted: "null" })
        }
        None => Ok(()),
    }
}

impl KvWire {
    fn refuse_unsupported(&self) -> Result<(), RouterConfigError> {
        only("use_kv_events", self.use_kv_events.as_ref(), &true, "true")?;
        only("router_replica_sync", self.router_replica_sync.as_ref(), &false, "false")?;
        only(
            "router_prefill_load_model",
            self.router_prefill_load_model.as_ref(),
            &"none".into(),
            "\"none\"",
        )?;
        absent("router_queue_threshold", self.router_queue_threshold.as_ref())?;
        only("router_queue_policy", self.router_queue_policy.as_ref(), &"fcfs".into(), "\"fcfs\"")?;
        absent("router_policy_config", self.router_policy_config.as_ref())?;
        only("skip_initial_worker_wait", self.skip_initial_worker_wait.as_ref(), &false, "false")?;
        only("use_remote_indexer", self.use_remote_indexer.as_ref(), &false, "false")?;
        only("serve_indexer", self.serve_indexer.as_ref(), &false, "false")?;
        only("shared_cache_type", self.shared_cache_type.as_ref(), &"none".into(), "\"none\"")?;
        absent("router_predicted_ttl_secs", self.router_predicted_ttl_secs.as_ref())
    }

    fn tuning(&self) -> Tuning {
        let default = Tuning::default();
        Tuning {
            overlap_score_credit: self.overlap_score_credit.unwrap_or(default.overlap_score_credit),
            overlap_score_credit_decay: self
                .overlap_score_credit_decay
                .unwrap_or(default.overlap_score_credit_decay),
            prefill_load_scale: self.prefill_load_scale.unwrap_or(default.prefill_load_scale),
            decode_active_request_weight: self
                .decode_active_request_weight
                .unwrap_or(default.decode_active_request_weight),
            host_cache_hit_weight: self.host_cache_hit_weight.unwrap_or(default.host_cache_hit_weight),
            disk_cache_hit_weight: self.disk_cache_hit_weight.unwrap_or(default.disk_cache_hit_weight),
            router_temperature: self.router_temperature.unwrap_or(default.router_temperature),
            router_track_active_blocks: self
                .router_track_active_blocks
                .unwrap_or(default.router_track_active_blocks),
            router_track_output_blocks: self
                .router_track_output_blocks
                .unwrap_or(default.router_track_output_blocks),
            router_assume_kv_reuse: self.router_assume_kv_reuse.unwrap_or(default.router_assume_kv_reuse),
            router_track_prefill_tokens: self
                .router_track_prefill_tokens
                .unwrap_or(default.router_track_prefill_tokens),
            ..default
        }
    }

    fn of(tuning: &Tuning) -> Self {
        Self {
            overlap_score_credit: Some(tuning.overlap_score_credit),
            overlap_score_credit_decay: Some(tuning.overlap_score_credit_decay),
            prefill_load_scale: Some(tuning.prefill_load_scale),
            decode_active_request_weight: Some(tuning.decode_active_request_weight),
            host_cache_hit_weight: Some(tuning.host_cache_hit_weight),
            disk_cache_hit_weight: Some(tuning.disk_cache_hit_weight),
            router_temperature: Some(tuning.router_temperature),
            router_track_active_blocks: Some(tuning.router_track_active_blocks),
            router_track_output_blocks: Some(tuning.router_track_output_blocks),
            router_assume_kv_reuse: Some(tuning.router_assume_kv_reuse),
            router_track_prefill_tokens: Some(tuning.router_track_prefill_tokens),
            ..Self::default()
        }
    }
}

impl TryFrom<Wire> for RouterConfig {
    type Error = RouterConfigError;

    fn try_from(wire: Wire) -> Result<Self, RouterConfigError> {
        let mode = MODES
            .iter()
            .find(|(_, card, cli)| wire.router_mode == *card || wire.router_mode == *cli)
            .map(|&(mode, ..)| mode)
            .ok_or(RouterConfigError::UnknownMode(wire.router_mode))?;
        wire.kv_router_config.refuse_unsupported()?;
        let thresholds = &wire.load_threshold_config;
        absent("active_decode_blocks_threshold", thresholds.active_decode_blocks_threshold.as_ref())?;
        absent("active_prefill_tokens_threshold", thresholds.active_prefill_tokens_threshold.as_ref())?;
        absent(
            "active_prefill_tokens_threshold_frac",
            thresholds.active_prefill_tokens_threshold_frac.as_ref(),
        )?;
        only("enforce_disagg", Some(&wire.enforce_disagg), &false, "false")?;
        absent("session_affinity_ttl_secs", wire.session_affinity_ttl_secs.as_ref())?;
        let tuning = wire.kv_router_config.tuning();
        tuning.validate().map_err(|error| RouterConfigError::Tuning(error.to_string()))?;
        Ok(Self { mode, tuning })
    }
}

impl<'de> Deserialize<'de> for RouterConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::try_from(Wire::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl Serialize for RouterConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mode = MODES.iter().find(|(mode, ..)| *mode == self.mode).map_or("", |&(_, card, _)| card);
        Wire {
            router_mode: mode.to_owned(),
            kv_router_config: KvWire::of(&self.tuning),
            load_threshold_config: ThresholdWire::default(),
            enforce_disagg: false,
            session_affinity_ttl_secs: None,
        }
        .serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<RouterConfig, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn both_spellings_of_every_mode_are_read_and_the_card_s_is_written() {
        for (mode, card, cli) in MODES {
            for spelling in [card, cli] {
                let config = read(&format!(r#"{{"router_mode":"{spelling}"}}"#)).unwrap();
                assert_eq!(config.mode, mode);
                let written = serde_json::to_value(&config).unwrap();
                assert_eq!(written["router_mode"], card);
            }
        }
    }

    #[test]
    fn tuning_is_carried_and_the_rest_is_the_default_not_somebody_else_s() {
        let config =
            read(r#"{"router_mode":"k_v","kv_router_config":{"overlap_score_credit":2.5}}"#).unwrap();
        assert_eq!(config.tuning, Tuning { overlap_score_credit: 2.5, ..Tuning::default() });
    }

    #[test]
    fn what_is_written_reads_back_the_same() {
        let tuning = Tuning { prefill_load_scale: 20.0, overlap_score_credit: 2.0, ..Tuning::default() };
        let config = RouterConfig { mode: Mode::Kv, tuning };
        assert_eq!(read(&serde_json::to_string(&config).unwrap()).unwrap(), config);
    }

    #[test]
    fn nothing_is_accepted_and_ignored() {
        for (json, needle) in [
            (r#"{"router_mode":"bogus"}"#, "unknown router mode 'bogus'"),
            (r#"{"kv_router_config":{}}"#, "router_mode"),
            (r#"{"router_mode":"k_v","kv_router_config":{"overlap_credit":1}}"#, "overlap_credit"),
            (
                r#"{"router_mode":"k_v","kv_router_config":{"overlap_score_credit":-1}}"#,
                "overlap_score_credit",
            ),
            (
                r#"{"router_mode":"k_v","kv_router_config":{"router_queue_threshold":1.5}}"#,
                "router_queue_threshold = 1.5",
            ),
            (r#"{"router_mode":"k_v","kv_router_config":{"use_kv_events":false}}"#, "use_kv_events"),
            (
                r#"{"router_mode":"k_v","load_threshold_config":{"active_decode_blocks_threshold":0.8}}"#,
                "active_decode_blocks_threshold",
            ),
            (r#"{"router_mode":"k_v","session_affinity_ttl_secs":60}"#, "session_affinity_ttl_secs"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(needle), "{json}: {error}");
        }
    }
}
