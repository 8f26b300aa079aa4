//! What a decision takes, by the number of candidates and the cost model.
//!
//! `decide` is the decision alone, on rows that are there: the survey of the fleet, a cost for every row, and the pick.
//! `admit` is all of an admission and its return: rows made of members, active blocks and loads read, decided, booked, first
//! token, dropped. The claim is about `decide`: at most 2 µs and 15 ns a candidate in the time model.
//!
//! Before criterion's own runs a table gives medians and the ratio to the blocks model, which runs in turn with it.

use std::{
    hint::black_box,
    num::NonZeroUsize,
    time::{Duration, Instant},
};

use criterion::{BenchmarkId, Criterion, Throughput};
use fastrand::Rng;
use kvroute::{
    device::Speed,
    hash::{BlockHash, BlockSize, SequenceHash, chain},
    index::{self, Overlap, PrefixIndex},
    load::{Backlog, Booking, Claim, SlotLoad},
    select::{CostModel, Demand, Member, Mode, Row, Scratch, Selector, Tuning, cost::predicted, decide},
    slot::{Rank, Slot, WorkerId},
};

const CANDIDATES: [u32; 4] = [8, 64, 256, 1000];
const BLOCK: u32 = 16;
/// Blocks of the prompt that is placed.
const PROMPT: u32 = 500;
const NOW: Duration = Duration::from_secs(1000);

fn tuning(cost_model: CostModel) -> Tuning {
    Tuning { cost_model, ..Tuning::default() }
}

fn block_size() -> BlockSize {
    BlockSize::new(BLOCK).unwrap_or_else(|error| unreachable!("{error}"))
}

fn member(index: u32) -> Member {
    Member::new(Slot { index, generation: 0 }, WorkerId(u64::from(index)), Rank(0))
}

/// A busy fleet in which some hold a part of the prompt.
fn rows(count: u32) -> Vec<Row> {
    let mut rng = Rng::with_seed(1);
    (0..count)
        .map(|index| {
            let mut speed = Speed::default();
            for _ in 0..50 {
                speed.observe(rng.u64(500..20_000), Duration::from_millis(rng.u64(50..2_000)), 1.0, 1e-4);
            }
            let gpu = if rng.u8(..4) == 0 { rng.u32(..PROMPT) } else { 0 };
            let carried = if rng.u8(..8) == 0 { rng.u32(..PROMPT) } else { 0 };
            let overlap = Overlap { gpu, ..Overlap::default() };
            let requests = rng.u32(..40);
            let work = rng.u64(..60_000);
            Row {
                overlap,
                cached_tokens: u64::from(gpu * BLOCK),
                carried,
                carriers: u32::from(carried > 0) * rng.u32(1..4),
                predicted: predicted(overlap, carried),
                new_blocks: u64::from(PROMPT - carried),
                prefill_work: u64::from((PROMPT - gpu.max(carried)) * BLOCK) + 257,
                load: SlotLoad { requests, prefill_tokens: work, decode_blocks: rng.u64(..20_000) },
                backlog: Backlog {
                    requests: requests.min(4),
                    work,
                    head_work: work / 2,
                    head_since: NOW - Duration::from_millis(rng.u64(..500)),
                },
                speed,
                ..Row::new(&member(index))
            }
        })
        .collect()
}

/// One fleet, and a request that is decided on again and again.
struct Decision {
    rows: Vec<Row>,
    rng: Rng,
}

impl Decision {
    fn new(count: u32) -> Self {
        Self { rows: rows(count), rng: Rng::with_seed(2) }
    }

    fn run(&mut self, tuning: &Tuning) {
        let demand = Demand::new((PROMPT * BLOCK) as usize + 7, block_size(), &[]);
        let rows = black_box(&mut self.rows);
        let picked = decide(Mode::Kv, black_box(tuning), &demand, 0, rows, NOW, &mut self.rng);
        let _ = black_box(picked);
    }
}

/// A fleet that serves, and requests that come and go.
struct Admission {
    selector: Selector,
    members: Vec<Member>,
    index: PrefixIndex,
    found: index::Scratch,
    scratch: Scratch,
    sequence: Vec<SequenceHash>,
    /// Requests that decode all the while, two on each slot.
    _standing: Vec<Booking>,
    now: Duration,
    rng: Rng,
}

