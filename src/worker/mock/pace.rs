//! How long a step takes.

use std::time::Duration;

use tokio::time::Instant;

use super::scheduler::Step;

/// The configured speeds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speed {
    pub(super) step_overhead: Duration,
    pub(super) prefill_tokens_per_second: f64,
    pub(super) decode_tokens_per_second: f64,
    pub(super) speedup: f64,
}

impl Speed {
    /// Overhead, plus the prompt tokens at the prefill speed, plus one token's time at the decode speed if
    /// anything decodes (the batch decodes together); all divided by the speedup.
    pub(super) fn duration(&self, step: Step) -> Duration {
        let mut seconds = self.step_overhead.as_secs_f64();
        seconds += step.prefill_tokens as f64 / self.prefill_tokens_per_second;
        if step.decoding > 0 {
            seconds += 1.0 / self.decode_tokens_per_second;
        }
        Duration::try_from_secs_f64(seconds / self.speedup).unwrap_or(LONGEST_STEP).min(LONGEST_STEP)
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

    use super::{Speed, Step};

    #[test]
    fn a_step_costs_its_prompt_tokens_and_one_decode_whatever_the_batch() {
        let speed = Speed {
            step_overhead: Duration::from_millis(2),
            prefill_tokens_per_second: 1000.0,
            decode_tokens_per_second: 100.0,
            speedup: 2.0,
        };
        let idle = speed.duration(Step::default());
        assert_eq!(idle, Duration::from_millis(1));
        assert_eq!(speed.duration(Step { prefill_tokens: 8, decoding: 0 }), Duration::from_millis(5));
        let one = speed.duration(Step { prefill_tokens: 0, decoding: 1 });
        assert_eq!(one, Duration::from_millis(6));
        assert_eq!(speed.duration(Step { prefill_tokens: 0, decoding: 64 }), one);
    }
}
