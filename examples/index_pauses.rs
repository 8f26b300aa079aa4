//! How long the index's writer is held up by a single event while the index grows.
//!
//! ```text
//! cargo run --release --no-default-features --example index_pauses [MILLIONS_OF_ENTRIES [REPETITIONS [WORKLOAD]]]
//! ```
//!
//! Every workload is stored into an index that begins empty, and into one that was told what to expect; each event is
//! timed by itself, in CPU time. Events of 512 blocks are as long as an engine's that prefills 8,192 tokens at a time. Of
//! several repetitions (3) the one with the shortest longest pause counts: what the index does, it does in all of them. With
//! WORKLOAD, the beginning of a name in the table, only those workloads are stored.

use std::num::NonZeroUsize;

use kvroute::{
    event::{EngineHash, Event, Removed, Stored, StoredBlock, Tier},
    hash::BlockHash,
    index::{IndexWriter, PrefixIndex},
    slot::Slot,
};

const SLOTS: u32 = 64;

/// Calls with each event until so many blocks were stored.
type Workload = fn(u64, &mut dyn FnMut(Slot, &Event));

fn block(content: u64, name: u64) -> StoredBlock {
    let mix = |word: u64| {
        word.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0xff51_afd7_ed55_8ccd)
    };
    StoredBlock { engine: EngineHash(mix(name)), content: Some(BlockHash(mix(content))) }
}

fn stored(parent: Option<EngineHash>, blocks: &[StoredBlock]) -> Event {
    Event::Stored(Stored { tier: Tier::Gpu, parent, blocks: blocks.iter().copied().collect() })
}

fn slot(number: u64) -> Slot {
    Slot { index: (number % u64::from(SLOTS)) as u32, generation: 0 }
}

/// Chains that nobody shares, of `length` blocks, in events of `event` blocks.
fn chains(blocks: u64, length: u64, event: u64, each: &mut dyn FnMut(Slot, &Event)) {
    for chain in 0..blocks / length {
        let mut parent = None;
        for from in (0..length).step_by(event as usize) {
            let new: Vec<_> = (from..(from + event).min(length))
                .map(|at| block(chain * length + at, chain * length + at))
                .collect();
            each(slot(chain), &stored(parent, &new));
            parent = new.last().map(|block| block.engine);
        }
    }
}

fn long_prompts(blocks: u64, each: &mut dyn FnMut(Slot, &Event)) {
    chains(blocks, 4_096, 512, each);
}

fn one_by_one(blocks: u64, each: &mut dyn FnMut(Slot, &Event)) {
    chains(blocks, 1_024, 1, each);
}

fn short_prompts(blocks: u64, each: &mut dyn FnMut(Slot, &Event)) {
    chains(blocks, 2, 2, each);
}

/// All slots hold the same chains, and each calls their blocks otherwise.
fn own_names(blocks: u64, each: &mut dyn FnMut(Slot, &Event)) {
    const LENGTH: u64 = 512;
    const EVENT: u64 = 16;
    for chain in 0..blocks / LENGTH / u64::from(SLOTS) {
        for holder in 0..u64::from(SLOTS) {
            let mut parent = None;
            for from in (chain * LENGTH..(chain + 1) * LENGTH).step_by(EVENT as usize) {
                let new: Vec<_> = (from..from + EVENT).map(|at| block(at, at << 8 | holder)).collect();
                each(slot(holder), &stored(parent, &new));
                parent = new.last().map(|block| block.engine);
            }
        }
    }
}

/// One run of `2 * depths` blocks, of which every slot holds another number, grows and shrinks by a block for each of
/// them in turn; nanoseconds a change.
fn depths(depths: u32) -> f64 {
    let mut writers = PrefixIndex::new(NonZeroUsize::MIN).1;
    let writer = &mut writers[0];
    let blocks: Vec<_> = (0..2 * u64::from(depths)).map(|at| block(at, at)).collect();
    let mut rng = fastrand::Rng::with_seed(1);
    let mut held: Vec<usize> = (0..depths as usize).map(|holder| 2 * holder + 1).collect();
    for (index, &depth) in (0..depths).zip(&held).rev() {
        writer.apply(Slot { index, generation: 0 }, &stored(None, &blocks[..depth]));
    }
    let changes = 100_000;
    let start = cpu_time();
    for _ in 0..changes {
        let index = rng.u32(..depths);
        let slot = Slot { index, generation: 0 };
        let depth = &mut held[index as usize];
        if *depth < blocks.len() && (*depth == 1 || rng.bool()) {
            writer.apply(slot, &stored(Some(blocks[*depth - 1].engine), &blocks[*depth..=*depth]));
            *depth += 1;
        } else {
            *depth -= 1;
            let hashes = [blocks[*depth].engine].into_iter().collect();
            writer.apply(slot, &Event::Removed(Removed { tier: Tier::Gpu, hashes, remaining_copies: None }));
        }
    }
    (cpu_time() - start) as f64 / f64::from(changes)
}

