//! Ingest and lookups, one after the other in one thread.

use std::time::Duration;

use super::{
    Latencies, Samples, ingest,
    latencies::{OF_LONG_CALLS, OF_LOOKUPS},
    readers,
};
use crate::{
    adapter::{Hashing, Opened, Reader},
    workload::{Checkpoint, Text, Workload},
};

/// Applies all operations, and at each checkpoint looks its prompts up: first by their hashes, then from tokens.
pub(super) fn measure(workload: &Workload, all: &mut [&mut Samples]) {
    let (indexes, mut writers): (Vec<_>, Vec<_>) = all
        .iter()
        .map(|samples| samples.contestant.open(workload))
        .map(|Opened { index, writer }| (index, writer))
        .unzip();
    let mut runs: Vec<Run<'_>> =
        indexes.iter().zip(all.iter()).map(|(index, samples)| Run::new(index.reader(), samples)).collect();
    let mut text = Text::new(workload.block_size);
    let mut applied = 0;
    for checkpoint in &workload.checkpoints {
        for (run, writer) in runs.iter_mut().zip(&mut writers) {
            run.ingest += ingest(&mut **writer, workload, applied..checkpoint.after);
            run.look_up(workload, checkpoint);
            run.look_tokens_up(workload, checkpoint, &mut text);
        }
        applied = checkpoint.after;
    }
    for ((run, index), samples) in runs.iter_mut().zip(&indexes).zip(all) {
        run.write_down(workload, samples);
        let (one, two) = readers::measure(workload, &**index);
        samples.one_reader.push(one);
        samples.two_readers.push(two);
    }
}

/// One index in one repetition.
struct Run<'a> {
    reader: Box<dyn Reader + 'a>,
    ingest: Duration,
    lookups: Latencies,
    /// Behind each hashing.
    tokens: Vec<(Hashing, Latencies)>,
}

impl<'a> Run<'a> {
    fn new(reader: Box<dyn Reader + 'a>, samples: &Samples) -> Self {
        let hashings = samples.contestant.hashings().iter();
        Self {
            reader,
            ingest: Duration::ZERO,
            lookups: Latencies::default(),
            tokens: hashings.map(|&hashing| (hashing, Latencies::default())).collect(),
        }
    }

    fn look_up(&mut self, workload: &Workload, checkpoint: &Checkpoint) {
        for &prompt in &checkpoint.prompts {
            self.reader.load(workload.hashes(prompt));
            self.lookups.time(|| self.reader.lookup());
        }
    }

    fn look_tokens_up(&mut self, workload: &Workload, checkpoint: &Checkpoint, text: &mut Text) {
        for (hashing, latencies) in &mut self.tokens {
            for &prompt in &checkpoint.prompts {
                let tokens = text.tokens(workload.segments(prompt));
                latencies.time(|| self.reader.lookup_tokens(*hashing, tokens));
            }
        }
    }

    fn write_down(&mut self, workload: &Workload, samples: &mut Samples) {
        let (stored, removed) = workload.size();
        samples.ingest.push((stored + removed) as f64 / self.ingest.as_secs_f64() / 1e6);
        self.lookups.sort();
        samples.lookup_p50.push(self.lookups.quantile(0.5));
        samples.lookup_p99.push(self.lookups.quantile(0.99));
        samples.lookup_mean.push(self.lookups.mean(OF_LOOKUPS));
        for ((_, latencies), (_, means)) in self.tokens.iter_mut().zip(&mut samples.tokens_to_scores) {
            latencies.sort();
            means.push(latencies.mean(OF_LONG_CALLS));
        }
    }
}
