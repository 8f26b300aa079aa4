//! What the engine counts about itself.

use std::sync::atomic::{AtomicU64, Ordering};

use super::scheduler::{Finish, Outcome, Scheduler, Tally};

/// Gauges and counters, written by the engine loop alone and read by anyone.
///
/// Relaxed throughout: each number stands for itself, and nothing else is published through them.
#[derive(Debug, Default)]
pub(super) struct Stats {
    pub(super) running: Cell,
    pub(super) waiting: Cell,
    pub(super) used_blocks: Cell,
    pub(super) cached_blocks: Cell,
    pub(super) queried_tokens: Cell,
    pub(super) hit_tokens: Cell,
    pub(super) prompt_tokens: Cell,
    pub(super) cached_prompt_tokens: Cell,
    pub(super) generated_tokens: Cell,
    pub(super) preemptions: Cell,
    pub(super) finished_stop: Cell,
    pub(super) finished_length: Cell,
    pub(super) finished_abort: Cell,
}

/// One number.
#[derive(Debug, Default)]
pub(super) struct Cell(AtomicU64);

impl Cell {
    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, value: usize) {
        self.0.store(value as u64, Ordering::Relaxed);
    }

    fn add(&self, value: usize) {
        self.0.fetch_add(value as u64, Ordering::Relaxed);
    }
}

impl Stats {
    /// Takes over the scheduler's state after a step; its tally starts again from zero.
    pub(super) fn record(&self, scheduler: &mut Scheduler) {
        self.running.set(scheduler.running());
        self.waiting.set(scheduler.waiting());
        self.used_blocks.set(scheduler.cache().used());
        self.cached_blocks.set(scheduler.cache().cached());
        let tally = std::mem::take(&mut scheduler.tally);
        let Tally { queried_tokens, hit_tokens, prompt_tokens, cached_prompt_tokens, preemptions, abandoned } =
            tally;
        self.queried_tokens.add(queried_tokens);
        self.hit_tokens.add(hit_tokens);
        self.prompt_tokens.add(prompt_tokens);
        self.cached_prompt_tokens.add(cached_prompt_tokens);
        self.preemptions.add(preemptions);
        self.finished_abort.add(abandoned);
    }

    pub(super) fn record_output(&self, outcome: &Outcome) {
        self.generated_tokens.add(outcome.produced.len());
        let stopped = outcome.finished.iter().filter(|&&finish| finish == Finish::Stop).count();
        self.finished_stop.add(stopped);
        self.finished_length.add(outcome.finished.len() - stopped);
    }
}
