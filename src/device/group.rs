//! The devices that work together under one slot.

use super::{DeviceReading, Fault, Healths, capability, weight::share_left};

/// Half of a change in capability shows after so long, in milliseconds: throttling comes and goes within seconds.
const CAPABILITY_HALF_LIFE_MS: f64 = 2_000.0;

/// The GPUs of one slot over their samples. A rank computes on all of them at once, so it is as healthy as the worst and
/// as fast as the slowest.
#[derive(Clone, Debug)]
pub struct Group {
    uuids: Vec<String>,
    capability: Option<f64>,
    at_ms: u64,
}

/// What a group comes down to after a sample.
#[derive(Clone, PartialEq, Debug)]
pub struct GroupState {
    /// The first device that is fenced, and why.
    pub fault: Option<(String, Fault)>,
    /// What the slowest is capable of, above 0, to 1; smoothed over some seconds.
    pub capability: f64,
    /// Utilisation of the busiest, 0 to 1, where it is known.
    pub utilisation: Option<f64>,
    /// Whether the engine's process is on every one of them: they are its devices, not only said to be.
    pub engine_seen: bool,
}

impl Group {
    /// The group of these devices.
    #[must_use]
    pub const fn new(uuids: Vec<String>) -> Self {
        Self { uuids, capability: None, at_ms: 0 }
    }

    /// Whose group it is.
    pub fn uuids(&self) -> impl Iterator<Item = &str> {
        self.uuids.iter().map(String::as_str)
    }

    /// Takes in a sample: all devices of the machine, of which those of the group count, and their health, which has seen
    /// that sample. `is_engine` knows the engine's processes. `None` if the sample has none of the group's devices. `now_ms`
    /// never goes back.
    pub fn observe(
        &mut self,
        sample: &[DeviceReading],
        healths: &Healths,
        is_engine: impl Fn(u32) -> bool,
        now_ms: u64,
    ) -> Option<GroupState> {
        let mut seen = 0;
        let mut state = GroupState { fault: None, capability: 1.0, utilisation: None, engine_seen: true };
        for uuid in &self.uuids {
            let Some(reading) = sample.iter().find(|reading| reading.uuid == *uuid) else { continue };
            seen += 1;
            state.fault = state.fault.or_else(|| Some((uuid.clone(), healths.fenced(uuid)?)));
            state.capability = state.capability.min(capability(reading));
            let utilisation = reading.sm_utilisation.value().filter(|share| !share.is_nan());
            state.utilisation = state.utilisation.into_iter().chain(utilisation).reduce(f64::max);
            let processes = reading.processes.clone().value().unwrap_or_default();
            state.engine_seen &= processes.into_iter().any(&is_engine);
        }
        if seen == 0 {
            return None;
        }
        state.engine_seen &= seen == self.uuids.len();
        let left = share_left(now_ms.saturating_sub(self.at_ms) as f64, CAPABILITY_HALF_LIFE_MS);
        let before = self.capability.unwrap_or(state.capability);
        state.capability += (before - state.capability) * left;
        (self.capability, self.at_ms) = (Some(state.capability), now_ms);
        Some(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Reading, Throttle};

    fn device(uuid: &str, clock: u32, utilisation: f64, processes: &[u32]) -> DeviceReading {
        DeviceReading {
            throttle: Reading::Value(Throttle::from_bits(0x40)),
            sm_clock_mhz: Reading::Value(clock),
            sm_clock_max_mhz: Reading::Value(1000),
            sm_utilisation: Reading::Value(utilisation),
            processes: Reading::Value(processes.to_vec()),
            ..DeviceReading::of(uuid)
        }
    }

    fn group() -> Group {
        Group::new(vec!["a".into(), "b".into()])
    }

    fn observe(group: &mut Group, sample: &[DeviceReading], engine: u32, now_ms: u64) -> Option<GroupState> {
        let mut healths = Healths::default();
        healths.observe(sample, now_ms);
        group.observe(sample, &healths, |pid| pid == engine, now_ms)
    }

    #[test]
    fn the_worst_of_them_counts() {
        let sample =
            [device("a", 900, 0.2, &[7]), device("b", 500, 0.7, &[9, 7]), device("c", 100, 1.0, &[7])];
        let state = observe(&mut group(), &sample, 7, 0).unwrap();
        let expected = GroupState { fault: None, capability: 0.5, utilisation: Some(0.7), engine_seen: true };
        assert_eq!(state, expected);
        assert!(!observe(&mut group(), &sample, 9, 0).unwrap().engine_seen, "not on all of them");
        assert!(!observe(&mut group(), &sample[..1], 7, 0).unwrap().engine_seen, "one is not listed");
    }

    #[test]
    fn any_that_is_lost_fences() {
        let lost = DeviceReading { sm_utilisation: Reading::Lost, ..device("b", 1000, 0.0, &[]) };
        let state = observe(&mut group(), &[device("a", 1000, 0.0, &[]), lost], 7, 0).unwrap();
        assert_eq!(state.fault, Some(("b".to_owned(), Fault::Lost)));
    }

    #[test]
    fn what_cannot_be_read_is_neutral() {
        let blind = ["a", "b"].map(|uuid| DeviceReading {
            sm_utilisation: Reading::NotSupported,
            processes: Reading::NoPermission,
            ..DeviceReading::of(uuid)
        });
        let state = observe(&mut group(), &blind, 7, 0).unwrap();
        assert_eq!(state, GroupState { fault: None, capability: 1.0, utilisation: None, engine_seen: false });
        assert_eq!(observe(&mut group(), &[], 7, 0), None);
    }

    #[test]
    fn capability_moves_over_seconds() {
        let mut group = group();
        let mut at =
            |clock, now| observe(&mut group, &[device("a", clock, 0.0, &[])], 7, now).unwrap().capability;
        assert_eq!(at(1000, 0), 1.0);
        assert!((at(500, 2_000) - 0.75).abs() < 1e-12);
        assert!(at(500, 60_000) < 0.501);
    }
}
