//! CPU time of the calling thread, summed up.

use std::{mem, time::Duration};

use crate::clock::cpu_time;

#[derive(Default)]
pub(super) struct Stopwatch {
    spent: Duration,
}

impl Stopwatch {
    /// Adds the time that `work` takes.
    pub(super) fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = cpu_time();
        let result = work();
        self.spent += cpu_time() - start;
        result
    }

    /// The sum, from which the next one starts anew.
    pub(super) fn take(&mut self) -> Duration {
        mem::take(&mut self.spent)
    }
}
