//! Reads NVIDIA GPUs through NVML, the library that comes with the driver.
//!
//! The library is looked for when a [`Sampler`] starts, and again from time to time: a machine without it, or without a
//! driver, has no devices and says why ([`Absence`]). Queries fail one by one, and each failure is a state of its field
//! ([`Reading`](super::Reading)): on a virtual GPU or a Jetson most of them do, and the rest is read all the same.
//!
//! This is the part of `device` that is not pure: it has a thread and a clock, and calls into a C library. It judges
//! nothing. A call that hangs, as calls about a sick GPU may, holds up the sampler's own thread and nobody else: the
//! last sample grows old meanwhile.

mod events;
mod query;
mod sampler;
mod session;

use std::time::Instant;

use nvml_wrapper::error::NvmlError;
use thiserror::Error;

use super::DeviceReading;

pub use sampler::{Sampler, SamplerSettings, sample_once};

/// All devices of this machine at one time.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When it was taken.
    pub taken: Instant,
    /// Why there are no readings, if there are none.
    pub absence: Option<Absence>,
    /// Every GPU in NVML's order, each followed by its MIG instances, then the devices that were there before and are not
    /// any more.
    pub devices: Vec<DeviceReading>,
}

/// Why nothing can be read. None of these is an error: most machines have no GPU.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Absence {
    /// No library.
    #[error("NVML is not here ({0})")]
    NoLibrary(String),
    /// A library and no driver, or one that is being replaced.
    #[error("the NVIDIA driver does not answer ({0})")]
    NoDriver(String),
    /// This process may not ask.
    #[error("no permission to ask the NVIDIA driver")]
    NoPermission,
    /// Something else.
    #[error("NVML failed: {0}")]
    Failed(String),
}

impl From<NvmlError> for Absence {
    fn from(error: NvmlError) -> Self {
        match error {
            NvmlError::LibloadingError(_)
            | NvmlError::LibraryNotFound
            | NvmlError::FailedToLoadSymbol(_)
            | NvmlError::FunctionNotFound => Self::NoLibrary(error.to_string()),
            NvmlError::DriverNotLoaded | NvmlError::Uninitialized | NvmlError::LibRmVersionMismatch => {
                Self::NoDriver(error.to_string())
            }
            NvmlError::NoPermission | NvmlError::OperatingSystem => Self::NoPermission,
            _ => Self::Failed(error.to_string()),
        }
    }
}
