//! What a mock engine is made of.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::prompt::Encoder;
use crate::simulate::StepTimes;

/// Everything that [`MockEngine::start`](super::MockEngine::start) needs. Build it with [`MockSettings::new`]
/// and change what the case is about:
///
/// ```
/// # use std::sync::Arc;
/// use kvroute::{prompt::Encoder, worker::mock::MockSettings};
///
/// let encoder = Arc::new(Encoder::tiny()?);
/// let settings = MockSettings { num_gpu_blocks: 64, max_model_len: 512, ..MockSettings::new(encoder) };
/// # Ok::<(), kvroute::prompt::LoadError>(())
/// ```
#[derive(Clone, Debug)]
pub struct MockSettings {
    /// Where HTTP listens. Port 0 takes a free one. Default `127.0.0.1:0`.
    pub http: SocketAddr,
    /// The served model's name. Default `mock`.
    pub model: String,
    /// Adapter names, each a model of its own. They are numbered from 1. Default none.
    pub loras: Vec<String>,
    /// The tokenizer and the chat template.
    pub encoder: Arc<Encoder>,
    /// Tokens per cache block. Default 16.
    pub block_size: u32,
    /// Cache blocks; one of them is set aside and never used, as in vLLM. Default 4096.
    pub num_gpu_blocks: u32,
    /// Prompt and output tokens that one request may have. The cache must hold at least this many. Default
    /// 8192.
    pub max_model_len: u32,
    /// Requests that run at a time. Default 256.
    pub max_num_seqs: usize,
    /// Tokens that one step computes at most; longer prompts are computed in chunks. Default 8192.
    pub max_num_batched_tokens: usize,
    /// Default 10,000.
    pub prefill_tokens_per_second: f64,
    /// Output tokens per second of each running request, however many run and not counting the overhead of
    /// each step. Default 50.
    pub decode_tokens_per_second: f64,
    /// What every step takes at least. Default 5 ms.
    pub step_overhead: Duration,
    /// How long steps take, in place of what the three speeds above come to. Default `None`.
    pub step_times: Option<StepTimes>,
    /// All times are divided by this; infinity makes the engine as fast as it can. Default 1.
    pub speedup: f64,
    /// Output tokens after which a request ends as if the model had said so (`finish_reason` `stop`), on
    /// average: each request draws its own between half and one and a half times this. `ignore_eos` turns it
    /// off for one request. `None`: outputs end at their token limit only. Default `None`.
    pub mean_output_tokens: Option<u32>,
    /// Where KV events are published; `None` publishes none. Default `tcp://127.0.0.1:*`.
    pub events: Option<Endpoint>,
    /// Where replays are asked for; `None` offers none. It is bound whatever the endpoint says, as vLLM binds it. Default
    /// `tcp://127.0.0.1:*`.
    pub replay: Option<Endpoint>,
    /// The topic frame of the events. Default empty.
    pub topic: String,
    /// Batches that the replay buffer keeps. Default 10,000.
    pub buffer_steps: usize,
    /// The data-parallel rank that is written into the batches. Default 0.
    pub data_parallel_rank: u32,
    /// What the engine is for in a prefill/decode deployment. Default [`Role::Aggregated`].
    pub role: Role,
    /// Whether `usage` carries `prompt_tokens_details`, which a real engine shows on demand only. Default
    /// true.
    pub prompt_tokens_details: bool,
    /// What `/version` says. Default `0.32.0`.
    pub version: String,
    /// What its KV events leave out. Default nothing.
    pub omissions: Omissions,
    /// Seeds the engine's names for blocks. Engines of one seed name equal content equally. The default is
    /// fixed.
    pub naming_seed: u64,
}

impl MockSettings {
    /// The defaults, with the given tokenizer.
    pub fn new(encoder: Arc<Encoder>) -> Self {
        Self {
            http: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            model: "mock".into(),
            loras: Vec::new(),
            encoder,
            block_size: 16,
            num_gpu_blocks: 4096,
            max_model_len: 8192,
            max_num_seqs: 256,
            max_num_batched_tokens: 8192,
            prefill_tokens_per_second: 10_000.0,
            decode_tokens_per_second: 50.0,
            step_overhead: Duration::from_millis(5),
            step_times: None,
            speedup: 1.0,
            mean_output_tokens: None,
            events: Some(Endpoint::new("tcp://127.0.0.1:*")),
            replay: Some(Endpoint::new("tcp://127.0.0.1:*")),
            topic: String::new(),
            buffer_steps: 10_000,
            data_parallel_rank: 0,
            role: Role::default(),
            prompt_tokens_details: true,
            version: "0.32.0".into(),
            omissions: Omissions::default(),
            naming_seed: 0x6b76_6d6f_636b_0032,
        }
    }

