//! What is known of the devices under one slot.

use std::sync::{Arc, atomic::Ordering};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tracing::{info, warn};

use super::{
    device_report::{DeviceReport, FaultReport, RankDevices, ReportError},
    registry::Fleet,
    view::RankMember,
};
use crate::{
    device::{Condition, External, Weights},
    slot::WorkerId,
};

/// The last report of a rank's devices, folded with what this router sent there. Written with every heartbeat, read by
/// every request, which never waits for a writer.
#[derive(Debug, Default)]
pub struct DeviceStatus {
    told: ArcSwapOption<DeviceState>,
    external: Mutex<External>,
}

/// A report as it stands.
#[derive(Clone, PartialEq, Debug)]
pub struct DeviceState {
    /// What was told.
    pub devices: RankDevices,
    /// The share of time that the busiest device works for others, 0 to 1.
    pub external_load: f64,
    /// When the sample was taken, in milliseconds on the fleet's clock.
    pub sampled_ms: u64,
}

/// What changed with a report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum FaultChange {
    Appeared(FaultReport),
    Gone(FaultReport),
}

impl DeviceStatus {
    /// Takes a report in. `requests` are those in flight from here, `sent` all that were ever sent.
    pub(super) fn report(
        &self,
        devices: RankDevices,
        sampled_ms: u64,
        requests: u32,
        sent: u64,
    ) -> Option<FaultChange> {
        let mut external = self.external.lock();
        let own = external.own_requests(requests, sent);
        external.observe(devices.utilisation.filter(|_| devices.engine_seen), own, sampled_ms);
        let external_load = external.load();
        let fault = devices.fault.clone();
        let state = Arc::new(DeviceState { devices, external_load, sampled_ms });
        // Under the lock, so that reports are not swapped.
        let before = self.told.swap(Some(state)).and_then(|before| before.devices.fault.clone());
        match (before, fault) {
            (None, Some(fault)) => Some(FaultChange::Appeared(fault)),
            (Some(fault), None) => Some(FaultChange::Gone(fault)),
            (Some(old), Some(new)) if old != new => Some(FaultChange::Appeared(new)),
            _ => None,
        }
    }

    /// The last report, if there was any.
    #[must_use]
    pub fn state(&self) -> Option<Arc<DeviceState>> {
        self.told.load_full()
    }

    /// What selection is told, at `now_ms` on the fleet's clock.
    #[must_use]
    pub fn condition(&self, now_ms: u64) -> Option<Condition> {
        let told = self.told.load();
        let state = told.as_ref()?;
        let age_ms = now_ms.saturating_sub(state.sampled_ms);
        Some(Condition { capability: state.devices.capability, external_load: state.external_load, age_ms })
    }

    /// Whether a fault keeps requests away at `now_ms`. It does not for ever: with the sample it grows old.
    #[must_use]
    pub fn fenced(&self, weights: &Weights, now_ms: u64) -> bool {
        let told = self.told.load();
        let Some(state) = told.as_ref().filter(|_| weights.enabled) else { return false };
        let age_ms = now_ms.saturating_sub(state.sampled_ms);
        state.devices.fault.is_some() && weights.freshness(age_ms) > 0.0
    }
}

impl Fleet {
    /// Takes in what a worker tells of its devices. False if there is no such worker.
    ///
    /// # Errors
    /// See [`ReportError`]; nothing is taken in then.
    pub fn report_devices(&self, id: WorkerId, report: DeviceReport) -> Result<bool, ReportError> {
        let view = self.view();
        let Some(worker) = view.worker(id) else { return Ok(false) };
        let report = report.checked(worker.spec.ranks)?;
        let sampled_ms = self.now_ms().saturating_sub(report.age_ms);
        for (position, (_, member)) in view.ranks_of(id).enumerate() {
            let Some(devices) = report.rank(position) else { continue };
            let requests = member.cohort.selector.loads().get(member.slot).requests;
            // Relaxed: a statistic, of which a moment's delay is nothing.
            let sent = member.tally.chosen.load(Ordering::Relaxed);
            if let Some(change) = member.devices.report(devices.clone(), sampled_ms, requests, sent) {
                change.say(member, member.fenced(self.now_ms()));
            }
        }
        Ok(true)
    }
}

impl FaultChange {
    fn say(&self, member: &RankMember, fenced: bool) {
        let (worker, rank) = (member.worker.id, member.rank);
        match self {
            Self::Appeared(FaultReport { gpu, reason }) => {
                warn!(%worker, %rank, gpu, reason, fenced, "a GPU of a worker is at fault");
            }
            Self::Gone(FaultReport { gpu, reason }) => {
                info!(%worker, %rank, gpu, reason, fenced, "a GPU of a worker is well again");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(utilisation: f64, engine_seen: bool) -> RankDevices {
        RankDevices { utilisation: Some(utilisation), engine_seen, capability: 0.5, ..RankDevices::default() }
    }

    fn at_fault() -> RankDevices {
        let fault = FaultReport { gpu: "GPU-a".to_owned(), reason: "lost".to_owned() };
        RankDevices { fault: Some(fault), ..RankDevices::default() }
    }

    #[test]
    fn utilisation_counts_only_if_it_is_the_engine_s_and_not_ours() {
        let load = |devices: RankDevices, requests, sent| {
            let status = DeviceStatus::default();
            status.report(devices, 0, requests, sent);
            status.state().unwrap().external_load
        };
        assert_eq!(load(told(0.8, true), 0, 0), 0.8);
        assert_eq!(load(told(0.8, false), 0, 0), 0.0, "perhaps another worker's device");
        assert_eq!(load(told(0.8, true), 2, 0), 0.0, "a request of ours is there");
        assert_eq!(load(told(0.8, true), 0, 1), 0.0, "one was there a moment ago");
    }

    #[test]
    fn a_fault_fences_until_it_is_gone_or_old_and_only_where_devices_have_a_say() {
        let (status, weights) = (DeviceStatus::default(), Weights::default());
        assert!(!status.fenced(&weights, 0));
        assert!(matches!(status.report(at_fault(), 1000, 0, 0), Some(FaultChange::Appeared(_))));
        assert_eq!(status.report(at_fault(), 1000, 0, 0), None);
        assert!(status.fenced(&weights, 1000) && status.fenced(&weights, 30_999));
        assert!(!status.fenced(&weights, 31_000), "nobody has heard of it for long");
        assert!(!status.fenced(&Weights { enabled: false, ..weights }, 1000));
        assert!(matches!(status.report(told(0.0, true), 2000, 0, 0), Some(FaultChange::Gone(_))));
        assert!(!status.fenced(&weights, 2000));
    }

    #[test]
    fn selection_is_told_how_old_it_is() {
        let status = DeviceStatus::default();
        assert_eq!(status.condition(5), None);
        status.report(told(0.0, true), 1000, 0, 0);
        let condition = status.condition(4000).unwrap();
        assert_eq!((condition.capability, condition.age_ms), (0.5, 3000));
    }
}
