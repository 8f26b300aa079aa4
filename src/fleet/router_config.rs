//! The routing configuration of a worker set: a strategy and its tuning, as a card spells them.
//!
//! The spelling is Dynamo's (`router_mode`, `kv_router_config`), so that existing cards and files read. What this
//! router does not do is refused unless it stands at the value that asks for nothing: no key that is known is
//! accepted and then ignored. Keys beside the known ones at the top level are skipped, as Dynamo does; within
//! `kv_router_config` they are refused, as Dynamo does.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use super::{kv_router_config::KvRouterConfig, load_threshold_config::LoadThresholdConfig};
use crate::select::{AffinityMode, Mode, SessionAffinity, Tuning, TuningError};

/// A strategy with its tuning. It replaces the frontend's as a whole, never field by field: a card says
/// nothing about which of its values were meant and which are defaults.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RouterConfig {
    /// How a worker is chosen.
    pub mode: Mode,
    /// The weights of mode `kv`.
    pub tuning: Tuning,
}

impl RouterConfig {
    /// Checks that every setting is in its range and, where they have an effect, which is in mode `kv`, that no two contradict each other.
    ///
    /// # Errors
    /// The first that is or does not.
    pub fn validate(&self) -> Result<(), TuningError> {
        if self.mode == Mode::Kv { self.tuning.validate() } else { self.tuning.validate_ranges() }
    }
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
    /// The same of a key at the top, or of a threshold.
    #[error("{0}")]
    Value(String),
    /// A key that other modes than `kv` have no use for.
    #[error("kv_router_config: {0} requires router_mode k_v")]
    NeedsKv(&'static str),
    /// Something this router does not do yet.
    #[error("{key} = {value} is not supported by this version; leave it out or set it to {accepted}")]
    Unsupported {
        /// The key.
        key: &'static str,
        /// The value given, as JSON.
        value: String,
        /// The one value accepted, as JSON.
        accepted: String,
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

/// The keys as they stand. Dynamo requires the first three; the second and third may be left out here, for the sake
/// of files written by hand.
#[derive(Deserialize, Serialize)]
struct Wire {
    router_mode: String,
    #[serde(default)]
    kv_router_config: KvRouterConfig,
    #[serde(default)]
    load_threshold_config: LoadThresholdConfig,
    #[serde(default)]
    enforce_disagg: bool,
    #[serde(default)]
    session_affinity_ttl_secs: Option<u64>,
    #[serde(default = "hard")]
    session_affinity_mode: String,
}

fn hard() -> String {
    "hard".to_owned()
}

impl Wire {
    /// A value that nobody would take, whether or not the key is supported.
    fn problem(&self) -> Option<String> {
        if let Some(problem) = self.load_threshold_config.problem() {
            return Some(problem);
        }
        if self.session_affinity_ttl_secs.is_some_and(|seconds| !(1..=31_536_000).contains(&seconds)) {
            return Some("session_affinity_ttl_secs must be between 1 and 31536000".to_owned());
        }
        let mode = self.session_affinity_mode.parse::<AffinityMode>();
        mode.err().map(|error| error.to_string())
    }
}

/// Refuses a key that stands at anything but the value that asks for nothing.
pub(super) fn only<T: PartialEq + Serialize>(
    key: &'static str,
    value: &T,
    accepted: &T,
) -> Result<(), RouterConfigError> {
    if value == accepted {
        return Ok(());
    }
    let json = |value: &T| serde_json::to_string(value).unwrap_or_default();
    Err(RouterConfigError::Unsupported { key, value: json(value), accepted: json(accepted) })
}

impl TryFrom<Wire> for RouterConfig {
    type Error = RouterConfigError;

    fn try_from(wire: Wire) -> Result<Self, RouterConfigError> {
        let mode = MODES
            .iter()
            .find(|(_, card, cli)| wire.router_mode == *card || wire.router_mode == *cli)
            .map(|&(mode, ..)| mode)
            .ok_or_else(|| RouterConfigError::UnknownMode(wire.router_mode.clone()))?;
        let mut tuning = wire.kv_router_config.tuning()?;
        if let Some(problem) = wire.problem() {
            return Err(RouterConfigError::Value(problem));
        }
        if tuning.conditional_disagg.is_some() && mode != Mode::Kv {
            return Err(RouterConfigError::NeedsKv("conditional_disagg_enabled"));
        }
        only("enforce_disagg", &wire.enforce_disagg, &false)?;
        tuning.busy = wire.load_threshold_config.into();
        tuning.session_affinity = SessionAffinity {
            ttl_secs: wire.session_affinity_ttl_secs,
            mode: wire.session_affinity_mode.parse().unwrap_or_default(),
        };
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
            kv_router_config: KvRouterConfig::from(&self.tuning),
            load_threshold_config: LoadThresholdConfig::from(self.tuning.busy),
            enforce_disagg: false,
            session_affinity_ttl_secs: self.tuning.session_affinity.ttl_secs,
            session_affinity_mode: self.tuning.session_affinity.mode.name().to_owned(),
        }
        .serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{load::Thresholds, select::queue::QueuePolicy};

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
        let session_affinity = SessionAffinity { ttl_secs: Some(60), mode: AffinityMode::Soft };
        let busy = Thresholds { active_decode_blocks: Some(0.85), ..Thresholds::default() };
        let tuning = Tuning { prefill_load_scale: 20.0, session_affinity, busy, ..Tuning::default() };
        for mode in [Mode::Kv, Mode::RoundRobin] {
            let config = RouterConfig { mode, tuning };
            assert_eq!(read(&serde_json::to_string(&config).unwrap()).unwrap(), config);
        }
        let tuning = Tuning { queue_threshold: Some(1.5), queue_policy: QueuePolicy::Lcfs, ..tuning };
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
                r#"{"router_mode":"k_v","kv_router_config":{"use_kv_events":false,"conditional_disagg_enabled":true}}"#,
                "conditional_disagg_enabled requires use_kv_events=true",
            ),
            (
                r#"{"router_mode":"k_v","load_threshold_config":{"active_decode_blocks_threshold":1.5}}"#,
                "active_decode_blocks_threshold must be between 0.0 and 1.0, and is 1.5",
            ),
            (
                r#"{"router_mode":"k_v","session_affinity_ttl_secs":0}"#,
                "session_affinity_ttl_secs must be between",
            ),
            (r#"{"router_mode":"k_v","session_affinity_mode":"x"}"#, "invalid session affinity mode \"x\""),
            (
                r#"{"router_mode":"k_v","kv_router_config":{"router_queue_policy":"sjf"}}"#,
                "router_queue_policy: unknown queue policy 'sjf'; expected one of fcfs, lcfs, wspt",
            ),
            (
                r#"{"router_mode":"random","kv_router_config":{"conditional_disagg_enabled":true}}"#,
                "conditional_disagg_enabled requires router_mode k_v",
            ),
            (
                r#"{"router_mode":"k_v","kv_router_config":{"durable_kv_events":true}}"#,
                "durable_kv_events=true",
            ),
            (
                r#"{"router_mode":"k_v","kv_router_config":{"router_event_threads":0}}"#,
                "router_event_threads must be at least 1",
            ),
            (
                r#"{"router_mode":"k_v","kv_router_config":{"router_ttl_secs":-1}}"#,
                "router_ttl_secs must be greater than or equal to 0",
            ),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(needle), "{json}: {error}");
        }
    }
}
