//! What is known of an engine, and who said so.

use std::fmt;

use crate::fleet::{DeviceKind, ModelType, StreamDirection, WorkerType};

/// A value, and who stated it: a flag, an engine argument, or a question that the engine answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stated<T> {
    /// The value.
    pub value: T,
    /// Who stated it, in words for the log, such as `--model-name` or `GET /v1/models`.
    pub by: String,
}

impl<T> Stated<T> {
    /// A value and its source.
    pub fn new(value: T, by: impl Into<String>) -> Self {
        Self { value, by: by.into() }
    }
}

/// Where an engine publishes its KV events, if it does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KvEvents {
    /// It does not.
    Silent,
    /// It does.
    Published {
        /// ZMQ endpoint of rank 0.
        endpoint: String,
        /// ZMQ endpoint of rank 0's replay socket.
        replay: Option<String>,
        /// Which side connects.
        direction: StreamDirection,
    },
}

impl fmt::Display for KvEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent => f.write_str("none"),
            Self::Published { endpoint, replay: Some(replay), .. } => {
                write!(f, "{endpoint}, replay {replay}")
            }
            Self::Published { endpoint, replay: None, .. } => write!(f, "{endpoint}, no replay"),
        }
    }
}

/// Whether the engine is announced as one that publishes KV events.
///
/// Whether a *router* follows events is another thing, `--router-kv-events`, and has no part in this: the two share
/// neither a type nor a flag, so that neither can overwrite the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PublishKvEvents {
    /// If it says where they are.
    #[default]
    AsTheEngineSays,
    /// It must: where they are has to be known.
    Yes,
    /// It is not, whatever it does.
    No,
}

/// What is known of an engine. A fact that nobody stated is absent, and has no default here.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Facts {
    /// The name that clients put into `model`.
    pub model: Option<Stated<String>>,
    /// Tokens per KV block.
    pub block_size: Option<Stated<u32>>,
    /// First data-parallel rank behind the engine's URL.
    pub first_rank: Option<Stated<u32>>,
    /// Number of data-parallel ranks behind it.
    pub ranks: Option<Stated<u32>>,
    /// What it computes on.
    pub device: Option<Stated<DeviceKind>>,
    /// Its role in a prefill/decode deployment.
    pub worker_type: Option<Stated<WorkerType>>,
    /// The parts of the API that its model serves.
    pub model_type: Option<Stated<ModelType>>,
    /// Whether its block hashes look one token ahead.
    pub eagle: Option<Stated<bool>>,
    /// KV blocks of one rank, in all.
    pub total_kv_blocks: Option<Stated<u64>>,
    /// Tokens of one rank's largest batch.
    pub max_num_batched_tokens: Option<Stated<u64>>,
    /// Port at which decode engines meet it, if it computes prompts for them.
    pub bootstrap_port: Option<Stated<u16>>,
    /// Its KV events.
    pub events: Option<Stated<KvEvents>>,
}

impl Facts {
    /// These facts, and those of `below` where these say nothing.
    #[must_use]
    pub fn or(self, below: Self) -> Self {
        Self {
            model: self.model.or(below.model),
            block_size: self.block_size.or(below.block_size),
            first_rank: self.first_rank.or(below.first_rank),
            ranks: self.ranks.or(below.ranks),
            device: self.device.or(below.device),
            worker_type: self.worker_type.or(below.worker_type),
            model_type: self.model_type.or(below.model_type),
            eagle: self.eagle.or(below.eagle),
            total_kv_blocks: self.total_kv_blocks.or(below.total_kv_blocks),
            max_num_batched_tokens: self.max_num_batched_tokens.or(below.max_num_batched_tokens),
            bootstrap_port: self.bootstrap_port.or(below.bootstrap_port),
            events: self.events.or(below.events),
        }
    }

    /// Name, value and source of each fact that is known.
    #[must_use]
    pub fn list(&self) -> Vec<(&'static str, String, &str)> {
        fn entry<'a, T>(
            name: &'static str,
            fact: Option<&'a Stated<T>>,
            text: impl Fn(&T) -> String,
        ) -> Option<(&'static str, String, &'a str)> {
            fact.map(|fact| (name, text(&fact.value), fact.by.as_str()))
        }
        let device = |device: &DeviceKind| match device {
            DeviceKind::Cuda => "cuda".to_owned(),
            DeviceKind::Cpu => "cpu".to_owned(),
        };
        [
            entry("model", self.model.as_ref(), String::clone),
            entry("block size", self.block_size.as_ref(), u32::to_string),
            entry("first rank", self.first_rank.as_ref(), u32::to_string),
            entry("ranks", self.ranks.as_ref(), u32::to_string),
            entry("device", self.device.as_ref(), device),
            entry("worker type", self.worker_type.as_ref(), |role| role.name().to_owned()),
            entry("model type", self.model_type.as_ref(), ModelType::to_string),
            entry("eagle", self.eagle.as_ref(), bool::to_string),
            entry("KV blocks", self.total_kv_blocks.as_ref(), u64::to_string),
            entry("tokens of a batch", self.max_num_batched_tokens.as_ref(), u64::to_string),
            entry("bootstrap port", self.bootstrap_port.as_ref(), u16::to_string),
            entry("KV events", self.events.as_ref(), KvEvents::to_string),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}
