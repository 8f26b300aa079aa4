//! One engine: its queue, its batch, its steps.

use std::{collections::VecDeque, sync::Arc};

use super::{
    cache::Cache,
    model::{Batch, EngineModel},
    workload::Job,
};
use crate::hash::{BlockHash, SequenceHash};

/// A request at an engine.
#[derive(Debug)]
struct Sequence {
    id: usize,
    job: Arc<Job>,
    /// Tokens to be prefilled: the prompt, and what was generated before it was preempted.
    target: u64,
    computed: u64,
    generated: u64,
    /// Pages held: the leading ones that have a name, and the others.
    named: usize,
    private: usize,
    /// Prompt tokens that were found in the cache when it was first admitted.
    cached: Option<u64>,
}

/// What a step came to, known when it begins and seen when it ends.
#[derive(Debug, Default)]
pub(super) struct Step {
    pub(super) seconds: f64,
    /// Prompt tokens that it prefills.
    pub(super) prefill_tokens: u64,
    /// Pages that got a name, and those that were dropped before.
    pub(super) stored: Vec<NamedPage>,
    pub(super) dropped: Vec<SequenceHash>,
    /// Requests whose first token came, with the prompt tokens that were cached.
    pub(super) first_tokens: Vec<(usize, u64)>,
    pub(super) finished: Vec<usize>,
}

/// A page that others can find now.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamedPage {
    pub(super) before: Option<SequenceHash>,
    pub(super) name: SequenceHash,
    pub(super) content: BlockHash,
}

/// An engine, `factor` times as slow as its model.
#[derive(Debug)]
pub(super) struct Engine {
    model: EngineModel,
    factor: f64,
    page: u64,
    cache: Cache,
    waiting: VecDeque<Sequence>,
    /// In order of admission.
    running: Vec<Sequence>,
}

impl Engine {
    pub(super) fn new(model: EngineModel, factor: f64, page: u64) -> Self {
        let pages = usize::try_from(model.cache_tokens / page).unwrap_or(usize::MAX);
        let (waiting, running) = (VecDeque::new(), Vec::new());
        Self { model, factor, page, cache: Cache::new(pages), waiting, running }
    }

    pub(super) fn arrive(&mut self, id: usize, job: Arc<Job>) {
        let target = job.prompt_tokens.max(1);
        self.waiting.push_back(Sequence {
            id,
            job,
            target,
            computed: 0,
            generated: 0,
            named: 0,
            private: 0,
            cached: None,
        });
    }

    /// The next step; `None` if there is nothing to do, or nothing that fits.
    pub(super) fn step(&mut self) -> Option<Step> {
        let mut step = Step::default();
        let mut batch = Batch::default();
        let mut budget = self.model.step_tokens;
        self.grow_decoding();
        for sequence in self.running.iter().filter(|sequence| sequence.decodes()) {
            batch.decoding += 1;
            batch.context += sequence.length();
        }
        budget = budget.saturating_sub(batch.decoding);
        let mut chunks = vec![0; self.running.len()];
        for (sequence, chunk) in self.running.iter().zip(&mut chunks) {
            if !sequence.decodes() {
                *chunk = budget.min(sequence.target - sequence.computed);
                budget -= *chunk;
            }
        }
        while budget > 0 && self.running.len() < self.model.sequences && self.admit() {
            let chunk = self.running.last().map_or(0, |last| budget.min(last.target - last.computed));
            budget -= chunk;
            chunks.push(chunk);
        }
        if self.running.is_empty() {
            return None;
        }
        self.compute(&chunks, &mut batch, &mut step);
        step.dropped = self.cache.take_dropped();
        step.prefill_tokens = batch.prefill;
        step.seconds = self.factor * self.model.seconds(&batch);
        Some(step)
    }

    /// Gives every decoding sequence room for its next token; where there is none the youngest starts over.
    fn grow_decoding(&mut self) {
        let mut at = 0;
        while at < self.running.len() {
            let sequence = &self.running[at];
            let full = sequence.length() >= (sequence.named + sequence.private) as u64 * self.page;
            if !(sequence.decodes() && full) {
                at += 1;
            } else if self.cache.reserve(1) {
                self.running[at].private += 1;
                at += 1;
            } else if let Some(youngest) = self.running.pop() {
                self.preempt(youngest);
            }
        }
    }

    fn preempt(&mut self, mut sequence: Sequence) {
        self.cache.release(&sequence.job.sequence[..sequence.named], sequence.private);
        sequence.target = sequence.job.prompt_tokens + sequence.generated;
        (sequence.computed, sequence.named, sequence.private) = (0, 0, 0);
        self.waiting.push_front(sequence);
    }

    /// Admits the first that waits, with all pages of its prompt, if they fit.
    fn admit(&mut self) -> bool {
        let Some(first) = self.waiting.front() else { return false };
        // One token is always computed.
        let reusable = usize::try_from((first.target - 1) / self.page).unwrap_or(usize::MAX);
        let names = &first.job.sequence;
        let matched = self.cache.matched(&names[..reusable.min(names.len())]);
        names[..matched].iter().for_each(|&hash| self.cache.pin(hash));
        let pages = usize::try_from((first.target + 1).div_ceil(self.page)).unwrap_or(usize::MAX);
        if !self.cache.reserve(pages - matched) {
            self.cache.release(&names[..matched], 0);
            return false;
        }
        let Some(mut sequence) = self.waiting.pop_front() else { return false };
        sequence.computed = matched as u64 * self.page;
        (sequence.named, sequence.private) = (matched, pages - matched);
        sequence.cached.get_or_insert(sequence.computed);
        self.running.push(sequence);
        true
    }

