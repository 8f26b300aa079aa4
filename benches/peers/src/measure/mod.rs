//! What is measured, and when.
//!
//! Within a repetition the indexes take turns at every checkpoint, and the next repetition goes through them backwards:
//! whatever disturbs the machine disturbs all of them. A ratio is one of the same repetition.

mod effort;
mod latencies;
mod mixed;
mod quiet;
mod readers;

use std::{ops::Range, time::Duration};

pub(crate) use effort::Effort;
pub(crate) use latencies::Latencies;

use crate::{
    adapter::{Contestant, Hashing, Writer},
    workload::Workload,
};

/// What one index did; one number a repetition in each list.
pub(crate) struct Samples {
    pub(crate) contestant: Contestant,
    /// Lookups between two stretches of events, in nanoseconds.
    pub(crate) lookup_p50: Vec<f64>,
    pub(crate) lookup_p99: Vec<f64>,
    pub(crate) lookup_mean: Vec<f64>,
    /// Hashing and lookup in one call, in nanoseconds, behind each hashing that was tried.
    pub(crate) tokens_to_scores: Vec<(Hashing, Vec<f64>)>,
    /// Million blocks stored or removed in a second of CPU time, nobody reading.
    pub(crate) ingest: Vec<f64>,
    /// Lookups beside a writer, in nanoseconds; and the events, in millions, that it applied in a second of CPU time. Empty
    /// where the workload has too few events.
    pub(crate) mixed_lookup: Vec<f64>,
    pub(crate) mixed_writer: Vec<f64>,
    /// Million lookups a second by one thread, and by two together.
    pub(crate) one_reader: Vec<f64>,
    pub(crate) two_readers: Vec<f64>,
}

impl Samples {
    fn new(contestant: Contestant) -> Self {
        let tokens_to_scores = contestant.hashings().iter().map(|&hashing| (hashing, Vec::new())).collect();
        Self {
            contestant,
            lookup_p50: Vec::new(),
            lookup_p99: Vec::new(),
            lookup_mean: Vec::new(),
            tokens_to_scores,
            ingest: Vec::new(),
            mixed_lookup: Vec::new(),
            mixed_writer: Vec::new(),
            one_reader: Vec::new(),
            two_readers: Vec::new(),
        }
    }
}

/// Measures all indexes on one workload, as often as `effort` says.
pub(crate) fn measure(workload: &Workload, effort: &Effort) -> Vec<Samples> {
    let mut all: Vec<Samples> = Contestant::ALL.into_iter().map(Samples::new).collect();
    for repetition in 0..effort.repetitions {
        let mut present: Vec<&mut Samples> =
            all.iter_mut().filter(|samples| repetition < effort.of(samples.contestant)).collect();
        if repetition % 2 == 1 {
            present.reverse();
        }
        quiet::measure(workload, &mut present);
        for samples in present {
            mixed::measure(workload, samples);
        }
    }
    all
}

/// Events that are made at once: about as many as a router decodes between two looks at its sockets, and few enough that
/// they are still in the cache when they are applied.
const BATCH: usize = 1_024;

/// Applies operations batch by batch; the CPU time of applying alone.
pub(crate) fn ingest(writer: &mut dyn Writer, workload: &Workload, ops: Range<usize>) -> Duration {
    for start in ops.clone().step_by(BATCH) {
        writer.load(workload, start..(start + BATCH).min(ops.end));
        writer.apply();
    }
    writer.finish()
}
