//! Who computes what in the next step.

use std::collections::VecDeque;

use tokio::sync::mpsc::UnboundedSender;

use super::block_manager::BlockManager;
use super::cache_event::CacheEvent;
use super::sequence::Sequence;
use crate::simulate::Batch;

/// One output token of one choice of an HTTP request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Produced {
    pub(super) choice: usize,
    pub(super) token: u32,
    /// Prompt tokens that were in the cache at the first admission.
    pub(super) cached_tokens: usize,
    pub(super) finish: Option<Finish>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Finish {
    Stop,
    Length,
}

/// Where the output goes. A request whose receiver is gone is abandoned: it leaves at the next step.
pub(super) type Sink = UnboundedSender<Produced>;

/// One choice of an HTTP request, from arrival to its last token.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) choice: usize,
    pub(super) sequence: Sequence,
    pub(super) prompt_tokens: usize,
    /// Output tokens after which the request ends, and why it does.
    pub(super) limit: (usize, Finish),
    /// Tokens that end the output early.
    pub(super) stop_token_ids: Vec<u32>,
    /// Whether the reused prefix is reported again on admission.
    pub(super) report_reused: bool,
    /// Whether the prompt's keys and values come from another engine. Once: a preempted request computes them.
    pub(super) transferred: bool,
    pub(super) draws: fastrand::Rng,
    pub(super) sink: Sink,
    /// Set at the first admission; a preempted request keeps it.
    pub(super) cached_tokens: Option<usize>,
}

/// The output of one step, and how the requests that it completes ended.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) produced: Vec<(Sink, Produced)>,
    pub(super) finished: Vec<Finish>,
}

/// Counts of one step's admissions, for the engine's counters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) queried_tokens: usize,
    pub(super) hit_tokens: usize,
    pub(super) prompt_tokens: usize,
    pub(super) cached_prompt_tokens: usize,
    pub(super) preemptions: usize,
    pub(super) abandoned: usize,
}

/// First come, first served: running requests come first, in the order of their admission; the waiting ones
/// join while the step's token budget, the running slots and the cache allow, and nobody overtakes the
/// first of them.
#[derive(Debug)]
pub(super) struct Scheduler {
    cache: BlockManager,
    waiting: VecDeque<Request>,
    running: Vec<Request>,
    limits: Limits,
    palette: std::sync::Arc<[u32]>,
    pub(super) tally: Tally,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) max_num_seqs: usize,
    pub(super) max_num_batched_tokens: usize,
}

impl Scheduler {
    /// `palette` holds the tokens that outputs are drawn from, at least one.
    pub(super) fn new(cache: BlockManager, limits: Limits, palette: std::sync::Arc<[u32]>) -> Self {
        let (waiting, running) = (VecDeque::new(), Vec::new());
        Self { cache, waiting, running, limits, palette, tally: Tally::default() }
    }

