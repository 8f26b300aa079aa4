//! A router and its engines in a world where everything goes wrong: batches are lost, said twice, too late, or cut; engines die,
//! silently or not, and return as others; replays stay unanswered, rings are short, and the index is slower than the engines.
//!
//! The engines' caches, the decoder, the stream's state machine, the sink, the applier and the index are those of production;
//! sockets, threads and clocks are replaced by one random source. A seed makes one world, always the same:
//!
//! * after every step, a rank without a connection, or of which it is known that it may be another one, is credited nothing; any
//!   other is credited no block that its present incarnation did not hold at the batch that the router says it has come to, and
//!   exactly those it held if the stream is live (`checks.rs`);
//! * once the faults have stopped, every stream has come to its engine's last batch within half a minute of virtual time, if the
//!   engine says one batch more, and is live, or says that it is not; those that say so hold the truth once the engine's cache has
//!   turned over;
//! * all that happened to a stream is in its counters, queues are bounded, and when ranks go, nothing is left of them.
//!
//! `KVROUTE_WORLDS` is the number of worlds, `KVROUTE_FIRST_WORLD` the seed of the first, from which the others count on;
//! `KVROUTE_WORLD` is the seed of a single one, whose story is then told.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]
#![cfg(feature = "server")]

mod checks;
mod engine;
mod network;
mod prompts;
mod router;
mod wire;
mod world;

use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use parking_lot::Mutex;

use crate::{
    checks::{Settled, Texts},
    router::Broken,
    world::World,
};

/// Steps until the faults stop.
const STEPS: usize = 1_000;
/// After how many everything is looked up, and not one text.
const ALL_TEXTS: usize = 25;

/// What is wrong in a world, or how it ended.
fn run(seed: u64, broken: Broken, tells: bool) -> Result<Settled, String> {
    let mut world = World::new(seed, broken);
    world.log = tells.then(Vec::new);
    let ended = catch_unwind(AssertUnwindSafe(|| live(&mut world)));
    let ended = ended.unwrap_or_else(|_| Err("it panicked".to_owned()));
    if let Some(log) = &world.log {
        log.iter().for_each(|line| println!("{line}"));
    }
    ended
}

fn live(world: &mut World) -> Result<Settled, String> {
    for step in 0..STEPS {
        world.step();
        let texts = world.prompts.texts.len();
        let text = world.rng.usize(..texts);
        world.check_all(if step % ALL_TEXTS == 0 { Texts::All } else { Texts::One(text) })?;
    }
    world.settle()
}

#[expect(clippy::disallowed_methods, reason = "a test has no configuration but this")]
fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap())
}

/// Runs the worlds of these seeds on all processors until one is found wrong.
fn find_wrong(seeds: Range<u64>, broken: Broken, ended: impl Fn(Settled) + Sync) -> Option<(u64, String)> {
    let (next, wrong) = (AtomicU64::new(seeds.start), Mutex::new(None));
    let work = || {
        while wrong.lock().is_none() {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            match run(seed, broken, false) {
                Ok(settled) => ended(settled),
                Err(found) => *wrong.lock() = Some((seed, found)),
            }
        }
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    wrong.into_inner()
}

#[test]
fn the_index_is_the_engines_truth_or_says_that_it_is_not() {
    if let Some(seed) = setting("KVROUTE_WORLD") {
        let ended = run(seed, Broken::Nothing, true);
        assert!(ended.is_ok(), "world {seed}: {ended:?}");
        println!("world {seed}: {ended:?}");
        return;
    }
    let worlds = setting("KVROUTE_WORLDS").unwrap_or(1_000);
    let first = setting("KVROUTE_FIRST_WORLD").unwrap_or(0);
    let sum = Mutex::new(Settled::default());
    let wrong =
        find_wrong(first..first.saturating_add(worlds), Broken::Nothing, |settled| sum.lock().add(settled));
    if let Some((seed, found)) = wrong {
        panic!(
            "world {seed}: {found}\nits story: KVROUTE_WORLD={seed} cargo test --test fault_world the_index_is -- --nocapture"
        );
    }
    let sum = sum.into_inner();
    println!("{worlds} worlds from {first} on: {sum:?}");
    // Worlds in which nothing happens show nothing.
    let happened = [sum.live, sum.incomplete, sum.gaps, sum.restarts, sum.unreadable, sum.overloads];
    assert!(worlds < 100 || happened.iter().all(|&count| count > worlds / 10), "{sum:?}");
}

/// A simulation that nothing could fail would show nothing.
#[test]
fn a_broken_router_is_found_out() {
    let broken = [
        Broken::KeepsOldEngines,
        Broken::StepsOverGaps,
        Broken::StepsOverGarble,
        Broken::TakesLateReplays,
        Broken::TrustsConnections,
        Broken::ForgetsRefusals,
    ];
    for broken in broken {
        let wrong = find_wrong(0..200, broken, |_| {});
        let (seed, found) =
            wrong.unwrap_or_else(|| panic!("nothing was found wrong with a router that is {broken:?}"));
        println!("{broken:?}: world {seed}: {found}");
    }
}
