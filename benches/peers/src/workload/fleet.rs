//! Workloads A to F and H: a fleet of engines serves the requests of a trace.
//!
//! The engines keep blocks as vLLM does ([`Cache`]): prefill is stored in pieces of 8,192 tokens, each decoded block in an
//! event of its own (or, with `decoded_per_event`, in bursts), and each eviction is an event of its own (or, with
//! `removals_per_event`, in bursts). Every request that is running decodes up to eight blocks until the next one
//! arrives.

use std::{collections::VecDeque, mem};

use fastrand::Rng;
use kvroute::hash::BlockHash;

use super::{
    Block, Checkpoint, PromptId, Segment, Workload,
    builder::Builder,
    cache::Cache,
    router::Router,
    text::{name, names},
};
use crate::trace::{Request, TOKENS_PER_ID};

/// One of the workloads.
#[derive(Clone, Copy)]
pub(super) struct Plan<'a> {
    pub(super) letter: char,
    pub(super) title: &'a str,
    pub(super) workers: u32,
    pub(super) block_size: u32,
    /// Blocks that one worker has room for.
    pub(super) room: usize,
    /// How many of the trace's requests, from its start.
    pub(super) requests: usize,
    pub(super) removals_per_event: usize,
    pub(super) decoded_per_event: usize,
    /// Whether one eviction of twenty takes a block from anywhere, so that chains get holes.
    pub(super) holes: bool,
    /// When to look prompts up, as fractions of the requests.
    pub(super) checkpoints: &'a [f64],
}

/// Prompts that are looked up at one checkpoint.
const LOOKUPS: usize = 400;

/// Blocks that a running request decodes between two arrivals, at most.
const DECODE: usize = 8;

/// Serves the requests and writes down what the engines say.
pub(super) fn replay(requests: &[Request], plan: &Plan<'_>) -> Workload {
    let mut fleet = Fleet::new(plan);
    for request in requests.iter().take(plan.requests) {
        fleet.serve(request);
    }
    fleet.finish()
}

struct Fleet<'a> {
    plan: Plan<'a>,
    out: Builder,
    caches: Vec<Cache>,
    router: Router,
    running: VecDeque<Running>,
    /// Names evicted and not yet told, all of the worker at hand.
    evicted: Vec<u64>,
    /// Each request's prompt, with the number of operations before it came.
    arrivals: Vec<(usize, PromptId)>,
    rng: Rng,
}

struct Running {
    worker: u32,
    path: Vec<u64>,
    /// Blocks it still has to decode.
    left: usize,
}

impl<'a> Fleet<'a> {
    fn new(plan: &Plan<'a>) -> Self {
        Self {
            plan: *plan,
            out: Builder::new(plan.letter, plan.title, plan.workers, plan.block_size),
            caches: (0..plan.workers).map(|_| Cache::new(plan.room)).collect(),
            router: Router::new(plan.workers),
            running: VecDeque::new(),
            evicted: Vec::new(),
            arrivals: Vec::new(),
            rng: Rng::with_seed(7),
        }
    }

    fn serve(&mut self, request: &Request) {
        let segments = self.segments(request);
        if segments.is_empty() {
            return;
        }
        let prompt = self.out.prompt(&segments);
        self.arrivals.push((self.out.len(), prompt));
        let contents = self.out.workload().hashes(prompt).to_vec();
        let path = names(None, &contents);
        let (worker, hit) = self.router.route(&path, &mut self.rng);
        self.prefill(worker, &path, &contents, hit);
        let all = (request.input_length + request.output_length) / self.plan.block_size as usize;
        let left = all.saturating_sub(path.len()).min(self.plan.room / 8);
        self.running.push_back(Running { worker, path, left });
        for _ in 0..self.running.len() {
            self.decode_next();
        }
    }

    /// What the prompt is made of: its full blocks, cut where it would take more than three quarters of a cache.
    fn segments(&self, request: &Request) -> Vec<Segment> {
        let block_size = self.plan.block_size as usize;
        let a_piece = TOKENS_PER_ID / block_size;
        let told = (request.input_length / block_size).min(request.hash_ids.len() * a_piece);
        let mut left = told.min(self.plan.room * 3 / 4);
        let mut segments = Vec::new();
        for &seed in &request.hash_ids {
            let blocks = left.min(a_piece);
            left -= blocks;
            if blocks > 0 {
                segments.push(Segment { seed, blocks: blocks as u32 });
            }
        }
        segments
    }

