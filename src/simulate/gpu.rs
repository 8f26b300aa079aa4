//! The GPU of an engine: what a sample of it says, and what the samples come to.

use crate::{
    device::{Condition, DeviceReading, External, Group, Healths, Reading, Throttle},
    load::SlotLoad,
};

/// The highest clocks, in MHz. Only their ratio to those of now counts.
const SM_CLOCK: f64 = 1980.0;
const MEMORY_CLOCK: u32 = 2619;

/// What a busy GPU says of its utilisation, whatever its clocks: it only tells that some kernel ran.
const BUSY: f64 = 0.98;

/// NVML's bit for heat, as the hardware sees it.
const HOT: u64 = 0x40;

/// The process of the engine.
const ENGINE: u32 = 1;

/// One engine's GPU, and the fold of its samples that live routing has, too.
#[derive(Debug)]
pub(super) struct Gpu {
    /// What its clocks are held at, of their highest.
    pub(super) clocks: f64,
    /// It fell off its bus.
    pub(super) lost: bool,
    health: Healths,
    group: Group,
    external: External,
    sent: u64,
    told: Option<Told>,
}

/// What the router is told.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Told {
    pub(super) condition: Condition,
    /// A fault keeps requests away.
    pub(super) fault: bool,
}

impl Told {
    /// A healthy one that is capable of so much.
    pub(super) const fn capable(capability: f64) -> Self {
        Self { condition: Condition { capability, external_load: 0.0, age_ms: 0 }, fault: false }
    }
}

impl Gpu {
    pub(super) fn new() -> Self {
        Self {
            clocks: 1.0,
            lost: false,
            health: Healths::default(),
            group: Group::new(vec![String::new()]),
            external: External::default(),
            sent: 0,
            told: None,
        }
    }

    /// The router sends its engine a request.
    pub(super) const fn sent(&mut self) {
        self.sent += 1;
    }

    /// What the router was told last.
    pub(super) const fn told(&self) -> Option<Told> {
        self.told
    }

    /// Takes a sample while the router has `load` there.
    pub(super) fn sample(&mut self, load: SlotLoad, now_ms: u64) -> Option<Told> {
        let own = self.external.own_requests(load.requests, self.sent);
        let reading = self.reading(own > 0.0);
        let sample = [reading];
        self.health.observe(&sample, now_ms);
        let state = self.group.observe(&sample, &self.health, |process| process == ENGINE, now_ms)?;
        self.external.observe(state.utilisation.filter(|_| state.engine_seen), own, now_ms);
        let external_load = self.external.load();
        let condition = Condition { capability: state.capability, external_load, age_ms: 0 };
        self.told = Some(Told { condition, fault: state.fault.is_some() });
        self.told
    }

    fn reading(&self, busy: bool) -> DeviceReading {
        if self.lost {
            return DeviceReading { missing: true, ..DeviceReading::default() };
        }
        let throttle = Throttle::from_bits(if self.clocks < 1.0 { HOT } else { 0 });
        DeviceReading {
            sm_utilisation: Reading::Value(if busy { BUSY } else { 0.0 }),
            sm_clock_mhz: Reading::Value((SM_CLOCK * self.clocks).round() as u32),
            sm_clock_max_mhz: Reading::Value(SM_CLOCK as u32),
            memory_clock_mhz: Reading::Value(MEMORY_CLOCK),
            memory_clock_max_mhz: Reading::Value(MEMORY_CLOCK),
            throttle: Reading::Value(throttle),
            processes: Reading::Value(vec![ENGINE]),
            ..DeviceReading::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy() -> SlotLoad {
        SlotLoad { requests: 3, ..SlotLoad::default() }
    }

    #[test]
    fn throttled_clocks_show_over_seconds_and_utilisation_says_nothing() {
        let mut gpu = Gpu::new();
        gpu.clocks = 0.35;
        let told: Vec<_> = (0..20).map(|at| gpu.sample(busy(), 1000 * at).unwrap()).collect();
        assert!((told[19].condition.capability - 0.35).abs() < 1e-3, "{told:?}");
        assert!(told.iter().all(|told| told.condition.external_load == 0.0 && !told.fault));
        gpu.clocks = 1.0;
        let healed = gpu.sample(busy(), 30_000).unwrap().condition.capability;
        assert!(healed > 0.95, "{healed}");
    }

    #[test]
    fn a_lost_one_is_at_fault_at_once_and_until_it_was_clean_for_a_while() {
        let mut gpu = Gpu::new();
        assert!(!gpu.sample(busy(), 0).unwrap().fault);
        gpu.lost = true;
        assert!(gpu.sample(busy(), 1000).unwrap().fault);
        gpu.lost = false;
        let clean = (2..).take_while(|at| gpu.sample(busy(), 1000 * at).unwrap().fault).count();
        assert_eq!(clean, 4, "the fifth clean sample ends it");
    }
}
