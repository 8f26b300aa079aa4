//! What engines publish, decoded and normalised: recorded payloads, every encoding of the same batch, hostile
//! bytes, and each reason for which something is dropped.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod encodings;
mod engine;
mod hostile;
mod recorded;
mod rejected;
mod salts;
