//! How long a step takes.

use std::time::Duration;

use tokio::time::Instant;

use crate::simulate::{Batch, StepTimes};

/// The configured speeds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speed {
    pub(super) times: StepTimes,
    pub(super) speedup: f64,
}

impl Speed {
    pub(super) fn duration(&self, step: &Batch) -> Duration {
        let seconds = self.times.seconds(step) / self.speedup;
        Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST_STEP).min(LONGEST_STEP)
    }
}

const LONGEST_STEP: Duration = Duration::from_secs(3600);

/// Sleeps shorter than this are put off and added up: timers are no finer.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

/// How far the engine may run to catch up after a sleep that took too long.
const CATCH_UP: Duration = Duration::from_millis(20);

/// The engine's own clock: when the steps so far should have ended.
#[derive(Debug)]
pub(super) struct Pace {
    due: Instant,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { due: Instant::now() }
    }

    /// After a pause: idle time is not made up for.
    pub(super) fn restart(&mut self) {
        self.due = self.due.max(Instant::now());
    }

    /// Lets one step's time pass. Always gives other tasks a turn.
    pub(super) async fn spend(&mut self, step: Duration) {
        let now = Instant::now();
        self.due = self.due.max(now.checked_sub(CATCH_UP).unwrap_or(now)) + step;
        if self.due.saturating_duration_since(now) >= SHORTEST_SLEEP {
            tokio::time::sleep_until(self.due).await;
        } else {
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Batch, Speed, StepTimes};

    #[test]
    fn a_step_takes_what_its_times_say_over_the_speedup() {
        let speed = Speed { times: StepTimes::flat(2e-3, 1000.0, 100.0), speedup: 2.0 };
        let mut step = Batch::default();
        assert_eq!(speed.duration(&step), Duration::from_millis(1));
        step.prefill(8, 0);
        assert_eq!(speed.duration(&step), Duration::from_millis(5));
        step.decode(10);
        assert_eq!(speed.duration(&step), Duration::from_millis(10));
        let never = Speed { speedup: 1e-30, ..speed };
        assert_eq!(never.duration(&step), super::LONGEST_STEP);
    }
}
