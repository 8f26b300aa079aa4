//! What samples of GPUs tell the router.

use std::time::Duration;

use super::{Run, Unit, What};
use crate::simulate::outcome::Fence;

/// The time between two samples.
const EVERY: Duration = Duration::from_secs(1);

impl Run<'_> {
    /// Samples the GPUs of all engines that are there, and has the next sample taken while there is anything to see.
    pub(super) fn sample(&mut self) {
        let now_ms = u64::try_from(self.now.as_millis()).unwrap_or(u64::MAX);
        for engine in 0..self.units.len() {
            let load = self.router.load_of(engine);
            let unit = &mut self.units[engine];
            let before = unit.gpu.told().is_some_and(|told| told.fault);
            let Some(told) = unit.gpu.sample(load, now_ms).filter(|_| unit.present) else { continue };
            if told.fault != before {
                self.fences.push(Fence { at: self.now.as_secs_f64(), engine, up: told.fault });
            }
            self.router.tell(engine, told);
        }
        let heals = |unit: &Unit| !unit.gpu.lost && unit.gpu.told().is_some_and(|told| told.fault);
        if !self.agenda.is_empty() || self.units.iter().any(heals) {
            self.agenda.put(self.now + EVERY, What::Sample);
        }
    }

    /// The GPU of an engine is gone: what it computes comes to no end.
    pub(super) fn lose_gpu(&mut self, engine: usize) {
        self.units[engine].gpu.lost = true;
    }

    /// It is back, and goes on where it was.
    pub(super) fn regain_gpu(&mut self, engine: usize) {
        let unit = &mut self.units[engine];
        unit.gpu.lost = false;
        if std::mem::take(&mut unit.overdue) {
            self.agenda.put(self.now, What::StepEnds { engine, life: unit.life });
        } else {
            self.wake(engine);
        }
    }
}
