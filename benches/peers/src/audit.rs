//! One pass of each index over a workload, untimed: are its answers right, and how much memory does it take?

use crate::{
    adapter::{Contestant, Opened, open_reference},
    allocator,
    measure::ingest,
    workload::{Text, Workload},
};

/// The right answers: for each checkpoint, for each prompt, (worker, blocks) in order of worker.
pub(crate) struct Truth {
    checkpoints: Vec<Vec<Vec<(u32, u32)>>>,
}

/// What one index got wrong, and what it takes.
pub(crate) struct Audit {
    pub(crate) contestant: Contestant,
    /// Pairs of a prompt and a worker, and those whose score is too high or too low.
    pub(crate) pairs: usize,
    pub(crate) too_high: usize,
    pub(crate) too_low: usize,
    /// Bytes that the index had asked for and not given back, at the end of the workload.
    pub(crate) bytes: f64,
}

impl Truth {
    /// Asks kvroute's literal index.
    pub(crate) fn of(workload: &Workload) -> Self {
        let mut checkpoints = Vec::new();
        replay(workload, open_reference(workload), |_, scores| checkpoints.push(scores));
        Self { checkpoints }
    }
}

/// Holds one index against the truth.
pub(crate) fn audit(workload: &Workload, contestant: Contestant, truth: &Truth) -> Audit {
    let prompts: usize = truth.checkpoints.iter().map(Vec::len).sum();
    let pairs = prompts * workload.workers as usize;
    let mut audit = Audit { contestant, pairs, too_high: 0, too_low: 0, bytes: 0.0 };
    allocator::start();
    let opened = contestant.open(workload);
    let opened = replay(workload, opened, |checkpoint, answers| {
        for (answer, right) in answers.iter().zip(&truth.checkpoints[checkpoint]) {
            audit.compare(workload, answer, right);
        }
    });
    audit.bytes = allocator::live() as f64;
    allocator::stop();
    audit.look_tokens_up(workload, &opened, truth);
    audit
}

impl Audit {
    /// Holds the lookups that begin with tokens against the truth too, for a few prompts of the end: they are right if all
    /// hashings give the same digests.
    fn look_tokens_up(&mut self, workload: &Workload, opened: &Opened, truth: &Truth) {
        let (Some(checkpoint), Some(right)) = (workload.checkpoints.last(), truth.checkpoints.last()) else {
            return;
        };
        let mut text = Text::new(workload.block_size);
        let mut reader = opened.index.reader();
        for &hashing in self.contestant.hashings() {
            for (&prompt, right) in checkpoint.prompts.iter().zip(right).take(20) {
                reader.lookup_tokens(hashing, text.tokens(workload.segments(prompt)));
                self.pairs += workload.workers as usize;
                self.compare(workload, &sorted(reader.scores()), right);
            }
        }
    }
    fn compare(&mut self, workload: &Workload, answer: &[(u32, u32)], right: &[(u32, u32)]) {
        if answer == right {
            return;
        }
        let dense = |scores: &[(u32, u32)]| {
            let mut dense = vec![0; workload.workers as usize];
            for &(worker, blocks) in scores {
                dense[worker as usize] = blocks;
            }
            dense
        };
        for (answer, right) in dense(answer).into_iter().zip(dense(right)) {
            self.too_high += usize::from(answer > right);
            self.too_low += usize::from(answer < right);
        }
    }
}

/// Applies all operations and hands the sorted answers of each checkpoint to `told`. Returns the index, which otherwise
/// would be gone before anybody can weigh it.
fn replay(
    workload: &Workload,
    Opened { index, mut writer }: Opened,
    mut told: impl FnMut(usize, Vec<Vec<(u32, u32)>>),
) -> Opened {
    let mut applied = 0;
    for (number, checkpoint) in workload.checkpoints.iter().enumerate() {
        ingest(&mut *writer, workload, applied..checkpoint.after);
        applied = checkpoint.after;
        let mut reader = index.reader();
        let answers = checkpoint.prompts.iter().map(|&prompt| {
            reader.load(workload.hashes(prompt));
            reader.lookup();
            sorted(reader.scores())
        });
        told(number, answers.collect());
    }
    Opened { index, writer }
}

fn sorted(mut scores: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    scores.sort_unstable();
    scores
}
