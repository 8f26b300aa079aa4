//! The GPUs of this machine under the mock engines of `kvroute up`.
//!
//! A mock engine computes on none. So that readings, weights and fences can be seen where there are GPUs, each engine stands for
//! the one of its number; engines beyond those have no telemetry.

use std::sync::Arc;

use crate::{fleet::Fleet, worker::devices::DeviceSettings};

/// Samples for as long as it lives.
pub(super) struct LocalGpus {
    #[cfg(feature = "nvml")]
    _sampler: Option<crate::device::nvml::Sampler>,
}

impl LocalGpus {
    /// Reports the GPUs of this machine as those of the workers 1 to `engines`.
    #[cfg(not(feature = "nvml"))]
    pub(super) fn start(settings: &DeviceSettings, _: &Arc<Fleet>, _: u64) -> Self {
        if settings.enabled {
            tracing::info!("GPUs are not read: built without the feature nvml");
        }
        Self {}
    }

    /// Reports the GPUs of this machine as those of the workers 1 to `engines`.
    #[cfg(feature = "nvml")]
    pub(super) fn start(settings: &DeviceSettings, fleet: &Arc<Fleet>, engines: u64) -> Self {
        use crate::device::nvml::{Sampler, SamplerSettings};

        if !settings.enabled {
            return Self { _sampler: None };
        }
        let mut reporter = reporter::Reporter::new(Arc::clone(fleet), engines);
        let sampling = SamplerSettings {
            nvml_library: settings.nvml_library.clone(),
            interval: settings.interval,
            ..SamplerSettings::default()
        };
        let sampler = Sampler::start(sampling, move |sample| reporter.take(&sample));
        let sampler =
            sampler.inspect_err(|error| tracing::warn!(%error, "GPUs are not read: no thread to do it"));
        Self { _sampler: sampler.ok() }
    }
}

#[cfg(feature = "nvml")]
mod reporter {
    use std::{sync::Arc, time::Instant};

    use tracing::{debug, info};

    use crate::{
        device::{Healths, nvml::Sample},
        fleet::{DeviceReport, Fleet},
        slot::WorkerId,
        worker::devices::{Watch, whole_devices},
    };

    pub(super) struct Reporter {
        fleet: Arc<Fleet>,
        engines: u64,
        /// By the number of the engine, from 1.
        watched: Vec<Watch>,
        healths: Healths,
        said: Option<String>,
        epoch: Instant,
    }

    impl Reporter {
        pub(super) fn new(fleet: Arc<Fleet>, engines: u64) -> Self {
            Self {
                fleet,
                engines,
                watched: Vec::new(),
                healths: Healths::default(),
                said: None,
                epoch: Instant::now(),
            }
        }

        pub(super) fn take(&mut self, sample: &Sample) {
            if let Some(absence) = &sample.absence {
                self.say(absence.to_string());
                return;
            }
            if self.watched.is_empty() {
                let uuids: Vec<_> =
                    whole_devices(&sample.devices).map(|device| device.uuid.clone()).collect();
                if uuids.is_empty() {
                    self.say("the driver lists none".to_owned());
                    return;
                }
                info!(gpus = uuids.join(","), "each mock engine stands for the GPU of its number");
                let most = usize::try_from(self.engines).unwrap_or(usize::MAX);
                self.watched = uuids.chunks(1).take(most).map(|uuid| Watch::new(uuid, 1)).collect();
            }
            let now_ms = u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.healths.observe(&sample.devices, now_ms);
            let (own, healths) = (std::process::id(), &self.healths);
            for (number, watch) in (1..).zip(&mut self.watched) {
                let Some((ranks, _)) = watch.observe(&sample.devices, healths, |pid| pid == own, now_ms)
                else {
                    continue;
                };
                let report = DeviceReport { age_ms: 0, ranks };
                if let Err(error) = self.fleet.report_devices(WorkerId(number), report) {
                    debug!(%error, "a report of GPUs was not taken in");
                }
            }
        }

        /// Says once why no GPUs are read.
        fn say(&mut self, reason: String) {
            if self.said.as_ref() != Some(&reason) {
                info!(reason, "no GPUs are read; requests are routed as without them");
                self.said = Some(reason);
            }
        }
    }
}
