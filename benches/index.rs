//! The prefix index by itself: lookups, ingestion, both at once, and bytes.
//!
//! `cargo bench --bench index`. Beside its peers it is measured by `benches/peers` (see `benches/README.md`), from which come all
//! figures to quote; this one is for seeing what a change does.
//!
//! The fleet: 64 slots that hold conversations. Each begins with a system prompt of 32 blocks that all share, goes on in one of 40
//! topics of 64 blocks, and then is nobody else's for up to 900 blocks.

use std::{
    hint::black_box,
    num::NonZeroUsize,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};
use kvroute::{
    event::{EngineHash, Event, Removed, Stored, StoredBlock, Tier},
    hash::BlockHash,
    index::{IndexWriter, PrefixIndex, Scratch},
    slot::Slot,
};

const SLOTS: u32 = 64;
const CONVERSATIONS: u64 = 1_500;

/// A conversation's blocks, each with the name that stands for all up to it.
fn conversation(number: u64) -> Vec<StoredBlock> {
    let mut rng = fastrand::Rng::with_seed(number);
    let (topic, length) = (rng.u64(..40), rng.usize(100..1_000));
    let mut name = 7_u64;
    (0..length as u64)
        .map(|at| {
            let of = match at {
                0..32 => 0,
                32..96 => 1 + topic,
                _ => 1_000 + number,
            };
            let content = (of << 32 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            name = (name ^ content).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(23);
            StoredBlock { engine: EngineHash(name), content: Some(BlockHash(content)) }
        })
        .collect()
}

fn slot(conversation: u64) -> Slot {
    Slot { index: (conversation * 31 % u64::from(SLOTS)) as u32, generation: 0 }
}

/// All conversations: prefill in one event, then 64 blocks decoded one by one.
fn history() -> Vec<(Slot, Event)> {
    let mut events = Vec::new();
    for number in 0..CONVERSATIONS {
        let blocks = conversation(number);
        let prefill = blocks.len() - 64;
        let stored = |parent: Option<usize>, new: &[StoredBlock]| {
            let parent = parent.map(|at| blocks[at].engine);
            Event::Stored(Stored { tier: Tier::Gpu, parent, blocks: new.iter().copied().collect() })
        };
        events.push((slot(number), stored(None, &blocks[..prefill])));
        let decoded = (prefill..blocks.len()).map(|at| stored(Some(at - 1), &blocks[at..=at]));
        events.extend(decoded.map(|event| (slot(number), event)));
    }
    events
}

fn filled(history: &[(Slot, Event)]) -> (PrefixIndex, IndexWriter) {
    let (index, mut writers) = PrefixIndex::new(NonZeroUsize::MIN);
    let mut writer = writers.remove(0);
    writer.apply_all(history, |_, applied| {
        black_box(applied);
    });
    (index, writer)
}

fn prompts() -> Vec<Vec<BlockHash>> {
    let contents = |number| conversation(number).iter().filter_map(|block| block.content).collect();
    (0..CONVERSATIONS).step_by(3).map(contents).collect()
}

fn lookups(criterion: &mut Criterion, index: &PrefixIndex, name: &str) {
    let prompts = prompts();
    let mut scratch = Scratch::new();
    let mut depths = vec![0; SLOTS as usize];
    let mut next = (0..prompts.len()).cycle();
    let mut group = criterion.benchmark_group(format!("index/lookup{name}"));
    group.bench_function("overlap", |bench| {
        bench.iter(|| {
            let prompt = &prompts[next.next().unwrap_or(0)];
            black_box(index.overlap(black_box(prompt), &mut scratch).is_empty());
        });
    });
    group.bench_function("gpu_depths", |bench| {
        bench.iter(|| {
            let prompt = &prompts[next.next().unwrap_or(0)];
            index.gpu_depths(black_box(prompt), &mut scratch, &mut depths);
            black_box(&depths);
        });
    });
    group.finish();
    println!("passes dropped and begun anew{name}: {}", scratch.retries());
}

fn ingestion(criterion: &mut Criterion, history: &[(Slot, Event)], blocks: usize) {
    let mut group = criterion.benchmark_group("index/ingest");
    group.sample_size(10).throughput(Throughput::Elements(blocks as u64));
    for expected in [0, blocks] {
        let empty = || {
            let mut writer = PrefixIndex::new(NonZeroUsize::MIN).1.remove(0);
            writer.expect(expected);
            while writer.tidy() {}
            writer
        };
        let name = if expected == 0 { "from empty" } else { "expected" };
        group.bench_function(BenchmarkId::from_parameter(name), |bench| {
            let apply = |mut writer: IndexWriter| {
                writer.apply_all(history, |_, applied| {
                    black_box(applied);
                });
                writer
            };
            bench.iter_batched(empty, apply, BatchSize::PerIteration);
        });
    }
    group.finish();
}

/// Lookups while another thread evicts conversations and stores them again.
fn mixed(criterion: &mut Criterion, history: &[(Slot, Event)]) {
    let (index, mut writer) = filled(history);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut numbers = (0..CONVERSATIONS).cycle();
            while !stop.load(Ordering::Relaxed) {
                let number = numbers.next().unwrap_or(0);
                let blocks = conversation(number);
                let hashes = blocks.iter().rev().map(|block| block.engine).collect();
                let removed = Removed { tier: Tier::Gpu, hashes, remaining_copies: None };
                writer.apply(slot(number), &Event::Removed(removed));
                let blocks = blocks.into_iter().collect();
                writer.apply(slot(number), &Event::Stored(Stored { tier: Tier::Gpu, parent: None, blocks }));
            }
        });
        lookups(criterion, &index, " while written");
        stop.store(true, Ordering::Relaxed);
    });
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let history = history();
    let (index, _writer) = filled(&history);
    let totals = index.totals();
    println!(
        "{} blocks held at {} places: {:.1} bytes a block",
        totals.blocks[0],
        totals.places,
        totals.bytes as f64 / totals.blocks[0] as f64
    );
    lookups(&mut criterion, &index, "");
    ingestion(&mut criterion, &history, totals.blocks[0] as usize);
    mixed(&mut criterion, &history);
    criterion.final_summary();
}