    pub(super) fn validate(&self) -> Result<(), MockError> {
        let refuse = |field, reason: &str| Err(MockError::Setting { field, reason: reason.into() });
        if self.block_size == 0 {
            return refuse("block_size", "must be at least 1");
        }
        if self.max_num_seqs == 0 || self.max_num_batched_tokens == 0 {
            return refuse("max_num_seqs", "and max_num_batched_tokens must be at least 1");
        }
        if self.max_model_len < 2 {
            return refuse("max_model_len", "must be at least 2: one prompt token and one output token");
        }
        let held = u64::from(self.num_gpu_blocks.saturating_sub(1)) * u64::from(self.block_size);
        if held < u64::from(self.max_model_len) {
            let reason = format!(
                "is too small: {} usable blocks of {} tokens hold {held} tokens, and max_model_len is {}; \
                 raise it or lower max_model_len",
                self.num_gpu_blocks.saturating_sub(1),
                self.block_size,
                self.max_model_len
            );
            return refuse("num_gpu_blocks", &reason);
        }
        let speeds = [self.prefill_tokens_per_second, self.decode_tokens_per_second, self.speedup];
        if speeds.iter().any(|speed| speed.is_nan() || *speed <= 0.0) {
            return refuse("speedup", "and both tokens_per_second must be above 0 (infinity is accepted)");
        }
        Ok(())
    }
}

/// What an engine is for, as a vLLM with a `NixlConnector` shows it at the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Role {
    /// Prefill and decode in one place: `kv_transfer_params` are ignored, as by an engine without a connector.
    #[default]
    Aggregated,
    /// Computes prompts for others. A request with `do_remote_decode` that ends at its token limit is answered
    /// with `kv_transfer_params`; one that ends because the model has nothing to say is not. The blocks are not
    /// held until they are fetched, as a real engine does.
    Prefill,
    /// Takes prompts over. A request with `do_remote_prefill` computes the last token of its prompt only: the
    /// rest counts as cached, as vLLM counts blocks from outside. Taken blocks are not reported and not reused;
    /// what is computed after them is reported under a parent of which this engine has said nothing.
    Decode,
}

impl FromStr for Role {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "aggregated" => Ok(Self::Aggregated),
            "prefill" => Ok(Self::Prefill),
            "decode" => Ok(Self::Decode),
            _ => Err("expected aggregated, prefill or decode".to_owned()),
        }
    }
}

/// What KV events leave out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Omissions {
    /// The extra keys, and with them the salts: vLLM before 0.20.2.
    pub extra_keys: bool,
    /// Removals and clears: no engine is known to leave them out. It makes a router believe in blocks that are gone.
    pub removals: bool,
    /// The adapters' names, of which their numbers remain: vLLM before 0.16.
    pub lora_names: bool,
}

/// A ZMQ address and how the engine attaches to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// Such as `tcp://*:5557`.
    pub address: String,
    /// Bind or connect.
    pub attach: Attach,
}

/// The two ways to attach to a ZMQ address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attach {
    /// Others connect to the engine.
    Bind,
    /// The engine connects to someone who binds, such as a proxy.
    Connect,
}

impl Endpoint {
    /// Attaches as vLLM does with events: it binds where the address has a `*` or a `::` or is `ipc://` or `inproc://`,
    /// and connects everywhere else. Port 0 binds too, since nobody can connect to it.
    pub fn new(address: impl Into<String>) -> Self {
        let address = address.into();
        let local = address.starts_with("ipc://") || address.starts_with("inproc://");
        let binds = local || address.contains('*') || address.contains("::") || address.ends_with(":0");
        Self { address, attach: if binds { Attach::Bind } else { Attach::Connect } }
    }

    /// Binds, whatever the address looks like: for a port that is known on one interface.
    pub fn bind(address: impl Into<String>) -> Self {
        Self { address: address.into(), attach: Attach::Bind }
    }
}

impl FromStr for Endpoint {
    type Err = Infallible;

    fn from_str(address: &str) -> Result<Self, Infallible> {
        Ok(Self::new(address))
    }
}

/// Why a mock engine does not start.
#[derive(Debug, thiserror::Error)]
pub enum MockError {
    /// A setting is out of range.
    #[error("mock engine setting {field} {reason}")]
    Setting {
        /// The field of [`MockSettings`].
        field: &'static str,
        /// What is wrong and what is accepted.
        reason: String,
    },
    /// The tokenizer has no ordinary token to draw outputs from.
    #[error(
        "the tokenizer has no token that decodes to printable text, so the mock engine has nothing to say"
    )]
    Vocabulary,
    /// The HTTP address cannot be had.
    #[error("cannot listen for http on {address}: {source}")]
    Http {
        /// The address asked for.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// A ZMQ address cannot be had.
    #[error("cannot attach the {socket} socket to {address}: {source}")]
    Zmq {
        /// `events` or `replay`.
        socket: &'static str,
        /// The address asked for.
        address: String,
        /// What ZMQ said.
        source: zmq::Error,
    },
    /// The publisher's thread cannot be started.
    #[error("cannot start the publisher's thread: {0}")]
    Thread(std::io::Error),
}

#[cfg(test)]
mod tests {
    use super::{Attach, Endpoint};

    #[test]
    fn attaches_as_vllm_does() {
        for address in
            ["tcp://*:5557", "tcp://127.0.0.1:*", "tcp://[::]:5557", "ipc:///run/x", "tcp://127.0.0.1:0"]
        {
            assert_eq!(Endpoint::new(address).attach, Attach::Bind, "{address}");
        }
        assert_eq!(Endpoint::new("tcp://127.0.0.1:5557").attach, Attach::Connect);
        assert_eq!(Endpoint::bind("tcp://127.0.0.1:5557").attach, Attach::Bind);
    }
}
