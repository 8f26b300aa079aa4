//! What a worker tells of its devices with a heartbeat: a promise to workers and frontends of other versions.
//!
//! Health and capability are judged where the devices are sampled, since only there every sample is seen. Readings come along
//! to be shown.

use std::collections::BTreeMap;

use ahash::AHashSet;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::device::{DeviceReading, GroupState, LEAST_CAPABILITY, Reading};

/// `devices` of a heartbeat. Keys that are not known are skipped: the other side may be newer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DeviceReport {
    /// How old the sample is, in milliseconds.
    #[serde(default)]
    pub age_ms: u64,
    /// The devices of each rank, in order of the ranks. One entry is for all of them.
    pub ranks: Vec<RankDevices>,
}

/// The devices of one rank.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RankDevices {
    /// Why they are to be fenced, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<FaultReport>,
    /// What the slowest is capable of, above 0, to 1.
    #[serde(default = "all")]
    pub capability: f64,
    /// Utilisation of the busiest, 0 to 1; absent if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilisation: Option<f64>,
    /// Whether the engine's own process is on all of them. Only then their utilisation counts.
    #[serde(default)]
    pub engine_seen: bool,
    /// Each device.
    #[serde(default)]
    pub gpus: Vec<GpuReport>,
}

/// A device at fault.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FaultReport {
    /// Its UUID.
    pub gpu: String,
    /// What is wrong, such as `lost` or `xid 79`.
    pub reason: String,
}

/// One device as it was read.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct GpuReport {
    /// `GPU-...` or `MIG-...`.
    pub uuid: String,
    /// The product's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The GPU that a MIG instance is a part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Each field by its name: a number, or a word that says why there is none.
    #[serde(default)]
    pub readings: BTreeMap<String, FieldReport>,
}

/// A field's value, or why there is none.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum FieldReport {
    /// The value, in the unit of the field's name.
    Value(f64),
    /// A state such as `not_supported`.
    Absent(String),
}

/// A report that is not taken in.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ReportError {
    /// More than any machine has.
    #[error("devices: more than {0} {1}")]
    TooMany(usize, &'static str),
    /// A text that is none of a driver.
    #[error("devices: a name of more than {0} bytes")]
    TooLong(usize),
    /// Neither one entry nor one for each rank.
    #[error("devices.ranks has {told} entries, the worker has {ranks} ranks; it needs one, or one for each")]
    Ranks {
        /// How many there are.
        told: usize,
        /// How many ranks the worker has.
        ranks: u32,
    },
}

const MOST_RANKS: usize = 1024;
const MOST_GPUS: usize = 128;
const MOST_BYTES: usize = 256;

fn all() -> f64 {
    1.0
}

/// Devices of which nothing is known.
impl Default for RankDevices {
    fn default() -> Self {
        Self { fault: None, capability: all(), utilisation: None, engine_seen: false, gpus: Vec::new() }
    }
}

impl DeviceReport {
    /// Holds the report to what can be: bounds its size, drops readings that nobody here knows, and brings shares into their
    /// range.
    ///
    /// # Errors
    /// See [`ReportError`].
    pub fn checked(mut self, ranks: u32) -> Result<Self, ReportError> {
        let told = self.ranks.len();
        if told > MOST_RANKS {
            return Err(ReportError::TooMany(MOST_RANKS, "ranks"));
        }
        if told != 1 && u32::try_from(told) != Ok(ranks) {
            return Err(ReportError::Ranks { told, ranks });
        }
        for rank in &mut self.ranks {
            rank.check()?;
        }
        Ok(self)
    }

    /// What is told of the rank at a position.
    pub(super) fn rank(&self, position: usize) -> Option<&RankDevices> {
        self.ranks.get(position).or_else(|| self.ranks.first().filter(|_| self.ranks.len() == 1))
    }
}

impl RankDevices {
    /// What is told of a group, whose devices are found in a sample.
    #[must_use]
    pub fn of(state: GroupState, uuids: &[String], sample: &[DeviceReading]) -> Self {
        let fault = state.fault.map(|(gpu, fault)| FaultReport { gpu, reason: fault.to_string() });
        let devices = uuids.iter().filter_map(|uuid| sample.iter().find(|device| device.uuid == *uuid));
        Self {
            fault,
            capability: state.capability,
            utilisation: state.utilisation,
            engine_seen: state.engine_seen,
            gpus: devices.map(GpuReport::of).collect(),
        }
    }

