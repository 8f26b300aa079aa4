//! Decisions as they are kept: written, read, made again, and asked anew.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

#[path = "../recorded_fleet/mod.rs"]
mod recorded_fleet;

mod damage;
mod replay;
mod size;
mod what_if;
