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
    /// Prompt tokens that it prefills, and the part of the time that they take.
    pub(super) prefill_tokens: u64,
    pub(super) prefill_seconds: f64,
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

/// An engine, `speed` times as fast as its model. Its cache is handed to it at every step: engines may share one.
#[derive(Debug)]
pub(super) struct Engine {
    model: EngineModel,
    speed: f64,
    page: u64,
    waiting: VecDeque<Sequence>,
    /// In order of admission.
    running: Vec<Sequence>,
}

impl Engine {
    pub(super) const fn new(model: EngineModel, speed: f64, page: u64) -> Self {
        Self { model, speed, page, waiting: VecDeque::new(), running: Vec::new() }
    }

    /// From the next step on it is so many times as fast as its model.
    pub(super) const fn set_speed(&mut self, speed: f64) {
        self.speed = speed;
    }

    /// Requests that wait for their first step.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// It dies. The requests that it had give their pages back and are named, in order of their coming.
    pub(super) fn die(&mut self, cache: &mut Cache) -> Vec<usize> {
        for sequence in &self.running {
            cache.release(&sequence.job.sequence[..sequence.named], sequence.private);
        }
        let all = self.running.drain(..).chain(self.waiting.drain(..));
        let mut lost: Vec<_> = all.map(|sequence| sequence.id).collect();
        lost.sort_unstable();
        lost
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
    pub(super) fn step(&mut self, cache: &mut Cache) -> Option<Step> {
        let mut step = Step::default();
        let mut batch = Batch::default();
        let mut budget = self.model.step_tokens;
        self.grow_decoding(cache);
        for sequence in self.running.iter().filter(|sequence| sequence.decodes()) {
            batch.decode(sequence.length());
        }
        budget = budget.saturating_sub(batch.decoding);
        let mut chunks = vec![0; self.running.len()];
        for (sequence, chunk) in self.running.iter().zip(&mut chunks) {
            if !sequence.decodes() {
                *chunk = budget.min(sequence.target - sequence.computed);
                budget -= *chunk;
            }
        }
        while budget > 0 && self.running.len() < self.model.sequences && self.admit(cache) {
            let chunk = self.running.last().map_or(0, |last| budget.min(last.target - last.computed));
            budget -= chunk;
            chunks.push(chunk);
        }
        if self.running.is_empty() {
            return None;
        }
        self.compute(cache, &chunks, &mut batch, &mut step);
        step.dropped = cache.take_dropped();
        step.prefill_tokens = batch.prefill;
        step.prefill_seconds = self.model.times.prefill_seconds(&batch) / self.speed;
        step.seconds = self.model.times.seconds(&batch) / self.speed;
        Some(step)
    }

    /// Gives every decoding sequence room for its next token; where there is none the youngest starts over.
    fn grow_decoding(&mut self, cache: &mut Cache) {
        let mut at = 0;
        while at < self.running.len() {
            let sequence = &self.running[at];
            let full = sequence.length() >= (sequence.named + sequence.private) as u64 * self.page;
            if !(sequence.decodes() && full) {
                at += 1;
            } else if cache.reserve(1) {
                self.running[at].private += 1;
                at += 1;
            } else if let Some(youngest) = self.running.pop() {
                self.preempt(cache, youngest);
            }
        }
    }

    fn preempt(&mut self, cache: &mut Cache, mut sequence: Sequence) {
        cache.release(&sequence.job.sequence[..sequence.named], sequence.private);
        sequence.target = sequence.job.prompt_tokens + sequence.generated;
        (sequence.computed, sequence.named, sequence.private) = (0, 0, 0);
        self.waiting.push_front(sequence);
    }

    /// Admits the first that waits, with all pages of its prompt, if they fit.
    fn admit(&mut self, cache: &mut Cache) -> bool {
        let Some(first) = self.waiting.front() else { return false };
        // One token is always computed.
        let reusable = usize::try_from((first.target - 1) / self.page).unwrap_or(usize::MAX);
        let names = &first.job.sequence;
        let matched = cache.matched(&names[..reusable.min(names.len())]);
        names[..matched].iter().for_each(|&hash| cache.pin(hash));
        let pages = usize::try_from((first.target + 1).div_ceil(self.page)).unwrap_or(usize::MAX);
        if !cache.reserve(pages - matched) {
            cache.release(&names[..matched], 0);
            return false;
        }
        let Some(mut sequence) = self.waiting.pop_front() else { return false };
        sequence.computed = matched as u64 * self.page;
        (sequence.named, sequence.private) = (matched, pages - matched);
        sequence.cached.get_or_insert(sequence.computed);
        self.running.push(sequence);
        true
    }

    fn compute(&mut self, cache: &mut Cache, chunks: &[u64], batch: &mut Batch, step: &mut Step) {
        let Self { running, page, .. } = self;
        for (sequence, &chunk) in running.iter_mut().zip(chunks) {
            if chunk > 0 {
                batch.prefill(chunk, sequence.computed);
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
                cache.release(&sequence.job.sequence[..sequence.named], sequence.private);
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
    use crate::simulate::StepTimes;

    const PAGE: u64 = 128;

    fn engine(pages: usize) -> (Engine, Cache) {
        (Engine::new(EngineModel::default(), 1.0, PAGE), Cache::new(pages))
    }

    fn serve(engine: &mut Engine, cache: &mut Cache) -> Vec<Step> {
        std::iter::from_fn(|| engine.step(cache)).collect()
    }

    #[test]
    fn a_prompt_is_prefilled_in_chunks_and_then_decodes_a_token_a_step() {
        let (mut engine, mut cache) = engine(780);
        engine.arrive(0, Arc::new(Job::alone(20_000, 3, 1, PAGE)));
        let steps = serve(&mut engine, &mut cache);
        let prefills: Vec<_> = steps.iter().map(|step| step.prefill_tokens).collect();
        assert_eq!(prefills, [8192, 8192, 3616, 0, 0]);
        assert_eq!(steps[2].first_tokens, [(0, 0)]);
        assert_eq!(steps[4].finished, [0]);
        assert_eq!(steps.iter().map(|step| step.stored.len()).sum::<usize>(), 156);
        let model = StepTimes::H100X4;
        let attended = 8192.0 * 4096.0;
        assert_eq!(steps[0].seconds, model.step + 8192.0 * model.prefill_token + attended * model.attention);
        assert_eq!(steps[4].seconds, model.step + model.decode + 20_002.0 * model.context_token);
    }

    #[test]
    fn what_is_cached_is_not_computed_again_but_for_one_token() {
        let (mut engine, mut cache) = engine(780);
        engine.arrive(0, Arc::new(Job::alone(1280, 1, 1, PAGE)));
        serve(&mut engine, &mut cache);
        engine.arrive(1, Arc::new(Job::alone(1280, 1, 1, PAGE)));
        let steps = serve(&mut engine, &mut cache);
        assert_eq!((steps[0].prefill_tokens, &steps[0].first_tokens[..]), (128, &[(1, 1152)][..]));
    }

    #[test]
    fn without_room_the_youngest_starts_over_and_all_are_served() {
        let (mut engine, mut cache) = engine(16);
        for id in 0..4 {
            engine.arrive(id, Arc::new(Job::alone(500, 400, id as u64 + 1, PAGE)));
        }
        let steps = serve(&mut engine, &mut cache);
        let prefilled: u64 = steps.iter().map(|step| step.prefill_tokens).sum();
        let finished: usize = steps.iter().map(|step| step.finished.len()).sum();
        let first_tokens: usize = steps.iter().map(|step| step.first_tokens.len()).sum();
        assert!(prefilled > 2000, "somebody was preempted");
        assert_eq!((finished, first_tokens), (4, 4));
        assert!(cache.reserve(16), "every page came back");
    }

    #[test]
    fn a_prompt_that_never_fits_stops_nothing_but_itself() {
        let (mut engine, mut cache) = engine(8);
        engine.arrive(0, Arc::new(Job::alone(5000, 1, 1, PAGE)));
        assert!(engine.step(&mut cache).is_none());
    }

    #[test]
    fn a_dead_engine_s_requests_give_everything_back() {
        let (mut engine, mut cache) = engine(16);
        for id in 0..3 {
            engine.arrive(id, Arc::new(Job::alone(900, 9, id as u64 + 1, PAGE)));
        }
        engine.step(&mut cache).unwrap();
        assert_eq!(engine.die(&mut cache), [0, 1, 2]);
        assert!(cache.reserve(16) && engine.step(&mut cache).is_none());
    }

    #[test]
    fn a_slower_engine_takes_longer() {
        let (mut engine, mut cache) = engine(100);
        let job = Arc::new(Job::alone(1000, 2, 1, PAGE));
        engine.arrive(0, Arc::clone(&job));
        let usual = engine.step(&mut cache).unwrap().seconds;
        engine.die(&mut cache);
        engine.set_speed(0.5);
        engine.arrive(1, job);
        let mut cache = Cache::new(100);
        assert_eq!(engine.step(&mut cache).unwrap().seconds, 2.0 * usual);
    }
}
