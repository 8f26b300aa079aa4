//! Whether a device has time and memory to spare, as NVML tells.
//!
//! It serves an engine in the first place: hashing takes copy engines, SM time and memory from that. What cannot be read takes nothing
//! away, as everywhere with devices; only of memory it has to be known that there is some before a context is made.

use std::sync::Arc;
#[cfg(feature = "nvml")]
use std::time::Instant;

use parking_lot::Mutex;

use super::AcceleratorSettings;
use crate::device::{DeviceReading, capability, fault};

/// The share of time with a kernel on it from which on a device counts as busy. What is hashed here adds next to nothing to it: for each
/// microsecond of a kernel there are some seventy of copies.
const BUSY: f64 = 0.5;

/// The free memory that a device must have before a context is made on it, in bytes: some 500 MiB that the driver takes for one, our
/// own 18, and as much again that is left for others.
const FREE_BYTES: u64 = 1 << 30;

/// What is known of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// It may be used; with free memory in bytes, where that is told.
    Free(Option<u64>),
    /// It may not, for now.
    Busy(&'static str),
    /// Nothing is.
    Unknown,
}

/// Looks at the devices from time to time.
#[derive(Debug)]
pub(super) struct Watch {
    latest: Arc<Mutex<Vec<DeviceReading>>>,
    #[cfg(feature = "nvml")]
    _sampler: Option<crate::device::nvml::Sampler>,
}

impl Watch {
    /// Looks once, and from then on in a thread of its own.
    #[cfg(feature = "nvml")]
    pub(super) fn start(settings: &AcceleratorSettings) -> Self {
        use crate::device::nvml::{Sample, Sampler, SamplerSettings, sample_once};

        let sampling = SamplerSettings {
            nvml_library: settings.nvml_library.clone(),
            interval: settings.look_every,
            ..SamplerSettings::default()
        };
        let first = sample_once(&sampling);
        let latest = Arc::new(Mutex::new(first.devices));
        let sink = {
            let latest = Arc::clone(&latest);
            let mut known = Instant::now();
            move |sample: Sample| {
                // A driver that is being replaced says nothing; what it said before holds for a while.
                if sample.absence.is_none() || known.elapsed().as_secs() > 10 {
                    known = sample.taken;
                    *latest.lock() = sample.devices;
                }
            }
        };
        let sampler = Sampler::start(sampling, sink);
        let sampler = sampler
            .inspect_err(|error| tracing::warn!(%error, "GPUs are looked at once: no thread to do it"));
        Self { latest, _sampler: sampler.ok() }
    }

    /// Without NVML nothing is known.
    #[cfg(not(feature = "nvml"))]
    pub(super) fn start(_: &AcceleratorSettings) -> Self {
        Self { latest: Arc::default() }
    }

    /// Whether a context may be made on the device.
    pub(super) fn before_opening(&self, uuid: &str) -> Verdict {
        match self.now(uuid) {
            Verdict::Free(Some(free)) if free < FREE_BYTES => Verdict::Busy("too little free memory"),
            verdict => verdict,
        }
    }

    /// Whether the device may be given a batch.
    pub(super) fn now(&self, uuid: &str) -> Verdict {
        self.latest.lock().iter().find(|reading| reading.uuid == uuid).map_or(Verdict::Unknown, judge)
    }
}

fn judge(reading: &DeviceReading) -> Verdict {
    if fault(reading).is_some() {
        return Verdict::Busy("at fault");
    }
    if reading.sm_utilisation.value().is_some_and(|share| share > BUSY) {
        return Verdict::Busy("utilised by others");
    }
    if capability(reading) < 1.0 {
        return Verdict::Busy("clocks held down");
    }
    let memory = reading.memory_total_bytes.value().zip(reading.memory_used_bytes.value());
    Verdict::Free(memory.map(|(total, used)| total.saturating_sub(used)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Reading, Throttle};

    fn free() -> DeviceReading {
        DeviceReading {
            sm_utilisation: Reading::Value(0.1),
            throttle: Reading::Value(Throttle::from_bits(1)),
            sm_clock_mhz: Reading::Value(900),
            sm_clock_max_mhz: Reading::Value(1800),
            memory_total_bytes: Reading::Value(100 << 30),
            memory_used_bytes: Reading::Value(60 << 30),
            ..DeviceReading::of("GPU-a")
        }
    }

    fn watch(reading: DeviceReading) -> Watch {
        Watch { latest: Arc::new(Mutex::new(vec![reading])), _sampler: None }
    }

    #[test]
    fn a_device_with_time_and_memory_is_free() {
        assert_eq!(judge(&free()), Verdict::Free(Some(40 << 30)));
        assert_eq!(watch(free()).before_opening("GPU-a"), Verdict::Free(Some(40 << 30)));
        assert_eq!(watch(free()).now("GPU-b"), Verdict::Unknown);
    }

    #[test]
    fn work_heat_and_faults_make_it_busy() {
        for reading in [
            DeviceReading { sm_utilisation: Reading::Value(0.9), ..free() },
            DeviceReading { throttle: Reading::Value(Throttle::from_bits(0x40)), ..free() },
            DeviceReading { ecc_uncorrectable: Reading::Value(1), ..free() },
            DeviceReading { missing: true, ..free() },
        ] {
            assert!(matches!(judge(&reading), Verdict::Busy(_)), "{reading:?}");
        }
    }

    #[test]
    fn what_is_not_told_takes_nothing_away() {
        assert_eq!(judge(&DeviceReading::of("GPU-a")), Verdict::Free(None));
    }

    #[test]
    fn memory_counts_before_there_is_a_context() {
        let full = || DeviceReading { memory_used_bytes: Reading::Value((100 << 30) - 1), ..free() };
        assert!(matches!(watch(full()).before_opening("GPU-a"), Verdict::Busy(_)));
        assert_eq!(watch(full()).now("GPU-a"), Verdict::Free(Some(1)), "ours is in what is used");
    }
}
