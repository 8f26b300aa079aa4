//! Block hashing against the loop that everyone starts with: `xxh3_64_with_seed` on each block's bytes.
//!
//! `cargo bench --bench hash`. The criterion groups give times; the `RATIO` lines that follow are the
//! figures to quote. They come from runs of both sides taken in turn, because a busy machine moves more
//! between two criterion groups than the two sides differ.
//!
//! The other side is given every advantage that a router could give it: its tokens lie there as bytes, and
//! its output is a vector that has grown already. Seed and block size are run-time values, as they are in
//! a router.
//!
//! The table at the end is for batches, on one thread and on all; `just bench-gpu` sets a GPU beside them.

use std::error::Error;
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::thread;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use kvroute::hash::{
    BatchHasher, BatchPrompt, BlockHash, BlockHasher, BlockSize, BlockSizeError, CpuBatchHasher, HashedBatch,
    Identity, Prompt,
};
use xxhash_rust::xxh3::xxh3_64_with_seed;

const BLOCK_SIZES: [u32; 2] = [16, 64];
const PROMPTS: [(&str, usize); 3] = [("1k", 1 << 10), ("8k", 8 << 10), ("128k", 128 << 10)];

/// One workload, set up for both sides.
struct Case {
    tokens: Vec<u32>,
    bytes: Vec<u8>,
    hasher: BlockHasher,
    out: Vec<BlockHash>,
}

impl Case {
    fn new(block_size: u32, tokens: usize) -> Result<Self, BlockSizeError> {
        let mut rng = fastrand::Rng::with_seed(7);
        let tokens: Vec<u32> = (0..tokens).map(|_| rng.u32(..152_064)).collect();
        let bytes = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        let hasher = BlockHasher::new(BlockSize::new(block_size)?, Identity::plain());
        Ok(Self { tokens, bytes, hasher, out: Vec::new() })
    }

    fn ours(&mut self) {
        black_box(&self.hasher).hash(&Prompt::text(black_box(&self.tokens)), &mut self.out);
        black_box(&self.out);
    }

    fn theirs(&mut self) {
        let seed = black_box(self.hasher.identity().seed());
        let block = black_box(4 * self.hasher.block_size().get() as usize);
        self.out.clear();
        let blocks = black_box(&self.bytes).chunks_exact(block);
        self.out.extend(blocks.map(|block| BlockHash(xxh3_64_with_seed(block, seed))));
        black_box(&self.out);
    }
}

fn groups(criterion: &mut Criterion) -> Result<(), BlockSizeError> {
    for block_size in BLOCK_SIZES {
        let mut group = criterion.benchmark_group(format!("hash/{block_size}"));
        for (name, tokens) in PROMPTS {
            let mut case = Case::new(block_size, tokens)?;
            group.throughput(Throughput::Bytes(4 * tokens as u64));
            group.bench_function(BenchmarkId::new("kvroute", name), |bench| bench.iter(|| case.ours()));
            group.bench_function(BenchmarkId::new("xxh3_64_with_seed", name), |bench| {
                bench.iter(|| case.theirs());
            });
        }
        group.finish();
    }
    Ok(())
}

fn time(rounds: u32, mut work: impl FnMut()) -> Duration {
    let start = Instant::now();
    for _ in 0..rounds {
        work();
    }
    start.elapsed()
}

fn quantile(sorted: &[f64], of: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * of) as usize]
}

/// The ratios of ours to theirs over pairs of short runs, each pair back to back and in alternating order.
fn ratios(case: &mut Case) -> Vec<f64> {
    const PAIRS: usize = 301;
    // About 50 us a run: long against the clock, short against what disturbs a shared machine.
    let rounds = (200_000 / case.tokens.len() as u32).max(1);
    let mut ratios: Vec<f64> = (0..PAIRS)
        .map(|pair| {
            let (ours, theirs);
            if pair % 2 == 0 {
                ours = time(rounds, || case.ours());
                theirs = time(rounds, || case.theirs());
            } else {
                theirs = time(rounds, || case.theirs());
                ours = time(rounds, || case.ours());
            }
            ours.as_secs_f64() / theirs.as_secs_f64()
        })
        .collect();
    ratios.sort_unstable_by(f64::total_cmp);
    ratios
}

fn print_ratios() -> Result<(), BlockSizeError> {
    for block_size in BLOCK_SIZES {
        let mut all = Vec::new();
        for (name, tokens) in PROMPTS {
            let of_prompt = ratios(&mut Case::new(block_size, tokens)?);
            println!(
                "ratio hash {block_size} on {name}: median {:.3}, quartiles {:.3} to {:.3}",
                quantile(&of_prompt, 0.5),
                quantile(&of_prompt, 0.25),
                quantile(&of_prompt, 0.75)
            );
            all.extend(of_prompt);
        }
        all.sort_unstable_by(f64::total_cmp);
        println!("RATIO hash {block_size} vs xxh3_64_with_seed {:.3}", quantile(&all, 0.5));
    }
    Ok(())
}

/// Nanoseconds a block of the fastest of some runs over a batch of `tokens`.
fn per_block(block_size: u32, tokens: &[u32], threads: NonZeroUsize) -> Result<f64, Box<dyn Error>> {
    const RUNS: usize = 21;
    let mut hasher = CpuBatchHasher::with_threads(BlockSize::new(block_size)?, threads);
    // Prompts of 8192 tokens, as a trace has them.
    let prompts: Vec<_> = tokens
        .chunks(8 << 10)
        .map(|tokens| BatchPrompt { identity: Identity::plain(), prompt: Prompt::text(tokens) })
        .collect();
    let mut out = HashedBatch::new();
    hasher.hash(&prompts, &mut out)?;
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let start = Instant::now();
        hasher.hash(black_box(&prompts), &mut out)?;
        best = best.min(start.elapsed().as_secs_f64());
        black_box(out.all());
    }
    Ok(best * 1e9 / out.all().len() as f64)
}

fn print_batches() -> Result<(), Box<dyn Error>> {
    let threads = thread::available_parallelism()?;
    println!("\n| tokens in a block | blocks in the batch | CPU, 1 thread | CPU, {threads} threads |");
    println!("|---|---|---|---|");
    for block_size in BLOCK_SIZES {
        let mut rng = fastrand::Rng::with_seed(7);
        let tokens: Vec<u32> = (0..1 << 22).map(|_| rng.u32(..152_064)).collect();
        for count in [1 << 16, 1 << 18, 1 << 20, 1 << 22] {
            let tokens = &tokens[..count];
            let one = per_block(block_size, tokens, NonZeroUsize::MIN)?;
            let all = per_block(block_size, tokens, threads)?;
            let blocks = count / block_size as usize;
            println!("| {block_size} | {blocks} | {one:.2} ns a block | {all:.2} |");
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut criterion = Criterion::default().configure_from_args();
    groups(&mut criterion)?;
    criterion.final_summary();
    // `cargo test` runs benches once, to see that they work: without `--bench`.
    if std::env::args().any(|argument| argument == "--bench") {
        print_ratios()?;
        print_batches()?;
    }
    Ok(())
}
