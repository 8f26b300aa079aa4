//! Drives the index and its reference with lists of operations made of random bytes, for as many seconds as the first
//! argument says, and prints the shortest list it can find that tells them apart.
//!
//! The second argument is the first seed; a failure names its own.

mod op;
#[path = "../../tests/twin/mod.rs"]
mod twin;

use std::{
    panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook},
    process::ExitCode,
    time::{Duration, Instant},
};

use arbitrary::Unstructured;
use fastrand::Rng;
use op::{Op, World};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>());
    let (Some(Ok(seconds)), first) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: kvroute-fuzz SECONDS [FIRST_SEED]");
        return ExitCode::FAILURE;
    };
    let first = first.and_then(Result::ok).unwrap_or_else(|| fastrand::u64(..1 << 48));
    let until = Instant::now() + Duration::from_secs(seconds);
    // Failures are expected while a list is shortened, and the last one is told at the end.
    let hook = take_hook();
    set_hook(Box::new(|_| {}));
    let (mut lists, mut operations) = (0_u64, 0_usize);
    while Instant::now() < until {
        let seed = first + lists;
        let ops = list(seed);
        if fails(&ops) {
            let ops = shortened(ops);
            set_hook(hook);
            eprintln!("seed {seed}, {} operations:", ops.len());
            ops.iter().for_each(|op| eprintln!("    {op:?}"));
            replay(&ops);
            return ExitCode::FAILURE;
        }
        lists += 1;
        operations += ops.len();
    }
    println!("{lists} lists with {operations} operations, from seed {first} on");
    ExitCode::SUCCESS
}

/// What the bytes of a seed spell.
fn list(seed: u64) -> Vec<Op> {
    let mut rng = Rng::with_seed(seed);
    let length = [200, 1_000, 6_000][rng.usize(..3)];
    let bytes: Vec<u8> = (0..length).map(|_| rng.u8(..)).collect();
    let mut bytes = Unstructured::new(&bytes);
    let mut ops = Vec::new();
    while !bytes.is_empty() {
        ops.extend(bytes.arbitrary::<Op>());
    }
    ops
}

fn replay(ops: &[Op]) {
    let mut world = World::new(6);
    ops.iter().for_each(|op| world.run(op));
    world.end();
}

fn fails(ops: &[Op]) -> bool {
    catch_unwind(AssertUnwindSafe(|| replay(ops))).is_err()
}

/// Leaves out whatever is not needed to fail.
fn shortened(mut ops: Vec<Op>) -> Vec<Op> {
    let mut stretch = ops.len() / 2;
    while stretch > 0 {
        let mut at = 0;
        while at < ops.len() {
            let mut fewer = ops.clone();
            fewer.drain(at..(at + stretch).min(ops.len()));
            if fails(&fewer) {
                ops = fewer;
            } else {
                at += stretch;
            }
        }
        stretch /= 2;
    }
    ops
}
