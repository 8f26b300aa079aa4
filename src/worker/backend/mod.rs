//! What differs between engines: their argument lists, their ports, and what they can be asked.
//!
//! An argument list is read for what the card needs and for nothing else: it is not checked, and an option nobody
//! here knows is the engine's own business.

mod options;
mod sglang;
mod trtllm;
mod vllm;

use thiserror::Error;

use super::facts::Facts;
use options::Options;
pub use options::without_secrets;

/// Which engine it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    /// vLLM's OpenAI server.
    Vllm,
    /// SGLang's server.
    Sglang,
    /// TensorRT-LLM's `trtllm-serve`.
    Trtllm,
    /// The mock engine, which is a vLLM at the wire.
    Mock,
}

/// What an engine's argument list says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EngineArguments {
    /// Host and port that it listens on, if either is given: `(host, port)`.
    pub host: Option<String>,
    /// See `host`.
    pub port: Option<u16>,
    /// What the card needs.
    pub facts: Facts,
}

/// An engine argument that does not read.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("engine argument {option}: {problem}")]
pub struct ArgumentError {
    /// The option, as spelled.
    pub option: String,
    /// What is wrong, and what is accepted.
    pub problem: String,
}

impl Backend {
    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::Trtllm => "trtllm",
            Self::Mock => "mock",
        }
    }

    /// The port that its HTTP server has unless told otherwise.
    #[must_use]
    pub const fn default_port(self) -> u16 {
        match self {
            Self::Vllm | Self::Trtllm | Self::Mock => 8000,
            Self::Sglang => 30_000,
        }
    }

    /// Reads an engine's argument list, without the program's name. The mock's says nothing here: it is asked.
    ///
    /// # Errors
    /// An option that the card needs has a value that does not read.
    pub fn read(self, arguments: &[String]) -> Result<EngineArguments, ArgumentError> {
        let options = Options::parse(arguments);
        match self {
            Self::Vllm => vllm::read(&options),
            Self::Sglang => sglang::read(&options),
            Self::Trtllm => trtllm::read(&options),
            Self::Mock => Ok(EngineArguments::default()),
        }
    }
}
