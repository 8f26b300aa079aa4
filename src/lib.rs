//! kvroute: a GPU-aware KV-cache routing engine for LLM inference.
//!
//! Without default features the crate is its *core*, a library for whoever has a frontend already. It has no runtime, no socket
//! and no clock: whoever calls it says what time it is and where randomness comes from. From the bottom up, each using only
//! what stands before it:
//!
//! * [`slot`]: small numbers for workers and their ranks; everything on a request's way uses them.
//! * [`hash`]: tokens to block hashes.
//! * [`event`]: what engines say of their KV caches, decoded and checked.
//! * [`index`]: who holds which blocks, looked up without a lock.
//! * [`device`]: what a rank computes on, and how its GPUs are doing.
//! * [`load`]: what each rank is doing, as bookings that give back what they took.
//! * [`select`]: who gets the request, and at which costs.
//! * [`decisions`]: choices as they are kept, to be made again or asked what else would have come of them.
//! * [`simulate`]: a fleet of engines that are arithmetic, behind the same selector, loads and index.
//!
//! [`examples/embed.rs`](https://github.com/kvroute/kvroute/blob/HEAD/examples/embed.rs) puts a prompt through all that a decision
//! needs. The feature `server`, on by default, adds the rooms of the frontend, the workers and the command line, and the binary;
//! `ARCHITECTURE.md` in the repository describes all of them.

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
