//! Lookups while the index changes: each whole answer must be the reference's at one moment between the lookup's start
//! and its end.
//!
//! The reference's answers after every single block are worked out beforehand. A reader notes how much was
//! done before it began and how much had been begun when it was through.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod script;
#[path = "../twin/mod.rs"]
mod twin;

use std::{
    num::NonZeroUsize,
    sync::atomic::{
        AtomicBool, AtomicUsize,
        Ordering::{Acquire, Relaxed, SeqCst},
    },
    thread,
};

use fastrand::Rng;
use kvroute::index::{IndexWriter, PrefixIndex, Scratch};
use proptest::test_runner::Config;
use script::{Kind, Script, Step};
use twin::{Answer, collect};

/// How far the writer is, in moments.
#[derive(Default)]
struct Progress {
    begun: AtomicUsize,
    finished: AtomicUsize,
    over: AtomicBool,
}

/// What a reader went through.
#[derive(Default, Debug)]
struct Tally {
    lookups: u64,
    /// During which the writer went on.
    overlapping: u64,
    /// Passes dropped, in all, and in the one lookup that dropped most.
    retries: u64,
    most_retries: u64,
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.lookups += other.lookups;
        self.overlapping += other.overlapping;
        self.retries += other.retries;
        self.most_retries = self.most_retries.max(other.most_retries);
    }
}

fn write(script: &Script, writer: &mut IndexWriter, progress: &Progress) {
    for (step, moment) in &script.steps {
        progress.begun.store(*moment, SeqCst);
        match step {
            Step::Apply(slot, event) => _ = writer.apply(*slot, event),
            Step::Retire(slot) => _ = writer.retire(*slot),
            Step::Tidy => _ = writer.tidy(),
        }
        progress.finished.store(*moment, SeqCst);
    }
    progress.over.store(true, SeqCst);
}

fn read(script: &Script, index: &PrefixIndex, progress: &Progress, mut rng: Rng) -> Tally {
    let mut tally = Tally::default();
    let (mut scratch, mut answer, mut depths) = (Scratch::new(), Answer::new(), vec![0; 4_096]);
    while !progress.over.load(Relaxed) {
        let at = rng.usize(..script.prompts.len());
        let (prompt, dense) = (&script.prompts[at], rng.u8(..4) == 0);
        let before = scratch.retries();
        let first = progress.finished.load(Acquire);
        let last;
        if dense {
            index.gpu_depths(prompt, &mut scratch, &mut depths);
            last = progress.begun.load(SeqCst);
        } else {
            let overlaps = index.overlap(prompt, &mut scratch);
            last = progress.begun.load(SeqCst);
            collect(&overlaps, &mut answer);
        }
        let right = if dense {
            script.allowed_depths(at, first, last, depths.len()).any(|allowed| allowed == depths)
        } else {
            script.allowed(at, first, last).any(|allowed| *allowed == answer)
        };
        if !right {
            let allowed: Vec<&Answer> = script.allowed(at, first, last).collect();
            let found: Vec<(usize, &u32)> =
                depths.iter().enumerate().filter(|(_, depth)| **depth > 0).collect();
            panic!(
                "prompt {at}, moments {first} to {last}: found {}, which is none of {allowed:?}",
                if dense { format!("{found:?}") } else { format!("{answer:?}") },
            );
        }
        let retries = scratch.retries() - before;
        tally.add(&Tally {
            lookups: 1,
            overlapping: u64::from(first < last),
            retries,
            most_retries: retries,
        });
    }
    tally
}

/// As many scripts as PROPTEST_CASES makes of `cases`, each on a fresh index.
fn stress(cases: u32, readers: u64, kind: Kind) {
    let mut sum = Tally::default();
    for seed in 0..u64::from((Config::default().cases * cases / 256).max(1)) {
        let script = Script::new(seed, kind);
        let (index, mut writers) = PrefixIndex::with_pending_limit(NonZeroUsize::MIN, 0);
        let progress = Progress::default();
        thread::scope(|scope| {
            let readers: Vec<_> = (0..readers)
                .map(|reader| Rng::with_seed(seed ^ reader << 32))
                .map(|rng| scope.spawn(|| read(&script, &index, &progress, rng)))
                .collect();
            write(&script, &mut writers[0], &progress);
            for reader in readers {
                match reader.join() {
                    Ok(tally) => sum.add(&tally),
                    Err(_) => panic!("a reader failed with the script of seed {seed}"),
                }
            }
        });
    }
    println!("{sum:?}");
    assert!(sum.lookups > 0);
}

const FLEET: Kind = Kind { slots: 12, depth: 40, slower: 0, endings: 4, own_names: false, steps: 2_000 };

#[test]
fn many_slots_share_runs() {
    stress(2, 2, FLEET);
}

#[test]
fn everything_is_cleared_all_the_time() {
    stress(2, 2, Kind { slots: 4, depth: 12, endings: 30, ..FLEET });
}

#[test]
fn slower_tiers_and_holes() {
    stress(2, 2, Kind { slots: 8, depth: 16, slower: 5, endings: 6, ..FLEET });
}

#[test]
fn slower_tiers_are_cleared_all_the_time() {
    stress(2, 3, Kind { slots: 3, depth: 6, slower: 5, endings: 30, ..FLEET });
}

#[test]
fn every_engine_has_its_own_names() {
    stress(1, 1, Kind { slots: 9, depth: 20, slower: 2, own_names: true, ..FLEET });
}

#[test]
fn more_slots_than_fit_in_a_header_come_and_go() {
    stress(1, 2, Kind { slots: 90, depth: 4, slower: 1, endings: 10, steps: 1_500, ..FLEET });
}
