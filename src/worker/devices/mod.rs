//! The GPUs of an engine: which they are, and how they are doing.
//!
//! They are sampled where the engine runs. Health and capability are folded here, at every sample, and go to the frontends
//! with the heartbeats ([`DeviceReport`]); what the frontends make of them is theirs.
//!
//! * [`assignment`]: which of the machine's GPUs are the engine's: those that somebody named, those that its processes are
//!   on, or those that the environment shows.
//! * [`processes`]: what the engine's processes are.
//! * [`watch`]: samples, folded per rank.
//!
//! None of it is needed: without a GPU, a driver, NVML or the feature there is no news, and one line says why.

#[cfg(feature = "nvml")]
mod assignment;
#[cfg(feature = "nvml")]
mod processes;
#[cfg(feature = "nvml")]
mod sampling;
#[cfg(feature = "nvml")]
mod watch;

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::watch as channel;

use crate::{
    device::Visible,
    fleet::{DeviceReport, RankDevices},
};

#[cfg(feature = "nvml")]
pub(crate) use watch::{Watch, whole_devices};

/// How an engine's GPUs are found and sampled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceSettings {
    /// Whether they are at all. Default true.
    pub enabled: bool,
    /// NVIDIA's library; `None` takes the driver's, as the system finds it.
    pub nvml_library: Option<PathBuf>,
    /// From one sample to the next. Default 1 s.
    pub interval: Duration,
    /// The engine's GPUs, where somebody named them.
    pub named: Option<Visible>,
    /// What the environment shows, which is the engine's own only if both were started alike: `CUDA_VISIBLE_DEVICES`, else
    /// `NVIDIA_VISIBLE_DEVICES`.
    pub shown: Option<Visible>,
    /// Whether device numbers are NVML's for sure (`CUDA_DEVICE_ORDER=PCI_BUS_ID`).
    pub pci_order: bool,
    /// The engine's process; `None` looks for the one that listens on its port.
    pub engine_pid: Option<u32>,
}

impl Default for DeviceSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            nvml_library: None,
            interval: Duration::from_secs(1),
            named: None,
            shown: None,
            pci_order: false,
            engine_pid: None,
        }
    }
}

/// The last that is known of an engine's GPUs.
#[derive(Clone, Debug)]
pub(crate) struct News {
    /// When they were sampled.
    pub(super) taken: Instant,
    /// The devices of each rank.
    pub(super) ranks: Vec<RankDevices>,
    /// Goes up with every change of a fault: such news does not wait for the next heartbeat.
    pub(super) alarm: u64,
}

impl News {
    /// The report of it, sent now.
    pub(super) fn report(&self) -> DeviceReport {
        let age_ms = u64::try_from(self.taken.elapsed().as_millis()).unwrap_or(u64::MAX);
        DeviceReport { age_ms, ranks: self.ranks.clone() }
    }
}

/// News as they come; none while there is nothing to tell.
pub(super) type NewsFeed = channel::Receiver<Option<Arc<News>>>;

#[cfg(feature = "nvml")]
pub(super) use sampling::start;

/// Without the feature there is never any.
#[cfg(not(feature = "nvml"))]
pub(super) fn start(
    settings: &super::agent::AgentSettings,
    _: channel::Receiver<super::agent::Described>,
) -> (NewsFeed, ()) {
    if settings.devices.enabled {
        tracing::info!("GPUs are not read: built without the feature nvml");
    }
    (channel::channel(None).1, ())
}
