//! Who gets a request, in the fleet that makes the workloads: a plain cache-aware rule, no product's.

use fastrand::Rng;
use rustc_hash::FxHashMap;

/// Bits for 256 workers.
type Workers = [u64; 4];

/// Knows which worker holds what, and roughly who is busy.
pub(super) struct Router {
    holders: FxHashMap<u64, Workers>,
    /// Blocks of prefill that a worker is thought to have before it.
    load: Vec<f64>,
    /// The mean work of a request, which is also what the fleet gets done until the next one comes.
    mean_work: Option<f64>,
}

impl Router {
    pub(super) fn new(workers: u32) -> Self {
        Self { holders: FxHashMap::default(), load: vec![0.0; workers as usize], mean_work: None }
    }

    pub(super) fn add(&mut self, name: u64, worker: u32) {
        let holders = self.holders.entry(name).or_default();
        holders[worker as usize / 64] |= 1 << (worker % 64);
    }

    pub(super) fn remove(&mut self, name: u64, worker: u32) {
        if let Some(holders) = self.holders.get_mut(&name) {
            holders[worker as usize / 64] &= !(1 << (worker % 64));
            if *holders == [0; 4] {
                self.holders.remove(&name);
            }
        }
    }

    /// The worker with the least blocks to compute, its own load included, ties at random; and how many leading
    /// blocks it holds.
    pub(super) fn route(&mut self, names: &[u64], rng: &mut Rng) -> (u32, usize) {
        let overlaps = self.overlaps(names);
        let mut best = (f64::INFINITY, 0, 0);
        for (worker, (&overlap, load)) in overlaps.iter().zip(&self.load).enumerate() {
            let cost = (names.len() - overlap) as f64 + load;
            let tie = rng.u64(..);
            if cost < best.0 - 1e-9 || (cost < best.0 + 1e-9 && tie > best.2) {
                best = (cost, worker, tie);
            }
        }
        let hit = overlaps[best.1];
        self.book(best.1, (names.len() - hit) as f64);
        (best.1 as u32, hit)
    }

    fn overlaps(&self, names: &[u64]) -> Vec<usize> {
        let mut overlaps = vec![0; self.load.len()];
        let mut alive: Workers = [u64::MAX; 4];
        for (position, name) in names.iter().enumerate() {
            let Some(holders) = self.holders.get(name) else { break };
            for (word, (alive, holders)) in alive.iter_mut().zip(holders).enumerate() {
                *alive &= holders;
                let mut left = *alive;
                while left != 0 {
                    overlaps[word * 64 + left.trailing_zeros() as usize] = position + 1;
                    left &= left - 1;
                }
            }
            if alive == [0; 4] {
                break;
            }
        }
        overlaps
    }

    fn book(&mut self, worker: usize, work: f64) {
        let mean = self.mean_work.map_or(work, |mean| 0.99 * mean + 0.01 * work);
        self.mean_work = Some(mean);
        self.load[worker] += work;
        let done = mean / self.load.len() as f64;
        for load in &mut self.load {
            *load = (*load - done).max(0.0);
        }
    }
}
