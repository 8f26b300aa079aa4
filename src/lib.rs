//! kvroute: a GPU-aware KV-cache routing engine for LLM inference.

#[cfg(any(feature = "server", feature = "cuda"))]
pub mod accel;
pub mod decisions;
pub mod device;
pub mod event;
pub mod hash;
pub mod index;
pub mod load;
pub mod select;
pub mod simulate;
pub mod slot;

#[cfg(feature = "server")]
pub mod cli;
#[cfg(feature = "server")]
pub mod config;
#[cfg(feature = "server")]
pub mod doctor;
#[cfg(feature = "server")]
pub mod fleet;
#[cfg(feature = "server")]
pub mod frontend;
#[cfg(feature = "server")]
pub mod ingest;
#[cfg(feature = "server")]
pub mod metrics;
#[cfg(feature = "server")]
pub mod prompt;
#[cfg(feature = "server")]
pub mod proxy;
#[cfg(feature = "server")]
pub mod tls;
#[cfg(feature = "server")]
pub mod worker;
