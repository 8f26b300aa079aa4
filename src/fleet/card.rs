//! The card: what a worker says about the model that it serves.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    device_weights::DeviceWeights, fingerprint::canonical, router_config::RouterConfig, worker_set::SetKey,
};
use crate::select::{CostModel, Tuning};

/// What a worker is for in a prefill/decode deployment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerType {
    /// Prefill and decode in one place.
    #[default]
    Aggregated,
    /// Computes prompts for decode workers.
    Prefill,
    /// Generates from prompts that a prefill worker computed.
    Decode,
    /// Encodes images, audio or video.
    Encode,
}

impl WorkerType {
    /// The name on the card and in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aggregated => "aggregated",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Encode => "encode",
        }
    }
}

/// Everything a worker advertises that routing depends on. Facts of the single instance (its address, its
/// event endpoints) are not on the card: replicas of one set are meant to have equal cards.
#[derive(Clone, PartialEq, Debug)]
pub struct Card {
    /// The worker set that it belongs to.
    pub set: SetKey,
    /// Tokens per KV block.
    pub block_size: u32,
    /// Whether block hashes look one token ahead (EAGLE speculative decoding).
    pub eagle: bool,
    /// LoRA adapters that the worker serves as models of their own, sorted. They come and go while it serves, so replicas may
    /// have different ones; names are the same for all.
    pub lora_adapters: Vec<String>,
    /// Longest prompt plus output, in tokens.
    pub max_model_len: Option<u64>,
    /// The routing configuration that the worker wants for its set; absent = the frontend's.
    pub router_config: Option<RouterConfig>,
    /// What the worker wants devices to have to say in its set; absent = the frontend's.
    pub device_weights: Option<DeviceWeights>,
    /// The cost model that the worker wants for its set, whoever's the rest of the configuration is; absent = the
    /// frontend's.
    pub router_cost_model: Option<CostModel>,
    /// For how many seconds requests of its set are to be held at most, whoever's the rest of the configuration is; absent
    /// = the frontend's.
    pub router_hold: Option<f64>,
}

impl Card {
    /// The configuration that routing under this card follows: its own as a whole, else the frontend's, and apart from that
    /// its own cost model, hold and device weights, else the frontend's. What one accelerator is worth in CPUs, and by which
    /// policy caches without events are guessed, is not the card's to say; it is always the frontend's.
    #[must_use]
    pub fn effective_config(&self, frontend: &RouterConfig) -> RouterConfig {
        let mut config = self.router_config.as_ref().unwrap_or(frontend).clone();
        config.tuning.cost_model = self.router_cost_model.unwrap_or(frontend.tuning.cost_model);
        config.tuning.hold = self.router_hold.map_or(frontend.tuning.hold, Tuning::hold_of);
        config.tuning.accelerator_to_cpu_ratio = frontend.tuning.accelerator_to_cpu_ratio;
        config.tuning.approximate_cache.policy = frontend.tuning.approximate_cache.policy;
        config.tuning.device_weights =
            self.device_weights.map_or(frontend.tuning.device_weights, |weights| weights.0);
        config
    }

