//! One writer and one reader at once.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use super::{Latencies, Samples, ingest, latencies::OF_LOOKUPS};
use crate::{adapter::Opened, workload::Workload};

/// Applies the first half of the operations, then the second half while a reader looks up, over and over, the prompts
/// that arrive during it.
///
/// All events of the second half are made beforehand, so that the writer never pauses.
pub(super) fn measure(workload: &Workload, samples: &mut Samples) {
    if workload.late.is_empty() {
        return;
    }
    let Opened { index, mut writer } = samples.contestant.open(workload);
    let (half, all) = (workload.ops.len() / 2, workload.ops.len());
    ingest(&mut *writer, workload, 0..half);
    writer.load(workload, half..all);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reader = index.reader();
            let mut latencies = Latencies::default();
            for &prompt in workload.late.iter().cycle() {
                // Relaxed: one lookup more or less is the same to everybody.
                if stop.load(Relaxed) {
                    break;
                }
                reader.load(workload.hashes(prompt));
                latencies.time(|| reader.lookup());
            }
            latencies
        });
        writer.apply();
        let spent = writer.finish();
        stop.store(true, Relaxed);
        samples.mixed_writer.push((all - half) as f64 / spent.as_secs_f64() / 1e6);
        let mut latencies = reader.join().unwrap_or_default();
        latencies.sort();
        samples.mixed_lookup.push(latencies.mean(OF_LOOKUPS));
    });
}
