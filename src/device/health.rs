//! Whether a device can be relied on.
//!
//! A fault fences at the first sample that shows it: requests sent to a GPU that is gone are lost. The way back is slow,
//! so that a device that comes and goes does not take requests each time it comes: it needs some clean samples in a
//! row, and twice as many after each relapse.

use std::fmt;

use ahash::AHashMap;

use super::{DeviceReading, Reading};

/// Why a device is not relied on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fault {
    /// It fell off its bus, or was there and is not listed any more.
    Lost,
    /// It does nothing until it is reset.
    NeedsReset,
    /// Its memory had errors that ECC could not correct, since the driver was loaded. What it computes may be wrong; a
    /// reset of the device starts the count anew.
    UncorrectableEcc,
    /// The driver reported an error after which the device has to be reset, by NVIDIA's number.
    Xid(u64),
}

impl Fault {
    /// The name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::NeedsReset => "needs_reset",
            Self::UncorrectableEcc => "uncorrectable_ecc",
            Self::Xid(_) => "xid",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Xid(number) => write!(f, "xid {number}"),
            other => f.write_str(other.name()),
        }
    }
}

/// XIDs after which NVIDIA's catalogue of XID errors asks for a reset of the GPU or the machine: it stopped processing (46),
/// an uncorrectable memory error (48), an internal halt (61, 62), a row that could not be remapped (64), an NVLink error (74), off
/// the bus (79), an error that was not contained (95), a security violation (110), the firmware's processor timed out or failed
/// (119, 120), an ECC error that was not recovered (140), a failed initialisation (143). Others are an application's doing (13,
/// 31, 43, 45), are contained or only told (63, 92, 94), or are not known here: they do not fence.
const FATAL_XIDS: [u64; 13] = [46, 48, 61, 62, 64, 74, 79, 95, 110, 119, 120, 140, 143];

/// What a sample itself shows. A field that cannot be read says nothing, unless because the device is gone.
#[must_use]
pub fn fault(reading: &DeviceReading) -> Option<Fault> {
    let numbers = reading.numbers();
    let any = |state: Reading<f64>| numbers.iter().any(|(_, reading)| *reading == state);
    if reading.missing || any(Reading::Lost) || reading.processes == Reading::Lost {
        Some(Fault::Lost)
    } else if any(Reading::NeedsReset) {
        Some(Fault::NeedsReset)
    } else if reading.ecc_uncorrectable.value().is_some_and(|errors| errors > 0) {
        Some(Fault::UncorrectableEcc)
    } else {
        reading.xids.iter().copied().find(|xid| FATAL_XIDS.contains(xid)).map(Fault::Xid)
    }
}

/// The way back from a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recovery {
    /// Clean samples in a row that end a fence. Default 5.
    pub clean_samples: u32,
    /// What that number doubles to, at most, with relapses; so many clean samples after a fence make it the first number
    /// again. Default 80.
    pub most_clean_samples: u32,
    /// How long a fatal XID is a fault, in milliseconds: it is told once, and nobody tells when it is over. Default 10 minutes.
    pub xid_ms: u64,
}

impl Default for Recovery {
    fn default() -> Self {
        Self { clean_samples: 5, most_clean_samples: 80, xid_ms: 600_000 }
    }
}

/// The health of one device over its samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Health {
    fault: Option<Fault>,
    /// Clean samples in a row, since the last fault.
    clean: u32,
    /// Clean samples that end the fence that holds, or ended the last one; 0 before the first.
    needed: u32,
    /// A fatal XID, and until when it counts.
    xid: Option<(u64, u64)>,
}