/// CPU time of this thread in nanoseconds: others that want the core do not count.
#[allow(unsafe_code, reason = "the standard library has no clock for it")]
fn cpu_time() -> u64 {
    unsafe extern "C" {
        fn clock_gettime(clock: i32, time: *mut [i64; 2]) -> i32;
    }
    const THREAD: i32 = 3;
    let mut time = [0; 2];
    // SAFETY: Linux's struct timespec is two words of 64 bits on the machines that this is for.
    unsafe { clock_gettime(THREAD, &raw mut time) };
    time[0].unsigned_abs() * 1_000_000_000 + time[1].unsigned_abs()
}

#[derive(Default)]
struct Pauses {
    /// Events by their nanoseconds' power of two.
    by_power: [u64; 32],
    /// Nanoseconds.
    longest: [u64; 3],
}

impl Pauses {
    fn time(&mut self, work: impl FnOnce()) {
        let start = cpu_time();
        work();
        let nanoseconds = cpu_time() - start;
        self.by_power[nanoseconds.max(1).ilog2().min(31) as usize] += 1;
        if nanoseconds > self.longest[2] {
            self.longest[2] = nanoseconds;
            self.longest.sort_unstable_by(|a, b| b.cmp(a));
        }
    }

    fn above(&self, power: usize) -> u64 {
        self.by_power[power..].iter().sum()
    }
}

fn fill(workload: Workload, blocks: u64, expected: bool) -> (Pauses, Pauses, u64) {
    let (index, mut writers) = PrefixIndex::new(NonZeroUsize::MIN);
    let Some(writer) = writers.first_mut() else { return Default::default() };
    let mut growing = Pauses::default();
    if expected {
        writer.expect(blocks as usize);
        let mut more = true;
        while more {
            growing.time(|| more = IndexWriter::tidy(writer));
        }
    }
    let mut pauses = Pauses::default();
    workload(blocks, &mut |slot, event| {
        pauses.time(|| {
            writer.apply(slot, event);
        });
    });
    (pauses, growing, index.totals().bytes)
}

/// What the machine itself does to a thread that stores nothing: fresh memory is written to, 64 KiB at a time, as much as an
/// index of so many entries takes. Pauses that show here as well are the system's.
fn fresh_memory(entries: u64) -> Pauses {
    const PIECE: usize = 64 << 10;
    let mut pauses = Pauses::default();
    let mut pieces = Vec::new();
    for _ in 0..entries * 32 / PIECE as u64 {
        pauses.time(|| pieces.push(vec![1_u8; PIECE]));
    }
    std::hint::black_box(pieces);
    pauses
}

/// The same for arithmetic alone: 500,000 rounds of some 20 microseconds each.
fn arithmetic() -> Pauses {
    let mut pauses = Pauses::default();
    let mut sum = 1_u64;
    for _ in 0..500_000 {
        pauses.time(|| {
            for _ in 0..20_000 {
                sum = std::hint::black_box(sum.wrapping_mul(3));
            }
        });
    }
    pauses
}

impl Pauses {
    /// A line of the table; of `growing` there may be none.
    fn print(&self, name: &str, tables: &str, growing: Option<&Self>, bytes_per_entry: f64) {
        let us = |nanoseconds: u64| nanoseconds as f64 / 1e3;
        println!(
            "{name:<15} {tables:<9} {:>8.1} {:>8.1} {:>8.1} {:>6} {:>5} {:>12.1} {bytes_per_entry:>15.1}",
            us(self.longest[0]),
            us(self.longest[1]),
            us(self.longest[2]),
            self.above(16),
            self.above(20),
            us(growing.map_or(0, |growing| growing.longest[0])),
        );
    }
}

fn main() {
    let number =
        |at: usize, default| std::env::args().nth(at).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (blocks, repetitions) = (number(1, 10) * 1_000_000, number(2, 3));
    let only = std::env::args().nth(3);
    for marks in [4, 64, 1_024, 4_096] {
        println!("{marks} depths in one run: {:.0} ns a change", depths(marks));
    }
    println!("{blocks} entries; microseconds of CPU time; of {repetitions} repetitions the best");
    println!(
        "workload        tables     longest   second    third  >65us  >1ms  growth step  bytes an entry"
    );
    arithmetic().print("arithmetic", "none", None, 0.0);
    fresh_memory(blocks).print("fresh memory", "none", None, 32.0);
    let workloads: [(&str, Workload); 4] = [
        ("long prompts", long_prompts),
        ("one by one", one_by_one),
        ("short prompts", short_prompts),
        ("own names", own_names),
    ];
    for (name, workload) in workloads {
        if only.as_ref().is_some_and(|only| !name.starts_with(only.as_str())) {
            continue;
        }
        for expected in [false, true] {
            let runs = (0..repetitions).map(|_| fill(workload, blocks, expected));
            let best = runs.min_by_key(|(pauses, ..)| pauses.longest[0]);
            let Some((pauses, growing, bytes)) = best else { continue };
            let tables = if expected { "expected" } else { "grow" };
            pauses.print(name, tables, Some(&growing), bytes as f64 / blocks as f64);
        }
    }
}
