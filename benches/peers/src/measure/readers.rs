//! Does a second reader slow the first one down?

use std::{sync::Barrier, thread};

use super::{Latencies, latencies::OF_LOOKUPS};
use crate::{
    adapter::Index,
    workload::{PromptId, Workload},
};

/// Looks every prompt of the checkpoints up twice in one thread, then in two at once, on the end state: million lookups
/// a second, of both threads together. Only the time inside the calls counts. Caches are warm, for all indexes alike.
pub(super) fn measure(workload: &Workload, index: &dyn Index) -> (f64, f64) {
    let prompts: Vec<PromptId> =
        workload.checkpoints.iter().flat_map(|checkpoint| checkpoint.prompts.iter().copied()).collect();
    let mut turned = prompts.clone();
    turned.rotate_left(prompts.len() / 2);
    let one = rate(workload, index, &prompts, &Barrier::new(1));
    let start = Barrier::new(2);
    let two = thread::scope(|scope| {
        let other = scope.spawn(|| rate(workload, index, &turned, &start));
        rate(workload, index, &prompts, &start) + other.join().unwrap_or(f64::NAN)
    });
    (one, two)
}

fn rate(workload: &Workload, index: &dyn Index, prompts: &[PromptId], start: &Barrier) -> f64 {
    let mut reader = index.reader();
    let mut pass = |latencies: &mut Latencies| {
        for &prompt in prompts {
            reader.load(workload.hashes(prompt));
            latencies.time(|| reader.lookup());
        }
    };
    pass(&mut Latencies::default());
    start.wait();
    let mut latencies = Latencies::default();
    pass(&mut latencies);
    pass(&mut latencies);
    latencies.sort();
    1e3 / latencies.mean(OF_LOOKUPS)
}
