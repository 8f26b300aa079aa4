//! The index's memory at a fixed number of held blocks stays what it is, however long blocks come and go.
//!
//! `ci/long.sh` asks for more than these run by default:
//!
//! * `KVROUTE_TURNOVERS`: how often all blocks are replaced by prompts that nobody had before (40 times).
//! * `KVROUTE_TRACE`: a trace to loop, in Mooncake's format (`{"timestamp", "input_length", "output_length",
//!   "hash_ids"}` a line, times in milliseconds, 512 tokens a hash); without it requests are made up.
//! * `KVROUTE_TRACE_HOURS`: hours of the trace's own time to loop it for (3).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    missing_docs,
    reason = "a failed expectation is how a test reports, and tests may read the environment"
)]

use std::{
    cmp::Reverse,
    collections::{BTreeSet, VecDeque},
    num::NonZeroUsize,
};

use ahash::AHashMap;
use kvroute::{
    event::{EngineHash, Event, Removed, Stored, StoredBlock, Tier},
    hash::BlockHash,
    index::{IndexWriter, PrefixIndex},
    slot::Slot,
};

const SLOTS: u32 = 16;
/// Blocks that all slots together hold.
const HELD: usize = 40_000;
const WARM_UP: usize = 10;
const WARM_UP_ROUNDS: u64 = 3;

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