impl Health {
    /// Takes in a sample, and says what the device is fenced for now, if it is. `now_ms` never goes back.
    pub fn observe(&mut self, reading: &DeviceReading, now_ms: u64, recovery: &Recovery) -> Option<Fault> {
        let mut shown = fault(reading);
        if let Some(Fault::Xid(number)) = shown {
            self.xid = Some((number, now_ms.saturating_add(recovery.xid_ms)));
        }
        self.xid = self.xid.filter(|&(_, until)| now_ms < until);
        shown = shown.or(self.xid.map(|(number, _)| Fault::Xid(number)));
        match shown {
            Some(fault) => self.fence(fault, recovery),
            None => self.clean = self.clean.saturating_add(1),
        }
        if self.clean >= self.needed {
            self.fault = None;
        }
        self.fault
    }

    /// What it is fenced for, as of the last sample.
    #[must_use]
    pub const fn fenced(&self) -> Option<Fault> {
        self.fault
    }

    fn fence(&mut self, fault: Fault, recovery: &Recovery) {
        let least = recovery.clean_samples.max(1);
        if self.fault.is_none() {
            let relapsed = self.needed > 0 && self.clean < self.needed + recovery.most_clean_samples;
            self.needed = if relapsed { self.needed.saturating_mul(2) } else { least };
            self.needed = self.needed.min(recovery.most_clean_samples.max(least));
        }
        self.fault = Some(fault);
        self.clean = 0;
    }
}

/// The health of every device of a machine, by its UUID. It outlasts whoever computes there: an XID is told once, and is the
/// next engine's as well.
#[derive(Clone, Debug, Default)]
pub struct Healths {
    by_uuid: AHashMap<String, Health>,
    recovery: Recovery,
}

impl Healths {
    /// Takes in a sample of all devices. `now_ms` never goes back.
    pub fn observe(&mut self, sample: &[DeviceReading], now_ms: u64) {
        for reading in sample {
            if !self.by_uuid.contains_key(&reading.uuid) {
                self.by_uuid.insert(reading.uuid.clone(), Health::default());
            }
            if let Some(health) = self.by_uuid.get_mut(&reading.uuid) {
                health.observe(reading, now_ms, &self.recovery);
            }
        }
        // MIG instances get new names whenever a GPU is divided anew. A sample without any device says nothing of those there are.
        if !sample.is_empty() && self.by_uuid.len() > sample.len() {
            self.by_uuid.retain(|uuid, _| sample.iter().any(|reading| reading.uuid == *uuid));
        }
    }

