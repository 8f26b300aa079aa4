//! Random histories of whole fleets, applied to the index and to the reference, operation by operation: large enough
//! for sets of holders, for groups of marks, for runs that are full and for tables that split.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod extremes;
mod fleet;
mod prompts;
#[path = "../twin/mod.rs"]
mod twin;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use fleet::Fleet;
use proptest::test_runner::Config;

/// Runs `history` with one seed after another, as many as PROPTEST_CASES makes of `cases`, and tells the one that fails.
fn with_seeds(cases: u32, history: impl Fn(u64)) {
    let seeds = u64::from((Config::default().cases * cases / 256).max(1));
    for seed in 0..seeds {
        if let Err(failure) = catch_unwind(AssertUnwindSafe(|| history(seed))) {
            eprintln!("seed {seed}");
            resume_unwind(failure);
        }
    }
}

#[test]
fn fleets_of_all_kinds() {
    with_seeds(8, |seed| Fleet::new(seed).live());
}

#[test]
fn chains_beyond_a_run() {
    with_seeds(1, extremes::chains_beyond_a_run);
}

#[test]
fn tables_that_split() {
    with_seeds(1, extremes::tables_that_split);
}

#[test]
fn churn_is_bounded() {
    with_seeds(1, extremes::churn_is_bounded);
}
