//! Samples, folded per rank.

use crate::{
    device::{DeviceReading, Group, Healths, Visible},
    fleet::RankDevices,
};

/// The GPUs of the ranks of one engine, over their samples.
pub(crate) struct Watch {
    ranks: Vec<(Group, Vec<String>)>,
    faults: Vec<Option<String>>,
}

impl Watch {
    /// The watch over an engine's GPUs, which its ranks share out in order.
    pub(crate) fn new(uuids: &[String], ranks: u32) -> Self {
        let of_ranks = Visible::by_rank(uuids, ranks);
        let group = |uuids: Vec<String>| (Group::new(uuids.clone()), uuids);
        Self { ranks: of_ranks.into_iter().map(group).collect(), faults: Vec::new() }
    }

    /// Takes in a sample, which the devices' health has seen. Says what the devices of each rank come down to, and whether a
    /// fault came or went with it; nothing if none of them is in the sample.
    pub(crate) fn observe(
        &mut self,
        sample: &[DeviceReading],
        healths: &Healths,
        is_engine: impl Fn(u32) -> bool,
        now_ms: u64,
    ) -> Option<(Vec<RankDevices>, bool)> {
        let mut any = false;
        let mut devices = Vec::with_capacity(self.ranks.len());
        for (group, uuids) in &mut self.ranks {
            let state = group.observe(sample, healths, &is_engine, now_ms);
            any |= state.is_some();
            let told = state.map(|state| RankDevices::of(state, uuids, sample));
            devices.push(told.unwrap_or_default());
        }
        if !any {
            return None;
        }
        let fault =
            |rank: &RankDevices| rank.fault.as_ref().map(|fault| format!("{} {}", fault.gpu, fault.reason));
        let faults: Vec<_> = devices.iter().map(fault).collect();
        let changed = faults != self.faults;
        self.faults = faults;
        Some((devices, changed))
    }
}

/// The devices that an engine computes on as a whole: MIG instances, and GPUs without any.
pub(crate) fn whole_devices(sample: &[DeviceReading]) -> impl Iterator<Item = &DeviceReading> {
    let divided =
        |gpu: &DeviceReading| sample.iter().any(|device| device.parent.as_deref() == Some(gpu.uuid.as_str()));
    sample.iter().filter(move |device| !divided(device) && !device.missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Reading;

    fn gpu(uuid: &str, power: Reading<f64>) -> DeviceReading {
        DeviceReading { power_watts: power, ..DeviceReading::of(uuid) }
    }

    #[test]
    fn ranks_share_the_gpus_and_a_fault_is_the_rank_s_own() {
        let mut watch = Watch::new(&["a".to_owned(), "b".to_owned()], 2);
        let well = [gpu("a", Reading::Value(1.0)), gpu("b", Reading::Value(1.0))];
        let mut healths = Healths::default();
        let mut take = |sample: &[DeviceReading], now_ms| {
            healths.observe(sample, now_ms);
            watch.observe(sample, &healths, |_| false, now_ms)
        };
        let (ranks, changed) = take(&well, 0).unwrap();
        assert!(changed, "the first news is news");
        assert_eq!(ranks.iter().map(|rank| rank.gpus[0].uuid.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert!(!take(&well, 1).unwrap().1);
        let (ranks, changed) = take(&[gpu("a", Reading::Value(1.0)), gpu("b", Reading::Lost)], 2).unwrap();
        assert!(changed && ranks[0].fault.is_none());
        assert_eq!(ranks[1].fault.as_ref().unwrap().reason, "lost");
        assert_eq!(take(&[], 3), None);
    }

    #[test]
    fn a_divided_gpu_is_its_instances() {
        let whole = gpu("GPU-a", Reading::Unread);
        let mut instance = gpu("MIG-a", Reading::Unread);
        instance.inherit(&whole);
        let sample = [whole, instance, gpu("GPU-b", Reading::Unread)];
        let uuids: Vec<_> = whole_devices(&sample).map(|device| device.uuid.as_str()).collect();
        assert_eq!(uuids, ["MIG-a", "GPU-b"]);
    }
}
