//! Prefill and decode on different workers: each hop goes its own way, and nobody goes on quietly without the other.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

#[path = "../process/mod.rs"]
mod process;
#[path = "../rig/mod.rs"]
mod rig;

mod bootstrap;
mod outcome;
mod pool;
mod review_findings;
mod routing;