    /// What a device is fenced for, as of the last sample.
    #[must_use]
    pub fn fenced(&self, uuid: &str) -> Option<Fault> {
        self.by_uuid.get(uuid)?.fenced()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::device::Throttle;

    fn with(change: impl FnOnce(&mut DeviceReading)) -> DeviceReading {
        let mut reading = DeviceReading::of("GPU-a");
        change(&mut reading);
        reading
    }

    fn lost() -> DeviceReading {
        with(|reading| reading.power_watts = Reading::Lost)
    }

    #[test]
    fn what_a_sample_shows() {
        let cases = [
            (with(|_| {}), None),
            (lost(), Some(Fault::Lost)),
            (with(|reading| reading.missing = true), Some(Fault::Lost)),
            (with(|reading| reading.processes = Reading::Lost), Some(Fault::Lost)),
            (with(|reading| reading.sm_utilisation = Reading::NeedsReset), Some(Fault::NeedsReset)),
            (with(|reading| reading.ecc_uncorrectable = Reading::Value(0)), None),
            (with(|reading| reading.ecc_uncorrectable = Reading::Value(2)), Some(Fault::UncorrectableEcc)),
            (with(|reading| reading.ecc_uncorrectable = Reading::NotSupported), None),
            (with(|reading| reading.xids = vec![13, 31, 43, 45, 63, 92, 94, 9999]), None),
            (with(|reading| reading.xids = vec![31, 79]), Some(Fault::Xid(79))),
            // Slow and hot is not broken.
            (with(|reading| reading.throttle = Reading::Value(Throttle::from_bits(0x48))), None),
            (with(|reading| reading.temperature_celsius = Reading::Value(120)), None),
        ];
        for (reading, expected) in cases {
            assert_eq!(fault(&reading), expected, "{reading:?}");
        }
        for state in ["not_supported", "no_permission", "unreadable", "failed", "unread"] {
            let reading = with(|reading| reading.sm_clock_mhz = Reading::absent(state).unwrap());
            assert_eq!(fault(&reading), None, "{state}");
        }
    }

    #[test]
    fn a_fault_fences_at_once_and_clean_samples_end_it() {
        let (mut health, recovery) = (Health::default(), Recovery::default());
        let clean = DeviceReading::of("GPU-a");
        assert_eq!(health.observe(&clean, 0, &recovery), None);
        assert_eq!(health.observe(&lost(), 1, &recovery), Some(Fault::Lost));
        for now in 2..6 {
            assert_eq!(health.observe(&clean, now, &recovery), Some(Fault::Lost), "{now}");
        }
        assert_eq!(health.observe(&clean, 6, &recovery), None);
    }

    #[test]
    fn a_device_that_comes_and_goes_stays_away_longer_each_time() {
        let (mut health, recovery) = (Health::default(), Recovery::default());
        let clean = DeviceReading::of("GPU-a");
        let mut away = |pause: u32| {
            health.observe(&lost(), 0, &recovery);
            let mut samples = 1;
            while health.observe(&clean, 0, &recovery).is_some() {
                samples += 1;
            }
            (0..pause).for_each(|_| assert_eq!(health.observe(&clean, 0, &recovery), None));
            samples
        };
        assert_eq!([0; 6].map(&mut away), [5, 10, 20, 40, 80, 80]);
        assert_eq!(away(200), 80);
        assert_eq!(away(0), 5, "a long time without a fault is a fresh start");
    }

    #[test]
    fn a_fatal_xid_is_told_once_and_holds() {
        let (mut health, recovery) = (Health::default(), Recovery { xid_ms: 100, ..Recovery::default() });
        let clean = DeviceReading::of("GPU-a");
        health.observe(&with(|reading| reading.xids = vec![48]), 0, &recovery);
        for now in 1..104 {
            assert_eq!(health.observe(&clean, now, &recovery), Some(Fault::Xid(48)), "{now}");
        }
        assert_eq!(health.observe(&clean, 104, &recovery), None);
    }

    #[test]
    fn devices_are_told_apart_and_forgotten_when_they_are_listed_no_more() {
        let mut healths = Healths::default();
        let fatal = with(|reading| reading.xids = vec![79]);
        healths.observe(&[fatal, DeviceReading::of("GPU-b")], 0);
        assert_eq!((healths.fenced("GPU-a"), healths.fenced("GPU-b")), (Some(Fault::Xid(79)), None));
        healths.observe(&[], 1);
        assert_eq!(healths.fenced("GPU-a"), Some(Fault::Xid(79)));
        healths.observe(&[DeviceReading::of("GPU-b")], 2);
        assert_eq!(healths.fenced("GPU-a"), None);
    }

    proptest! {
        #[test]
        fn nobody_is_relied_on_with_a_fault_or_right_after_one(faulty in prop::collection::vec(any::<bool>(), 1..200)) {
            let (mut health, recovery) = (Health::default(), Recovery::default());
            let mut clean = None;
            for (now, faulty) in (0..).zip(faulty) {
                let reading = if faulty { lost() } else { DeviceReading::of("GPU-a") };
                let fenced = health.observe(&reading, now, &recovery).is_some();
                clean = if faulty { Some(0) } else { clean.map(|clean| clean + 1) };
                match clean {
                    None => prop_assert!(!fenced, "there was no fault"),
                    Some(clean) if clean < recovery.clean_samples => prop_assert!(fenced),
                    Some(clean) if clean >= recovery.most_clean_samples => prop_assert!(!fenced),
                    Some(_) => {}
                }
            }
        }
    }
}