fn mixed(a: u64, b: u64) -> u64 {
    ((a ^ b).wrapping_mul(0xff51_afd7_ed55_8ccd) ^ b).rotate_left(29).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// What the process has in memory, in bytes; 0 where the system does not say.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Bytes by the index's own count, and those of the process.
type Bytes = [u64; 2];

/// What was measured in the course of a run.
#[derive(Default)]
struct Course {
    first: Option<Bytes>,
    last: Bytes,
    most: Bytes,
}

impl Course {
    fn measure(&mut self, index: &PrefixIndex) {
        self.last = [index.totals().bytes, resident()];
        self.first.get_or_insert(self.last);
        self.most = std::array::from_fn(|at| self.most[at].max(self.last[at]));
    }

    /// Prints the beginning, the end and the most, and fails if the index grew.
    fn judge(&self, what: &str) {
        let first = self.first.unwrap();
        for (at, whose) in ["index", "process"].iter().enumerate() {
            let (first, last, most) = (first[at], self.last[at], self.most[at]);
            println!("{what}: {whose} {first} bytes at first, {last} at last, {most} at most");
        }
        assert!(self.most[0] as f64 <= first[0] as f64 * 1.1, "{} bytes grew to {}", first[0], self.most[0]);
    }
}

fn removed(name: EngineHash) -> Event {
    Event::Removed(Removed { tier: Tier::Gpu, hashes: [name].into_iter().collect(), remaining_copies: None })
}

fn stored(parent: Option<EngineHash>, blocks: &[StoredBlock]) -> Event {
    Event::Stored(Stored { tier: Tier::Gpu, parent, blocks: blocks.iter().copied().collect() })
}

/// A fleet whose caches are always full: what comes makes the oldest go, tails before heads.
struct Fleet {
    index: PrefixIndex,
    writer: IndexWriter,
    /// The oldest chain first, each with its slot and its names from the head.
    chains: VecDeque<(Slot, Vec<EngineHash>)>,
    held: usize,
    next_name: u64,
    rng: fastrand::Rng,
}

impl Fleet {
    fn new(seed: u64) -> Self {
        let (index, mut writers) = PrefixIndex::new(NonZeroUsize::MIN);
        let rng = fastrand::Rng::with_seed(seed);
        Self { index, writer: writers.remove(0), chains: VecDeque::new(), held: 0, next_name: 0, rng }
    }

    fn slot(&mut self) -> Slot {
        Slot { index: self.rng.u32(..SLOTS), generation: 0 }
    }

    fn fresh(&mut self, count: usize) -> Vec<StoredBlock> {
        (0..count)
            .map(|_| {
                self.next_name += 1;
                let name = self.next_name.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                StoredBlock { engine: EngineHash(name), content: Some(BlockHash(name.rotate_left(17))) }
            })
            .collect()
    }

    /// A prompt that nobody had before arrives, and what is decoded after it, block by block.
    fn serve(&mut self) {
        // Lengths of all orders of magnitude, as prompts have them.
        let length = 1 << self.rng.u32(2..10);
        let (prefill, decoded) = (self.rng.usize(1..=length), self.rng.usize(..40));
        let slot = self.slot();
        let blocks = self.fresh(prefill + decoded);
        self.writer.apply(slot, &stored(None, &blocks[..prefill]));
        for at in prefill..blocks.len() {
            self.writer.apply(slot, &stored(Some(blocks[at - 1].engine), &blocks[at..=at]));
        }
        self.held += blocks.len();
        self.chains.push_back((slot, blocks.iter().map(|block| block.engine).collect()));
        while self.held > HELD {
            self.evict();
        }
    }

    fn evict(&mut self) {
        let Some((slot, names)) = self.chains.front_mut() else { return };
        let Some(name) = names.pop() else {
            self.chains.pop_front();
            return;
        };
        assert_eq!(self.writer.apply(*slot, &removed(name)).removed, 1);
        self.held -= 1;
    }
}

#[test]
fn bytes_stay_flat_while_blocks_come_and_go() {
    let turnovers = setting("KVROUTE_TURNOVERS", 40);
    let mut fleet = Fleet::new(5);
    let mut course = Course::default();
    for turnover in 0..WARM_UP + turnovers {
        let until = fleet.next_name + HELD as u64;
        while fleet.next_name < until {
            fleet.serve();
        }
        if turnover >= WARM_UP {
            course.measure(&fleet.index);
        }
    }
    let totals = fleet.index.totals();
    assert!(totals.blocks[0] <= HELD as u64 && totals.places == totals.blocks[0]);
    course.judge(&format!("{turnovers} turnovers of {HELD} blocks"));
}

/// A request of a trace.
struct Request {
    ms: u64,
    contents: Vec<u64>,
    decoded: usize,
}

/// The requests, and milliseconds from the first of one round to the first of the next.
fn trace() -> (Vec<Request>, u64) {
    let requests = match std::env::var("KVROUTE_TRACE") {
        Ok(path) => recorded(&std::fs::read_to_string(path).unwrap()),
        Err(_) => made_up(),
    };
    let round = requests.last().unwrap().ms + 1_000;
    (requests, round)
}

fn recorded(trace: &str) -> Vec<Request> {
    let request = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let number = |key: &str| line[key].as_u64().unwrap();
        let ids = line["hash_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap());
        let mut contents: Vec<u64> = ids.flat_map(|id| (0..32).map(move |at| id << 8 | at)).collect();
        contents.truncate(number("input_length") as usize / 16);
        Request { ms: number("timestamp"), contents, decoded: number("output_length") as usize / 16 }
    };
    trace.lines().map(request).collect()
}

/// An hour of conversations that come back with what was said before, behind one of three system prompts.
fn made_up() -> Vec<Request> {
    let mut rng = fastrand::Rng::with_seed(8);
    let mut conversations: Vec<Vec<u64>> = Vec::new();
    let mut next = 1_000;
    let mut fresh = |count: usize| -> Vec<u64> {
        next += count as u64;
        (next - count as u64..next).collect()
    };
    let request = |number: u64| {
        let at = if rng.u8(..3) == 0 || conversations.is_empty() {
            let system = rng.u64(..3) * 100;
            conversations.push((system..system + 40).collect());
            conversations.len() - 1
        } else {
            rng.usize(conversations.len().saturating_sub(60)..conversations.len())
        };
        conversations[at].extend(fresh(rng.usize(1..120)));
        Request { ms: number * 9_000, contents: conversations[at].clone(), decoded: rng.usize(..30) }
    };
    (0..400).map(request).collect()
}

/// An engine's cache: least recently used first, tails before heads.
#[derive(Default)]
struct Cache {
    /// When each block was last used, and how deep it lies.
    blocks: AHashMap<u64, (u64, u32)>,
    order: BTreeSet<(u64, Reverse<u32>, u64)>,
}

impl Cache {
    fn touch(&mut self, name: u64, now: u64, depth: u32) {
        if let Some((then, depth)) = self.blocks.insert(name, (now, depth)) {
            self.order.remove(&(then, Reverse(depth), name));
        }
        self.order.insert((now, Reverse(depth), name));
    }

    /// Serves a chain of blocks, of which the last ones are decoded one by one, and tells of what changes.
    fn serve(
        &mut self,
        now: u64,
        room: usize,
        blocks: &[StoredBlock],
        decoded: usize,
        mut tell: impl FnMut(Event),
    ) {
        let cached = blocks.iter().take_while(|block| self.blocks.contains_key(&block.engine.0)).count();
        for (depth, block) in (0..).zip(blocks) {
            self.touch(block.engine.0, now, depth);
        }
        while self.blocks.len() > room {
            let Some((_, _, name)) = self.order.pop_first() else { return };
            self.blocks.remove(&name);
            tell(removed(EngineHash(name)));
        }
        let parent = |at: usize| at.checked_sub(1).map(|before| blocks[before].engine);
        let prefill = (blocks.len() - decoded).max(cached);
        if cached < prefill {
            tell(stored(parent(cached), &blocks[cached..prefill]));
        }
        for at in prefill..blocks.len() {
            tell(stored(parent(at), &blocks[at..=at]));
        }
    }
}

/// The blocks of a request; what is decoded is new in every round.
fn blocks_of(request: &Request, salt: u64) -> Vec<StoredBlock> {
    let decoded = (0..request.decoded as u64).map(|at| mixed(salt, at));
    let mut name = 7;
    let contents = request.contents.iter().copied().chain(decoded);
    contents
        .map(|content| {
            let content = mixed(content, 1);
            name = mixed(name, content);
            StoredBlock { engine: EngineHash(name), content: Some(BlockHash(content)) }
        })
        .collect()
}

#[test]
fn bytes_stay_flat_while_a_trace_is_looped() {
    let (requests, round) = trace();
    let rounds = (setting("KVROUTE_TRACE_HOURS", 3) as u64 * 3_600_000).div_ceil(round);
    // So little that every cache turns over in each round.
    let touched: usize = requests.iter().map(|request| request.contents.len() + request.decoded).sum();
    let longest = requests.iter().map(|request| request.contents.len() + request.decoded).max().unwrap();
    let room = (touched / 64 / SLOTS as usize).max(2 * longest);
    let (index, mut writers) = PrefixIndex::new(NonZeroUsize::MIN);
    let mut caches: Vec<Cache> = (0..SLOTS).map(|_| Cache::default()).collect();
    let mut course = Course::default();
    for round_number in 0..WARM_UP_ROUNDS + rounds {
        for (number, request) in (0_u64..).zip(&requests) {
            // Those that go on with the same words go to the same engine, mostly.
            let leading = request.contents.iter().take(80).fold(0, |all, &content| mixed(all, content));
            let slot = Slot { index: (leading >> 40) as u32 % SLOTS, generation: 0 };
            let now = round_number * round + request.ms;
            let blocks = blocks_of(request, mixed(round_number, number));
            caches[slot.index as usize].serve(now, room, &blocks, request.decoded, |event| {
                let applied = writers[0].apply(slot, &event);
                assert_eq!(applied.unknown + applied.pending + applied.refused, 0);
            });
        }
        if round_number >= WARM_UP_ROUNDS {
            course.measure(&index);
        }
    }
    let held: usize = caches.iter().map(|cache| cache.blocks.len()).sum();
    assert_eq!(index.totals().blocks[0], held as u64);
    course.judge(&format!("{rounds} rounds of {} requests, {held} blocks held", requests.len()));
}
