//! GPUs as NVML tells of them, from a library that stands in for it to the choices that come of it.
//!
//! The library is built here, on first use, from the package `tests/nvml-stand-in`, and loaded as the driver's would be.

#![cfg(all(feature = "server", feature = "nvml", target_os = "linux"))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod nvml_command;
mod nvml_sampler;
mod nvml_scenario;
#[path = "../rig/mod.rs"]
mod rig;
mod stand_in;
#[path = "../stand_in_library/mod.rs"]
mod stand_in_library;
