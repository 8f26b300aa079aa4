//! The mock engine: at the wire it is a vLLM 0.32, inside it computes nothing.
//!
//! It exists so that everything around an engine can be built, tested and measured on a machine without a
//! GPU: the router against real sockets, real events and real cache pressure, with time that runs as fast as
//! the test wants. The model is
//!
//! * [`BlockManager`]: the paged prefix cache, pure and synchronous;
//! * the scheduler: first come, first served, prefill in chunks, preemption of the youngest;
//! * the engine loop: steps that take as long as the configured speeds say;
//! * the publisher: KV events over ZMQ, with the replay buffer;
//! * the HTTP surface: the OpenAI endpoints and vLLM's own.
//!
//! It is not a performance model of any GPU, and its text means nothing: tokens are drawn at random from the
//! tokenizer's vocabulary, the same ones for the same request.

mod block_manager;
mod cache_event;
mod engine;
mod free_queue;
mod http;
mod metrics;
mod mock_engine;
mod pace;
mod publisher;
mod scheduler;
mod sequence;
mod settings;
mod stats;
mod vocabulary;

pub use block_manager::{BlockManager, CacheFull};
pub use cache_event::{CacheEvent, StoredRun};
pub use mock_engine::MockEngine;
pub use sequence::{Lora, Namespace, Naming, Sequence};
pub use settings::{Attach, Endpoint, MockError, MockSettings, Omissions, Role};