    fn check(&mut self) -> Result<(), ReportError> {
        if self.gpus.len() > MOST_GPUS {
            return Err(ReportError::TooMany(MOST_GPUS, "GPUs of a rank"));
        }
        // One that is told twice would be on the metrics page twice.
        let mut seen = AHashSet::new();
        self.gpus.retain(|gpu| seen.insert(gpu.uuid.clone()));
        let known = DeviceReading::default().numbers().map(|(name, _)| name);
        let mut texts: Vec<&String> = Vec::new();
        for gpu in &mut self.gpus {
            gpu.readings.retain(|name, field| {
                known.contains(&name.as_str())
                    && match field {
                        FieldReport::Value(value) => value.is_finite(),
                        FieldReport::Absent(word) => Reading::<f64>::absent(word).is_some(),
                    }
            });
            texts.push(&gpu.uuid);
            texts.extend(gpu.name.iter().chain(&gpu.parent));
        }
        texts.extend(self.fault.iter().flat_map(|fault| [&fault.gpu, &fault.reason]));
        if texts.iter().any(|text| text.len() > MOST_BYTES) {
            return Err(ReportError::TooLong(MOST_BYTES));
        }
        let capability = if self.capability.is_nan() { 1.0 } else { self.capability };
        self.capability = capability.clamp(LEAST_CAPABILITY, 1.0);
        self.utilisation =
            self.utilisation.filter(|share| !share.is_nan()).map(|share| share.clamp(0.0, 1.0));
        Ok(())
    }
}

impl GpuReport {
    fn of(device: &DeviceReading) -> Self {
        let field = |reading: Reading<f64>| match reading.absence() {
            None => reading.value().map(FieldReport::Value),
            // A field that nobody asked for is not told.
            Some(_) if reading == Reading::Unread => None,
            Some(word) => Some(FieldReport::Absent(word.to_owned())),
        };
        let numbers = device.numbers().into_iter();
        Self {
            uuid: device.uuid.clone(),
            name: device.name.clone().value(),
            parent: device.parent.clone(),
            readings: numbers
                .filter_map(|(name, reading)| Some((name.to_owned(), field(reading)?)))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Fault;

    fn read(json: &str) -> DeviceReport {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn what_is_written_reads_back() {
        let device = DeviceReading {
            name: Reading::Value("H200".to_owned()),
            power_watts: Reading::Value(512.5),
            nvlinks: Reading::NotSupported,
            ..DeviceReading::of("GPU-a")
        };
        let state = GroupState {
            fault: Some(("GPU-a".to_owned(), Fault::Xid(79))),
            capability: 0.5,
            utilisation: None,
            engine_seen: true,
        };
        let rank = RankDevices::of(state, &["GPU-a".to_owned()], &[device]);
        let report = DeviceReport { age_ms: 7, ranks: vec![rank] };
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(read(&json), report);
        assert_eq!(report.clone().checked(1), Ok(report.clone()));
        let readings = &report.ranks[0].gpus[0].readings;
        assert_eq!(readings.len(), 2);
        assert_eq!(readings["nvlinks"], FieldReport::Absent("not_supported".to_owned()));
        assert_eq!(report.ranks[0].fault.as_ref().unwrap().reason, "xid 79");
    }

    #[test]
    fn what_is_missing_is_neutral_and_what_is_unknown_is_skipped() {
        let report = read(
            r#"{"ranks":[{"aura":1,"gpus":[{"uuid":"GPU-a","readings":{"aura":1,"power_watts":"gone","nvlinks":4}}]}]}"#,
        );
        let rank = &report.checked(1).unwrap().ranks[0];
        assert_eq!((rank.capability, rank.utilisation, rank.engine_seen), (1.0, None, false));
        assert_eq!(rank.gpus[0].readings.keys().collect::<Vec<_>>(), ["nvlinks"]);
    }

    #[test]
    fn nothing_out_of_range_and_nothing_without_bounds_gets_in() {
        let rank = &read(r#"{"ranks":[{"capability":-3,"utilisation":7}]}"#).checked(1).unwrap().ranks[0];
        assert_eq!((rank.capability, rank.utilisation), (LEAST_CAPABILITY, Some(1.0)));
        let of = |ranks: usize| DeviceReport { age_ms: 0, ranks: vec![RankDevices::default(); ranks] };
        assert!(of(3).checked(3).is_ok() && of(1).checked(3).is_ok());
        assert!(matches!(of(2).checked(3), Err(ReportError::Ranks { told: 2, ranks: 3 })));
        assert!(of(5000).checked(3).is_err());
        let mut many = of(1);
        many.ranks[0].gpus = vec![GpuReport::default(); 200];
        assert!(matches!(many.clone().checked(1), Err(ReportError::TooMany(..))));
        many.ranks[0].gpus.truncate(2);
        assert_eq!(many.checked(1).unwrap().ranks[0].gpus.len(), 1, "one that is told twice");
        let mut long = of(1);
        long.ranks[0].gpus = vec![GpuReport { uuid: "x".repeat(1000), ..GpuReport::default() }];
        assert!(matches!(long.checked(1), Err(ReportError::TooLong(_))));
    }
}
