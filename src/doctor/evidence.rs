//! What was seen of one engine: plain data, of which a report is a function.

use crate::{
    fleet::{StreamDirection, StreamState},
    proxy::Usage,
};

/// What an engine says of itself. Whatever it does not tell is `None` or empty.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Told {
    /// `GET /version`.
    pub version: Option<String>,
    /// `GET /v1/models`.
    pub models: Vec<Served>,
    /// Longest prompt plus output of the first of them.
    pub max_model_len: Option<u64>,
    /// `GET /kv_event_sources`, by rank; `None` if the engine has no such route. Empty if it publishes nothing.
    pub sources: Option<Vec<Source>>,
    /// Tokens per block, from `GET /metrics`.
    pub block_size: Option<u32>,
    /// How it names blocks (`--prefix-caching-hash-algo`), from `GET /metrics`.
    pub hash_algorithm: Option<String>,
    /// Engines that `GET /metrics` has labels of, which is one a rank.
    pub engines: Option<u32>,
}

impl Told {
    /// Ranks behind the URL: those that publish, or if none does, those with metrics.
    pub(crate) fn ranks(&self) -> Option<u32> {
        let sources = self.sources.as_ref().and_then(|sources| u32::try_from(sources.len()).ok());
        sources.filter(|&ranks| ranks > 0).or(self.engines)
    }
}

/// A name that an engine serves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Served {
    /// The name.
    pub id: String,
    /// Whether it is an adapter of another model.
    pub is_adapter: bool,
    /// Where its weights are, as the engine spells it. vLLM hashes an adapter's into the names of its blocks.
    pub root: Option<String>,
}

/// Where one rank publishes, as the engine spells it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    /// The rank.
    pub rank: u32,
    /// Of its events.
    pub endpoint: String,
    /// Of its replay socket.
    pub replay: Option<String>,
}

impl Source {
    /// What a router has to do about the endpoint.
    #[must_use]
    pub fn direction(&self) -> StreamDirection {
        StreamDirection::of_endpoint(&self.endpoint)
    }
}

/// One prompt as both sides tokenise it; the error says why there are no tokens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sample {
    /// Ours; `None` without a tokenizer.
    pub ours: Option<Result<Vec<u32>, String>>,
    /// The engine's.
    pub theirs: Result<Vec<u32>, String>,
}

/// What became of a prompt that was sent twice, one after the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CanaryRun {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Its salt.
    pub salt: String,
    /// The adapter that it asked for.
    pub lora: Option<String>,
    /// What the engine said of the first; the error says why it did not serve it.
    pub first: Result<Usage, String>,
    /// The same of the repetition.
    pub repeat: Result<Usage, String>,
    /// What was heard meanwhile.
    pub heard: Observation,
}

/// What was heard of the event stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Observation {
    /// The worker has no event endpoint.
    NoEndpoint,
    /// It could not be listened to, and why.
    Deaf(String),
    /// The router that follows the stream credits so much.
    Indexed {
        /// Leading blocks of the canary.
        blocks: usize,
        /// How far the stream was to be trusted at the end.
        state: StreamState,
    },
    /// A subscription of the examination's own.
    Heard {
        /// Payloads of batches that came after the canary was sent, in order.
        payloads: Vec<Vec<u8>>,
        /// How far the stream was to be trusted at the end.
        state: StreamState,
        /// Whether anybody answers at the event endpoint.
        listening: Listening,
        /// Whether anybody does at the replay endpoint.
        replay: Listening,
    },
}

/// Whether a connection to an endpoint can be had.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Listening {
    /// Somebody listens there.
    Yes,
    /// Nobody does, in the system's words.
    No(String),
    /// There is no endpoint, or it is not one that this can be asked of: no TCP address, or the engine connects to us.
    NotAsked,
}

/// All that was seen of one engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Evidence {
    /// Its own answers.
    pub told: Told,
    /// A plain text.
    pub text: Sample,
    /// A conversation.
    pub chat: Sample,
    /// A conversation with tools.
    pub tools: Sample,
    /// The canary; `None` if the worker serves no API that takes one.
    pub canary: Option<CanaryRun>,
    /// The same under one of its adapters, if it has any.
    pub adapter_canary: Option<CanaryRun>,
}
