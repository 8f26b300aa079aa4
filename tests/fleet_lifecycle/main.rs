//! Workers come and go: their slots, streams and views, without a socket.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod combinations;
mod conflict;
mod drain;
mod model;
mod pools;
mod recorder;
mod workers;