    fn compute(&mut self, chunks: &[u64], batch: &mut Batch, step: &mut Step) {
        let Self { running, cache, page, .. } = self;
        for (sequence, &chunk) in running.iter_mut().zip(chunks) {
            if chunk > 0 {
                batch.prefill += chunk;
                batch.attended += chunk as f64 * (sequence.computed as f64 + chunk as f64 / 2.0);
                sequence.computed += chunk;
            } else if !sequence.decodes() {
                continue;
            }
            // Pages are found as soon as the step that computes them has begun.
            sequence.name_pages(cache, *page, step);
            if sequence.decodes() {
                if sequence.generated == 0 {
                    step.first_tokens.push((sequence.id, sequence.cached.unwrap_or(0)));
                }
                sequence.generated += 1;
            }
        }
        self.running.retain(|sequence| {
            let done = sequence.decodes() && sequence.generated >= sequence.job.output_tokens.max(1);
            if done {
                step.finished.push(sequence.id);
                self.cache.release(&sequence.job.sequence[..sequence.named], sequence.private);
            }
            !done
        });
    }
}

impl Sequence {
    /// Whether its prompt is prefilled.
    const fn decodes(&self) -> bool {
        self.computed >= self.target
    }

    /// Tokens of its prompt and output so far.
    fn length(&self) -> u64 {
        self.job.prompt_tokens + self.generated
    }

    fn name_pages(&mut self, cache: &mut Cache, page: u64, step: &mut Step) {
        let tokens = if self.decodes() { self.length() } else { self.computed };
        let full = usize::try_from(tokens / page).unwrap_or(usize::MAX).min(self.job.sequence.len());
        while self.named < full && self.private > 0 {
            let (name, content) = (self.job.sequence[self.named], self.job.pages[self.named]);
            if cache.name(name) {
                let before = self.named.checked_sub(1).map(|before| self.job.sequence[before]);
                step.stored.push(NamedPage { before, name, content });
            }
            self.named += 1;
            self.private -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 128;

    fn engine(cache_tokens: u64) -> Engine {
        Engine::new(EngineModel { cache_tokens, ..EngineModel::default() }, 1.0, PAGE)
    }

    fn serve(engine: &mut Engine) -> Vec<Step> {
        std::iter::from_fn(|| engine.step()).collect()
    }

    #[test]
    fn a_prompt_is_prefilled_in_chunks_and_then_decodes_a_token_a_step() {
        let mut engine = engine(100_000);
        engine.arrive(0, Arc::new(Job::alone(20_000, 3, 1, PAGE)));
        let steps = serve(&mut engine);
        let prefills: Vec<_> = steps.iter().map(|step| step.prefill_tokens).collect();
        assert_eq!(prefills, [8192, 8192, 3616, 0, 0]);
        assert_eq!(steps[2].first_tokens, [(0, 0)]);
        assert_eq!(steps[4].finished, [0]);
        assert_eq!(steps.iter().map(|step| step.stored.len()).sum::<usize>(), 156);
        let model = EngineModel::default();
        let attended = 8192.0 * 4096.0;
        assert_eq!(steps[0].seconds, model.step + 8192.0 * model.prefill_token + attended * model.attention);
        assert_eq!(steps[4].seconds, model.step + model.decode + 20_002.0 * model.context_token);
    }

    #[test]
    fn what_is_cached_is_not_computed_again_but_for_one_token() {
        let mut engine = engine(100_000);
        engine.arrive(0, Arc::new(Job::alone(1280, 1, 1, PAGE)));
        serve(&mut engine);
        engine.arrive(1, Arc::new(Job::alone(1280, 1, 1, PAGE)));
        let steps = serve(&mut engine);
        assert_eq!((steps[0].prefill_tokens, &steps[0].first_tokens[..]), (128, &[(1, 1152)][..]));
    }

    #[test]
    fn without_room_the_youngest_starts_over_and_all_are_served() {
        let mut engine = engine(16 * PAGE);
        for id in 0..4 {
            engine.arrive(id, Arc::new(Job::alone(500, 400, id as u64 + 1, PAGE)));
        }
        let steps = serve(&mut engine);
        let prefilled: u64 = steps.iter().map(|step| step.prefill_tokens).sum();
        let finished: usize = steps.iter().map(|step| step.finished.len()).sum();
        let first_tokens: usize = steps.iter().map(|step| step.first_tokens.len()).sum();
        assert!(prefilled > 2000, "somebody was preempted");
        assert_eq!((finished, first_tokens), (4, 4));
        assert!(engine.cache.reserve(16), "every page came back");
    }

    #[test]
    fn a_prompt_that_never_fits_stops_nothing_but_itself() {
        let mut engine = engine(8 * PAGE);
        engine.arrive(0, Arc::new(Job::alone(5000, 1, 1, PAGE)));
        assert!(engine.step().is_none());
    }
}
