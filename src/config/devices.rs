//! The flags on GPUs: where they are read, and which are an engine's.

use std::{ops::RangeInclusive, path::PathBuf, time::Duration};

use clap::{ArgAction, Args, value_parser};
use serde::{Deserialize, Deserializer, de::Error as _};

use super::WorkerArgs;
use crate::{device::Visible, worker::devices::DeviceSettings};

/// The group of these flags in `--help`.
pub(super) const HEADING: &str = "Devices";

/// What lies between two samples, in milliseconds.
pub(super) const SAMPLE_MS: RangeInclusive<u64> = 100..=60_000;

/// Where the driver's library is.
#[derive(Args, Clone, Debug, Default)]
pub struct NvmlArgs {
    /// NVIDIA's library libnvidia-ml.so.1 [default: where the system finds it]
    #[arg(long, env = "KVROUTE_NVML_LIBRARY", value_name = "PATH", help_heading = HEADING)]
    pub nvml_library: Option<PathBuf>,
}

/// Whether and how often GPUs are sampled.
#[derive(Args, Clone, Debug, Default)]
pub struct SamplingArgs {
    /// Where they are read
    #[command(flatten)]
    pub nvml: NvmlArgs,
    /// Milliseconds from one sample of the GPUs to the next, 100 to 60000 [default: 1000]
    #[arg(
        long,
        env = "KVROUTE_DEVICE_SAMPLE_MS",
        value_name = "MS",
        value_parser = value_parser!(u64).range(SAMPLE_MS),
        help_heading = HEADING
    )]
    pub device_sample_ms: Option<u64>,
    /// Read no GPUs
    #[arg(long, action = ArgAction::SetTrue, help_heading = HEADING)]
    pub no_device_telemetry: bool,
}

impl SamplingArgs {
    /// How GPUs are sampled where there is no engine that they belong to.
    #[must_use]
    pub fn settings(&self) -> DeviceSettings {
        sampling(self.no_device_telemetry, self.nvml.nvml_library.clone(), self.device_sample_ms)
    }
}

/// How the GPUs of a worker's engine are found and sampled.
pub(super) fn settings_of(worker: &WorkerArgs) -> DeviceSettings {
    let shown = |name| variable(name).as_deref().map(Visible::parse);
    DeviceSettings {
        named: worker.engine_gpus.as_deref().map(Visible::parse),
        shown: shown("CUDA_VISIBLE_DEVICES").or_else(|| shown("NVIDIA_VISIBLE_DEVICES")?.by_name()),
        pci_order: variable("CUDA_DEVICE_ORDER").as_deref() == Some("PCI_BUS_ID"),
        engine_pid: worker.engine_pid,
        ..sampling(worker.no_device_telemetry, worker.nvml_library.clone(), worker.device_sample_ms)
    }
}

fn sampling(off: bool, nvml_library: Option<PathBuf>, sample_ms: Option<u64>) -> DeviceSettings {
    let default = DeviceSettings::default();
    let interval = sample_ms.map_or(default.interval, Duration::from_millis);
    DeviceSettings { enabled: !off, nvml_library, interval, ..default }
}

/// Reads what the flag's own parser would bound.
pub(super) fn device_sample_ms<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let ms = u64::deserialize(deserializer)?;
    if SAMPLE_MS.contains(&ms) {
        Ok(Some(ms))
    } else {
        Err(D::Error::custom("device_sample_ms is not within 100 to 60000"))
    }
}

/// A variable of CUDA's. It is not ours: what does not read is not an error here, and an empty one says something.
#[expect(clippy::disallowed_methods, reason = "this room is the one that reads the environment")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
