//! The card: what a worker says about the model that it serves.

use serde::{Deserialize, Serialize};

use super::{router_config::RouterConfig, worker_set::SetKey};

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
/// event endpoints) are not on the card: replicas of one set have equal cards.
#[derive(Clone, PartialEq, Debug)]
pub struct Card {
    /// The worker set that it belongs to.
    pub set: SetKey,
    /// Tokens per KV block.
    pub block_size: u32,
    /// Whether block hashes look one token ahead (EAGLE speculative decoding).
    pub eagle: bool,
    /// LoRA adapters that the worker serves as models of their own, sorted.
    pub lora_adapters: Vec<String>,
    /// Longest prompt plus output, in tokens.
    pub max_model_len: Option<u64>,
    /// The routing configuration that the worker wants for its set; absent = the frontend's.
    pub router_config: Option<RouterConfig>,
}

impl Card {
    /// The names of the fields in which `self` and `other` differ, of those that must be equal within a
    /// worker set. Two cards may stand side by side only if this is empty. What counts of the routing
    /// configuration is its effect: a card without one has `inherited`.
    #[must_use]
    pub fn differing_fields(&self, other: &Self, inherited: &RouterConfig) -> Vec<&'static str> {
        let mut fields = Vec::new();
        let mut compare = |name, equal: bool| {
            if !equal {
                fields.push(name);
            }
        };
        compare("block_size", self.block_size == other.block_size);
        compare("eagle", self.eagle == other.eagle);
        compare("lora_adapters", self.lora_adapters == other.lora_adapters);
        compare("max_model_len", self.max_model_len == other.max_model_len);
        let effective = |card: &Self| card.router_config.as_ref().unwrap_or(inherited).clone();
        compare("router_config", effective(self) == effective(other));
        fields
    }
}