/// Hashes of a prompt that shares its first hundred blocks with every other.
fn sequence(prompt: u64) -> Vec<SequenceHash> {
    let blocks: Vec<_> =
        (0..u64::from(PROMPT)).map(|i| BlockHash(if i < 100 { i } else { prompt << 16 | i })).collect();
    let mut sequence = Vec::new();
    chain(&blocks, &mut sequence);
    sequence
}

impl Admission {
    fn new(count: u32, tuning: Tuning) -> Self {
        let selector = Selector::new(Mode::Kv, tuning);
        let members: Vec<_> = (0..count).map(member).collect();
        let standing = (1..).zip(members.iter().chain(&members)).map(|(prompt, member)| {
            let sequence = sequence(prompt);
            let claim = Claim { sequence: &sequence, ..Claim::default() };
            selector.loads().book(member.slot, &claim, Duration::ZERO)
        });
        Self {
            _standing: standing.collect(),
            selector,
            members,
            index: PrefixIndex::new(NonZeroUsize::MIN).0,
            found: index::Scratch::new(),
            scratch: Scratch::new(),
            sequence: sequence(0),
            now: Duration::ZERO,
            rng: Rng::with_seed(3),
        }
    }

    fn run(&mut self) {
        self.now += Duration::from_micros(50);
        let demand = Demand::new((PROMPT * BLOCK) as usize + 7, block_size(), &self.sequence);
        let overlaps = self.index.overlap(&[], &mut self.found);
        let admitted =
            self.selector.admit(&self.members, overlaps, &demand, &mut self.scratch, self.now, &mut self.rng);
        if let Ok((_, booking)) = black_box(admitted) {
            booking.first_token(self.now + Duration::from_millis(1));
        }
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Nanoseconds of one call, over a batch.
fn timed(batch: u32, mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..batch {
        call();
    }
    start.elapsed().as_nanos() as f64 / f64::from(batch)
}

/// Medians of both models, run in turn so that a slow moment of the machine slows both.
fn table() {
    const PAIRS: usize = 101;
    println!(
        "| candidates | decide, time | a candidate, beyond 2 µs | decide, blocks | time/blocks | admit, time | admit, blocks |"
    );
    println!("|---|---|---|---|---|---|---|");
    for count in CANDIDATES {
        let [time, blocks] = [CostModel::Time, CostModel::Blocks].map(tuning);
        let mut decision = Decision::new(count);
        let mut admissions = [Admission::new(count, time), Admission::new(count, blocks)];
        let mut times: [Vec<f64>; 4] = Default::default();
        let batch = 20_000 / count.max(20);
        for _ in 0..PAIRS {
            times[0].push(timed(batch, || decision.run(&time)));
            times[1].push(timed(batch, || decision.run(&blocks)));
            times[2].push(timed(batch.div_ceil(8), || admissions[0].run()));
            times[3].push(timed(batch.div_ceil(8), || admissions[1].run()));
        }
        let [decide_time, decide_blocks, admit_time, admit_blocks] = times.map(median);
        let each = (decide_time - 2_000.0).max(0.0) / f64::from(count);
        println!(
            "| {count} | {:.2} µs | {each:.1} ns | {:.2} µs | {:.2} | {:.2} µs | {:.2} µs |",
            decide_time / 1e3,
            decide_blocks / 1e3,
            decide_time / decide_blocks,
            admit_time / 1e3,
            admit_blocks / 1e3,
        );
    }
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    // Only `cargo bench` says so; under `cargo test` everything runs once.
    if std::env::args().any(|arg| arg == "--bench") {
        table();
    }
    for cost_model in [CostModel::Time, CostModel::Blocks] {
        let mut group = criterion.benchmark_group(format!("decide/{cost_model}"));
        for count in CANDIDATES {
            let mut decision = Decision::new(count);
            group.throughput(Throughput::Elements(u64::from(count)));
            group.bench_function(BenchmarkId::from_parameter(count), |bencher| {
                bencher.iter(|| decision.run(&tuning(cost_model)));
            });
        }
        group.finish();
        let mut group = criterion.benchmark_group(format!("admit/{cost_model}"));
        for count in CANDIDATES {
            let mut admission = Admission::new(count, tuning(cost_model));
            group.bench_function(BenchmarkId::from_parameter(count), |bencher| {
                bencher.iter(|| admission.run());
            });
        }
        group.finish();
    }
    criterion.final_summary();
}
