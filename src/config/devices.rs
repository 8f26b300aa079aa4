//! The flags on where GPUs are read.

use std::path::PathBuf;

use clap::Args;

/// Where the driver's library is.
#[derive(Args, Clone, Debug, Default)]
pub struct NvmlArgs {
    /// NVIDIA's library libnvidia-ml.so.1 [default: where the system finds it]
    #[arg(long, env = "KVROUTE_NVML_LIBRARY", value_name = "PATH", help_heading = DEVICES)]
    pub nvml_library: Option<PathBuf>,
}

const DEVICES: &str = "Devices";