    pub(super) fn submit(&mut self, request: Request) {
        self.waiting.push_back(request);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    pub(super) fn running(&self) -> usize {
        self.running.len()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn cache(&self) -> &BlockManager {
        &self.cache
    }

    pub(super) fn take_events(&mut self) -> Vec<CacheEvent> {
        self.cache.take_events()
    }

    /// Forgets the cached prefixes, which fails while requests hold blocks; with `preempt_running` these give
    /// them up first and start over.
    pub(super) fn reset(&mut self, preempt_running: bool) -> bool {
        while preempt_running && self.preempt_youngest() {}
        self.cache.reset()
    }

    /// Picks and computes the next step's tokens. Blocks that it fills are visible to requests admitted later
    /// in the same step, as they are in vLLM.
    pub(super) fn schedule(&mut self) -> Batch {
        self.drop_abandoned();
        let mut budget = self.limits.max_num_batched_tokens;
        let mut step = Batch::default();
        let mut index = 0;
        let mut preempted = false;
        while index < self.running.len() && budget > 0 {
            let request = &mut self.running[index];
            let count = request.sequence.uncomputed().min(budget);
            let (decodes, computed) = (request.decodes(), request.computed());
            if self.cache.compute(&mut request.sequence, count).is_ok() {
                if decodes {
                    step.decode(computed);
                } else {
                    step.prefill(count as u64, computed);
                }
                budget -= count;
                index += 1;
            } else {
                // The youngest is this request or one that has not had its turn, so no work of this step is
                // lost.
                preempted = self.preempt_youngest();
            }
        }
        // Whoever was just preempted must not take the blocks back that the others still need.
        while !preempted && budget > 0 && self.running.len() < self.limits.max_num_seqs {
            let Some(mut request) = self.waiting.pop_front() else { break };
            let admitted = if request.transferred {
                self.cache.admit_transferred(&mut request.sequence)
            } else {
                self.cache.admit(&mut request.sequence)
            };
            let Ok(cached) = admitted else {
                self.waiting.push_front(request);
                break;
            };
            self.tally_admission(&mut request, cached);
            let count = request.sequence.uncomputed().min(budget);
            step.prefill(count as u64, request.computed());
            // The whole prompt's blocks were reserved by the admission, so this needs none.
            let _ = self.cache.compute(&mut request.sequence, count);
            budget -= count;
            self.running.push(request);
        }
        step
    }

    /// Ends the step: every request that is computed up to its last token gets the next one.
    pub(super) fn finish(&mut self) -> Outcome {
        let mut outcome = Outcome::default();
        let mut index = 0;
        while index < self.running.len() {
            let request = &mut self.running[index];
            if request.sequence.uncomputed() > 0 {
                index += 1;
                continue;
            }
            let produced = request.produce(&self.palette);
            outcome.produced.push((request.sink.clone(), produced));
            match produced.finish {
                None => index += 1,
                Some(finish) => {
                    outcome.finished.push(finish);
                    let mut request = self.running.remove(index);
                    self.cache.release(&mut request.sequence);
                }
            }
        }
        outcome
    }

    fn tally_admission(&mut self, request: &mut Request, cached: usize) {
        let transferred = std::mem::take(&mut request.transferred);
        if request.report_reused && !transferred {
            self.cache.report_reused(&request.sequence);
        }
        self.tally.queried_tokens += request.sequence.tokens().len();
        self.tally.hit_tokens += cached;
        if request.cached_tokens.is_none() {
            request.cached_tokens = Some(cached);
            self.tally.prompt_tokens += request.prompt_tokens;
            self.tally.cached_prompt_tokens += cached;
        }
    }

    fn preempt_youngest(&mut self) -> bool {
        let Some(mut request) = self.running.pop() else { return false };
        self.cache.release(&mut request.sequence);
        self.waiting.push_front(request);
        self.tally.preemptions += 1;
        true
    }

    fn drop_abandoned(&mut self) {
        let before = self.running.len() + self.waiting.len();
        self.waiting.retain(|request| !request.sink.is_closed());
        for mut request in self.running.extract_if(.., |request| request.sink.is_closed()) {
            self.cache.release(&mut request.sequence);
        }
        self.tally.abandoned += before - self.running.len() - self.waiting.len();
    }
}

impl Request {
    fn output_tokens(&self) -> usize {
        self.sequence.tokens().len() - self.prompt_tokens
    }

    fn computed(&self) -> u64 {
        (self.sequence.tokens().len() - self.sequence.uncomputed()) as u64
    }

    /// Whether only the token that the last step produced is left to compute.
    fn decodes(&self) -> bool {
        self.output_tokens() > 0 && self.sequence.uncomputed() == 1
    }

    fn produce(&mut self, palette: &[u32]) -> Produced {
        let token = palette[self.draws.usize(..palette.len())];
        self.sequence.push(token);
        let finish = if self.stop_token_ids.contains(&token) {
            Some(Finish::Stop)
        } else {
            (self.output_tokens() >= self.limit.0).then_some(self.limit.1)
        };
        let cached_tokens = self.cached_tokens.unwrap_or(0);
        Produced { choice: self.choice, token, cached_tokens, finish }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::{BlockManager, CacheEvent, Finish, Limits, Produced, Request, Scheduler};
    use crate::worker::mock::sequence::{Namespace, Naming, Sequence};

    fn scheduler(blocks: u32, max_num_seqs: usize, budget: usize) -> Scheduler {
        let limits = Limits { max_num_seqs, max_num_batched_tokens: budget };
        Scheduler::new(BlockManager::new(4, blocks + 1), limits, (100..200).collect())
    }

    fn request(tokens: std::ops::Range<u32>, output: usize) -> (Request, UnboundedReceiver<Produced>) {
        let naming = Naming { seed: 1, block_size: 4 };
        let sequence = Sequence::new(naming, Arc::new(Namespace::default()), tokens.collect());
        let (sink, received) = unbounded_channel();
        let prompt_tokens = sequence.tokens().len();
        let request = Request {
            choice: 0,
            sequence,
            prompt_tokens,
            limit: (output, Finish::Length),
            stop_token_ids: Vec::new(),
            report_reused: false,
            transferred: false,
            draws: fastrand::Rng::with_seed(1),
            sink,
            cached_tokens: None,
        };
        (request, received)
    }

    /// Runs one step and delivers its output.
    fn step(scheduler: &mut Scheduler) -> (u64, u64) {
        let step = scheduler.schedule();
        for (sink, produced) in scheduler.finish().produced {
            let _ = sink.send(produced);
        }
        (step.prefill, step.decoding)
    }

    #[test]
    fn long_prompts_are_computed_in_chunks_beside_decoding() {
        let mut scheduler = scheduler(100, 8, 10);
        let (short, mut short_out) = request(0..4, 3);
        let (long, mut long_out) = request(50..75, 1);
        scheduler.submit(short);
        scheduler.submit(long);
        assert_eq!(step(&mut scheduler), (4 + 6, 0));
        assert_eq!(step(&mut scheduler), (9, 1));
        assert!(long_out.try_recv().is_err(), "its prompt is not computed yet");
        assert_eq!(step(&mut scheduler), (9, 1));
        assert_eq!(std::iter::from_fn(|| short_out.try_recv().ok()).count(), 3);
        assert_eq!(step(&mut scheduler), (1, 0));
        assert_eq!(long_out.try_recv().unwrap().finish, Some(Finish::Length));
        assert!(scheduler.is_idle());
        assert_eq!(scheduler.cache().used(), 0);
    }

    #[test]
    fn nobody_overtakes_the_first_in_the_queue() {
        let mut scheduler = scheduler(4, 8, 100);
        let (first, _first) = request(0..10, 2);
        let (big, _big) = request(20..34, 1);
        let (small, _small) = request(40..42, 1);
        scheduler.submit(first);
        scheduler.submit(big);
        scheduler.submit(small);
        step(&mut scheduler);
        assert_eq!(
            (scheduler.running(), scheduler.waiting()),
            (1, 2),
            "one block is left, the next needs four"
        );
    }

    #[test]
    fn the_youngest_gives_way_and_still_ends_with_its_tokens() {
        let mut scheduler = scheduler(4, 8, 100);
        let (old, mut old_out) = request(0..7, 6);
        let (young, mut young_out) = request(20..27, 6);
        scheduler.submit(old);
        scheduler.submit(young);
        let mut steps = 0;
        while !scheduler.is_idle() {
            step(&mut scheduler);
            assert_eq!(scheduler.cache().used() + scheduler.cache().free(), 4);
            steps += 1;
            assert!(steps < 100, "no progress");
        }
        assert!(scheduler.tally.preemptions > 0);
        assert_eq!(std::iter::from_fn(|| old_out.try_recv().ok()).count(), 6);
        assert_eq!(std::iter::from_fn(|| young_out.try_recv().ok()).count(), 6);
    }

    #[test]
    fn a_prompt_from_elsewhere_costs_one_token_and_only_its_output_is_reported() {
        let mut scheduler = scheduler(10, 8, 100);
        let (mut taken, mut out) = request(0..8, 6);
        taken.transferred = true;
        let last_of_the_prompt = taken.sequence.names()[1];
        scheduler.submit(taken);
        assert_eq!(step(&mut scheduler), (1, 0));
        assert!(scheduler.take_events().is_empty(), "the prompt's blocks are another engine's");
        while !scheduler.is_idle() {
            step(&mut scheduler);
        }
        let [CacheEvent::Stored(run)] = &scheduler.take_events()[..] else { panic!("one block of output") };
        assert_eq!(run.parent, Some(last_of_the_prompt));
        assert_eq!(out.try_recv().unwrap().cached_tokens, 7);
        assert_eq!((scheduler.cache().used(), scheduler.cache().cached()), (0, 1));
    }

    #[test]
    fn a_request_that_nobody_reads_leaves_at_the_next_step() {
        let mut scheduler = scheduler(10, 1, 100);
        let (gone, gone_out) = request(0..9, 50);
        let (queued, queued_out) = request(20..29, 50);
        scheduler.submit(gone);
        scheduler.submit(queued);
        step(&mut scheduler);
        drop((gone_out, queued_out));
        step(&mut scheduler);
        assert!(scheduler.is_idle());
        assert_eq!(scheduler.cache().used(), 0);
        assert_eq!(scheduler.cache().cached(), 2, "what was computed stays cached");
    }
}
