//! The flags of `kvroute mock`.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use clap::{Args, ValueEnum, value_parser};

use crate::{
    fleet::{NameError, check_name},
    prompt::{Encoder, LoadError},
    simulate::StepTimes,
    worker::mock::{Endpoint, MockSettings, Role},
};

/// Flags of a mock engine.
#[derive(Args, Clone, Debug)]
pub struct MockArgs {
    /// Address and port that HTTP listens on; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:8000", value_name = "ADDRESS")]
    pub http: SocketAddr,
    /// Name of the served model
    #[arg(long, default_value = "mock", value_name = "NAME", value_parser = name)]
    pub model_name: String,
    /// Tokenizer, as a tokenizer.json or a model directory [default: a small one of kvroute's own]
    #[arg(long, value_name = "PATH")]
    pub tokenizer: Option<PathBuf>,
    /// ZMQ endpoint that KV events are published on; to one without a * (and without ::, port 0 and ipc://) the engine connects, as
    /// vLLM does
    #[arg(long, default_value = "tcp://*:5557", value_name = "ENDPOINT")]
    pub kv_events_endpoint: String,
    /// ZMQ endpoint that replays are asked for on; the engine listens there, whatever it looks like
    #[arg(long, default_value = "tcp://*:5558", value_name = "ENDPOINT")]
    pub kv_replay_endpoint: String,
    /// What the engine is for: aggregated, prefill or decode
    #[arg(long, default_value = "aggregated", value_name = "ROLE")]
    pub role: Role,
    /// Speed and size of the engine
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// Flags on the speed and size of mock engines, shared by `mock`, `up` and `drive`.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Mock engine")]
pub struct EngineArgs {
    /// Tokens per KV block
    #[arg(long, default_value_t = 16, value_name = "TOKENS", value_parser = value_parser!(u32).range(1..))]
    pub block_size: u32,
    /// Tokens that the KV cache of an engine holds
    #[arg(long, default_value_t = 1_000_000, value_name = "TOKENS", value_parser = value_parser!(u32).range(2..))]
    pub engine_cache_tokens: u32,
    /// Longest prompt plus output of one request, no more than the cache holds [default: 131072 or what the cache holds]
    #[arg(long, value_name = "TOKENS", value_parser = value_parser!(u32).range(2..))]
    pub max_model_len: Option<u32>,
    /// Prompt tokens that an engine computes per second
    #[arg(long, default_value_t = 20_000.0, value_name = "N", value_parser = above_zero)]
    pub prefill_tokens_per_second: f64,
    /// Output tokens per second of each running request
    #[arg(long, default_value_t = 50.0, value_name = "N", value_parser = above_zero)]
    pub decode_tokens_per_second: f64,
    /// How long steps take: flat, as the two speeds say, or h100x4, as a 70B model on four H100s by arithmetic, which the simulator
    /// also goes by
    #[arg(long, value_name = "MODEL", default_value = "flat", hide_possible_values = true)]
    pub engine_times: EngineTimes,
    /// How many times as fast as those speeds the engines run [default: 1; drive: its --rate, so that they are as
    /// busy as recorded]
    #[arg(long, value_name = "FACTOR", value_parser = above_zero)]
    pub engine_speedup: Option<f64>,
}

/// How long the steps of a mock engine take.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum EngineTimes {
    /// As its speeds say.
    Flat,
    /// [`StepTimes::H100X4`].
    #[value(name = "h100x4")]
    H100x4,
}

/// The longest context where none is given, in tokens.
const MAX_MODEL_LEN: u32 = 131_072;

/// A name that a card can have.
fn name(text: &str) -> Result<String, NameError> {
    check_name(text).map(|()| text.to_owned())
}

/// A speed. Infinity is one: an engine that computes nothing can be that fast.
fn above_zero(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if number > 0.0 => Ok(number),
        _ => Err("a number above 0 is needed, or inf".to_owned()),
    }
}

impl EngineArgs {
    /// Settings of an engine of this size and speed, on free ports of this machine.
    #[must_use]
    pub fn settings(&self, encoder: Arc<Encoder>) -> MockSettings {
        let blocks = self.engine_cache_tokens.div_ceil(self.block_size.max(1));
        let held = blocks.saturating_mul(self.block_size);
        MockSettings {
            block_size: self.block_size,
            // One block more than fits the tokens: engines set one aside.
            num_gpu_blocks: blocks.saturating_add(1),
            max_model_len: self.max_model_len.unwrap_or(MAX_MODEL_LEN.min(held)),
            prefill_tokens_per_second: self.prefill_tokens_per_second,
            decode_tokens_per_second: self.decode_tokens_per_second,
            step_times: match self.engine_times {
                EngineTimes::Flat => None,
                EngineTimes::H100x4 => Some(StepTimes::H100X4),
            },
            speedup: self.engine_speedup.unwrap_or(1.0),
            ..MockSettings::new(encoder)
        }
    }
}

impl MockArgs {
    /// The settings they make.
    ///
    /// # Errors
    /// The tokenizer cannot be loaded.
    pub fn settings(&self) -> Result<MockSettings, LoadError> {
        let encoder = match &self.tokenizer {
            Some(path) => Encoder::load(path, None)?,
            None => Encoder::tiny()?,
        };
        Ok(MockSettings {
            http: self.http,
            model: self.model_name.clone(),
            events: Some(Endpoint::new(self.kv_events_endpoint.clone())),
            replay: Some(Endpoint::bind(self.kv_replay_endpoint.clone())),
            role: self.role,
            ..self.engine.settings(Arc::new(encoder))
        })
    }
}
