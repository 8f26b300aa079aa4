//! All runs of a simulation: each policy at each rate with each seed.

use std::{
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;

use super::source::Source;
use crate::{
    hash::BlockSizeError,
    simulate::{Figures, Policy, Setting, Workload, run},
};

/// What is to be run.
#[derive(Debug)]
pub(super) struct Sweep {
    pub(super) source: Source,
    pub(super) setting: Setting,
    pub(super) policies: Vec<Policy>,
    pub(super) rates: Vec<f64>,
    pub(super) seeds: Vec<u64>,
}

/// One policy's runs at one rate, in order of the seeds.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) policy: String,
    pub(super) rate: f64,
    pub(super) runs: Vec<Figures>,
    /// Requests of all runs that nobody served, and answers that broke off.
    pub(super) unserved: usize,
    pub(super) broken: usize,
}

impl Row {
    /// The mean over the runs, and how far they lie apart (standard deviation).
    pub(super) fn over(&self, of: impl Fn(&Figures) -> f64) -> (f64, f64) {
        let count = self.runs.len().max(1) as f64;
        let mean = self.runs.iter().map(&of).sum::<f64>() / count;
        let squares: f64 = self.runs.iter().map(|run| (of(run) - mean).powi(2)).sum();
        (mean, (squares / count).sqrt())
    }
}

/// One run: positions of its rate, seed and policy.
#[derive(Clone, Copy)]
struct Position {
    rate: usize,
    seed: usize,
    policy: usize,
}

/// What a run came to: its figures, and how many requests nobody served or broke off.
type Ran = (Figures, usize, usize);

impl Sweep {
    /// Runs everything, `jobs` runs at a time. Which thread runs what changes nothing in what comes of it.
    pub(super) fn run(&self, jobs: Option<NonZeroUsize>) -> Result<Vec<Row>, BlockSizeError> {
        let positions = self.positions();
        let jobs = jobs.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get);
        let bar = progress(positions.len());
        let next = AtomicUsize::new(0);
        // One a rate and seed, made by the first run that needs it, and let go by the last.
        let workloads: Vec<_> =
            (0..self.rates.len() * self.seeds.len()).map(|_| Mutex::new(Shared::default())).collect();
        let results: Vec<_> = positions.iter().map(|_| Mutex::new(None)).collect();
        let work = || {
            // Relaxed: the counter hands out positions and orders nothing.
            while let Some(&position) = positions.get(next.fetch_add(1, Relaxed)) {
                let shared = &workloads[position.rate * self.seeds.len() + position.seed];
                let workload = shared.lock().take(self.policies.len(), || {
                    self.source.workload(self.rates[position.rate], self.seeds[position.seed])
                });
                let ran = self.one(&workload, position);
                *results[self.place(position)].lock() = Some(ran);
                bar.inc(1);
            }
        };
        thread::scope(|scope| {
            for _ in 1..jobs.min(positions.len()) {
                scope.spawn(work);
            }
            work();
        });
        bar.finish_and_clear();
        let results = results.into_iter().filter_map(Mutex::into_inner).collect::<Result<Vec<_>, _>>()?;
        Ok(self.rows(&results))
    }

    fn one(&self, workload: &Workload, position: Position) -> Result<Ran, BlockSizeError> {
        let policy = &self.policies[position.policy];
        let outcome = run(workload, policy, &self.setting, self.seeds[position.seed])?;
        Ok((outcome.figures(), outcome.unserved, outcome.broken))
    }

    /// All runs, those of one workload one after the other.
    fn positions(&self) -> Vec<Position> {
        let mut positions = Vec::new();
        for rate in 0..self.rates.len() {
            for seed in 0..self.seeds.len() {
                positions.extend((0..self.policies.len()).map(|policy| Position { rate, seed, policy }));
            }
        }
        positions
    }

    /// Where a run's result is: by rate, policy and seed, in the order of the rows.
    const fn place(&self, Position { rate, seed, policy }: Position) -> usize {
        (rate * self.policies.len() + policy) * self.seeds.len() + seed
    }

    fn rows(&self, results: &[Ran]) -> Vec<Row> {
        let names =
            self.rates.iter().flat_map(|&rate| self.policies.iter().map(move |policy| (rate, policy)));
        let rows = names.zip(results.chunks(self.seeds.len().max(1)));
        rows.map(|((rate, policy), runs)| Row {
            policy: policy.name.clone(),
            rate,
            runs: runs.iter().map(|&(figures, ..)| figures).collect(),
            unserved: runs.iter().map(|&(_, unserved, _)| unserved).sum(),
            broken: runs.iter().map(|&(.., broken)| broken).sum(),
        })
        .collect()
    }
}

/// A workload while runs need it.
#[derive(Default)]
struct Shared {
    workload: Option<Arc<Workload>>,
    taken: usize,
}

impl Shared {
    fn take(&mut self, users: usize, make: impl FnOnce() -> Workload) -> Arc<Workload> {
        self.taken += 1;
        let workload = Arc::clone(self.workload.get_or_insert_with(|| Arc::new(make())));
        if self.taken == users {
            self.workload = None;
        }
        workload
    }
}

/// Drawn on a terminal and nowhere else.
fn progress(runs: usize) -> ProgressBar {
    let bar = ProgressBar::new(runs as u64);
    // The template is a constant; were it wrong, the default style would do.
    if let Ok(style) = ProgressStyle::with_template("simulating {bar:40} {pos}/{len} runs, {elapsed}") {
        bar.set_style(style);
    }
    bar
}
