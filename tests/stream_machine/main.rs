//! The stream's state machine, told what happened and asked what to do: every rule by a script.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]
#![cfg(feature = "server")]

mod engines;
mod gaps;
mod overload;
mod resumed;
mod script;
mod waits;