    fn prefill(&mut self, worker: u32, path: &[u64], contents: &[BlockHash], hit: usize) {
        for &name in &path[..hit] {
            self.caches[worker as usize].pin(name);
        }
        let piece = 8_192 / self.plan.block_size as usize;
        for start in (hit..path.len()).step_by(piece) {
            let end = (start + piece).min(path.len());
            let mut parent = start.checked_sub(1).map(|before| path[before]);
            let mut fresh = Vec::new();
            for (&name, &content) in path[start..end].iter().zip(&contents[start..end]) {
                if self.caches[worker as usize].pin(name) {
                    // It survived beyond a hole, and the engine does not store it again.
                    self.store(worker, parent, &mut fresh);
                    parent = Some(name);
                } else {
                    self.admit(worker, name);
                    fresh.push(Block { name, content });
                }
            }
            self.store(worker, parent, &mut fresh);
        }
    }

    /// The request that waits longest decodes a few blocks.
    fn decode_next(&mut self) {
        let Some(mut request) = self.running.pop_front() else { return };
        let worker = request.worker;
        let mut parent = request.path.last().copied();
        let mut fresh = Vec::new();
        for _ in 0..DECODE.min(request.left) {
            let content = BlockHash(self.rng.u64(..));
            let name = name(request.path.last().copied(), content);
            self.admit(worker, name);
            self.tell_evicted(worker);
            fresh.push(Block { name, content });
            request.path.push(name);
            request.left -= 1;
            if fresh.len() == self.plan.decoded_per_event {
                self.store(worker, parent, &mut fresh);
                parent = Some(name);
            }
        }
        self.store(worker, parent, &mut fresh);
        if request.left == 0 {
            self.caches[worker as usize].release(&request.path);
        } else {
            self.running.push_back(request);
        }
    }

    /// Takes a new block in, after evicting others if there is no room.
    fn admit(&mut self, worker: u32, name: u64) {
        let cache = &mut self.caches[worker as usize];
        while cache.is_full() {
            let any = (self.plan.holes && self.rng.u32(..20) == 0).then(|| self.rng.usize(..));
            let evicted = any.and_then(|pick| cache.evict_any(pick)).or_else(|| cache.evict());
            let Some(evicted) = evicted else { break };
            self.router.remove(evicted, worker);
            self.evicted.push(evicted);
        }
        cache.insert(name);
        self.router.add(name, worker);
    }

    /// Tells of a chain of new blocks, and before it of what had to go for them.
    fn store(&mut self, worker: u32, parent: Option<u64>, fresh: &mut Vec<Block>) {
        if !fresh.is_empty() {
            self.tell_evicted(worker);
            self.out.stored(worker, parent, fresh.drain(..));
        }
    }

    fn tell_evicted(&mut self, worker: u32) {
        for burst in mem::take(&mut self.evicted).chunks(self.plan.removals_per_event) {
            self.out.removed(worker, burst);
        }
    }

    fn finish(mut self) -> Workload {
        self.out.set_room(self.plan.room * self.plan.workers as usize);
        let resident = self.caches.iter().map(Cache::len).sum();
        let half = self.out.len() / 2;
        let late =
            self.arrivals.iter().filter(|arrival| arrival.0 >= half).map(|arrival| arrival.1).collect();
        let checkpoints = self.plan.checkpoints.iter().map(|&fraction| self.checkpoint(fraction)).collect();
        self.out.finish(checkpoints, late, resident)
    }

    /// The requests that arrive when `fraction` of all have, and the operations before the first of them.
    fn checkpoint(&self, fraction: f64) -> Checkpoint {
        let all = self.arrivals.len();
        let first = ((all as f64 * fraction) as usize).min(all.saturating_sub(LOOKUPS));
        let last = (first + LOOKUPS).min(all);
        let after = if last == all { self.out.len() } else { self.arrivals[first].0 };
        Checkpoint { after, prompts: self.arrivals[first..last].iter().map(|arrival| arrival.1).collect() }
    }
}
