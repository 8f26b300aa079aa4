//! Whatever comes from outside, damaged at random: request bodies, streams of answers, batches of events, cards,
//! registrations and configuration files. Nothing panics, nothing is answered with an error of the server's own, and what is
//! good is served afterwards.
//!
//! Each target runs for `KVROUTE_FUZZ_SECONDS`, half a second by default; `ci/fuzz-input.sh` gives it longer. A failure prints the
//! seed of its input, and `KVROUTE_FUZZ_SEED` begins with it.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    clippy::disallowed_methods,
    reason = "a failed expectation is how a test reports, and the environment says how long it runs"
)]

mod bodies;
mod configuration;
mod events;
mod mutation;
#[path = "../rig/mod.rs"]
mod rig;
mod streams;
