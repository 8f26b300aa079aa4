//! Batches hashed on a GPU, with a library that stands in for the CUDA driver and runs the very kernels that ship.
//!
//! The library is built here, on first use, from the package `tests/cuda-stand-in`. A process has one driver, and what becomes of
//! that stays, so each test runs in a process of its own: see `child`.

#![cfg(all(feature = "server", feature = "cuda", feature = "nvml", target_os = "linux"))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod batches;
mod child;
mod cuda_absent;
mod cuda_choice;
mod cuda_digests;
mod cuda_faults;
mod cuda_frontend;
#[path = "../log_capture/mod.rs"]
mod log_capture;
#[allow(dead_code, reason = "the tests of NVML use more of it")]
#[path = "../nvml/stand_in.rs"]
mod nvml;
#[path = "../rig/mod.rs"]
mod rig;
#[path = "../stand_in_library/mod.rs"]
mod stand_in_library;