    /// Everything that must be equal for two workers to take requests side by side; the one list of it. What makes
    /// the set (model, address, surfaces, role) is equal anyway. What counts of the routing configuration is its
    /// effect, so that a card which advertises what the frontend has equals one that advertises nothing.
    pub(super) fn routing_facts(&self, frontend: &RouterConfig) -> Value {
        let config = self.effective_config(frontend);
        canonical(json!({
            "block_size": self.block_size,
            "eagle": self.eagle,
            "max_model_len": self.max_model_len,
            "device_weights": DeviceWeights(config.tuning.device_weights),
            "router_config": config,
            "router_cost_model": config.tuning.cost_model.name(),
            "router_hold": config.tuning.hold_seconds(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        device::Weights,
        fleet::{WorkerSpec, fingerprint::Fingerprint},
        select::Mode,
    };

    fn fingerprint(card: &Card, frontend: &RouterConfig) -> Fingerprint {
        Fingerprint::of(&card.routing_facts(frontend))
    }

    #[test]
    fn every_field_of_the_list_counts() {
        let frontend = RouterConfig::default();
        let plain = WorkerSpec::new("http://h:1", "m").card();
        let off = Weights { enabled: false, ..Weights::default() };
        let mut changed = vec![
            Card { block_size: 32, ..plain.clone() },
            Card { eagle: true, ..plain.clone() },
            Card { max_model_len: Some(4096), ..plain.clone() },
            Card { device_weights: Some(DeviceWeights(off)), ..plain.clone() },
            Card { router_cost_model: Some(CostModel::Blocks), ..plain.clone() },
            Card { router_hold: Some(2.5), ..plain.clone() },
        ];
        for mode in Mode::ALL.into_iter().filter(|mode| *mode != frontend.mode) {
            let config = RouterConfig { mode, tuning: Tuning::default() };
            changed.push(Card { router_config: Some(config), ..plain.clone() });
        }
        let tuning = Tuning { router_temperature: 0.5, ..Tuning::default() };
        changed.push(Card {
            router_config: Some(RouterConfig { mode: frontend.mode, tuning }),
            ..plain.clone()
        });
        let mut seen = vec![fingerprint(&plain, &frontend)];
        for card in changed {
            let fingerprint = fingerprint(&card, &frontend);
            assert!(!seen.contains(&fingerprint), "{card:?}");
            seen.push(fingerprint);
        }
    }

    #[test]
    fn what_is_equal_in_effect_is_equal() {
        let tuning = Tuning { overlap_score_credit: 0.0, ..Tuning::default() };
        let frontend = RouterConfig { mode: Mode::Kv, tuning };
        let silent = WorkerSpec::new("http://h:1", "m").card();
        let adapted = Card { lora_adapters: vec!["a".into()], ..silent.clone() };
        assert_eq!(fingerprint(&adapted, &frontend), fingerprint(&silent, &frontend));
        let negative_zero = Tuning { overlap_score_credit: -0.0, ..tuning };
        let other_ratio = Tuning { accelerator_to_cpu_ratio: std::num::NonZeroU32::MIN, ..tuning };
        for tuning in [tuning, negative_zero, other_ratio] {
            let says =
                Card { router_config: Some(RouterConfig { mode: Mode::Kv, tuning }), ..silent.clone() };
            assert_eq!(fingerprint(&says, &frontend), fingerprint(&silent, &frontend), "{tuning:?}");
        }
        let says = Card { device_weights: Some(DeviceWeights(Weights::default())), ..silent.clone() };
        assert_eq!(fingerprint(&says, &frontend), fingerprint(&silent, &frontend));
        let silent_on_costs =
            Card { router_config: Some(frontend.clone()), router_cost_model: None, ..silent.clone() };
        let outspoken = Card { router_cost_model: Some(CostModel::Time), ..silent.clone() };
        assert_eq!(fingerprint(&outspoken, &frontend), fingerprint(&silent_on_costs, &frontend));
        // Who inherits follows the frontend; who advertises does not.
        let elsewhere = RouterConfig::default();
        assert_ne!(fingerprint(&silent, &elsewhere), fingerprint(&silent, &frontend));
    }

    #[test]
    fn the_hold_is_a_key_of_its_own() {
        let held = Tuning { hold: Some(Duration::from_secs(2)), ..Tuning::default() };
        let frontend = RouterConfig { mode: Mode::Kv, tuning: held };
        let plain = WorkerSpec::new("http://h:1", "m").card();
        let advertised = RouterConfig { mode: Mode::Kv, tuning: Tuning::default() };
        for (router_config, router_hold, expected) in [
            (None, None, Some(2.0)),
            (None, Some(0.5), Some(0.5)),
            (None, Some(0.0), None),
            (Some(advertised), None, Some(2.0)),
        ] {
            let config = Card { router_config, router_hold, ..plain.clone() }.effective_config(&frontend);
            assert_eq!(config.tuning.hold.map(|hold| hold.as_secs_f64()), expected);
        }
    }

    #[test]
    fn the_cost_model_is_a_key_of_its_own() {
        let blocks = Tuning { cost_model: CostModel::Blocks, ..Tuning::default() };
        let frontend = RouterConfig { mode: Mode::RoundRobin, tuning: blocks };
        let plain = WorkerSpec::new("http://h:1", "m").card();
        let advertised = RouterConfig { mode: Mode::Kv, tuning: Tuning::default() };
        for (router_config, router_cost_model, mode, expected) in [
            (None, None, Mode::RoundRobin, CostModel::Blocks),
            (None, Some(CostModel::Time), Mode::RoundRobin, CostModel::Time),
            (Some(advertised.clone()), None, Mode::Kv, CostModel::Blocks),
            (Some(advertised), Some(CostModel::Time), Mode::Kv, CostModel::Time),
        ] {
            let config =
                Card { router_config, router_cost_model, ..plain.clone() }.effective_config(&frontend);
            assert_eq!((config.mode, config.tuning.cost_model), (mode, expected));
        }
    }
}
