//! A simulated fleet of GPUs of three speeds, of which nobody says so: speeds that are learned against weights that were searched.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

use fastrand::Rng;
use kvroute::{
    hash::BlockHash,
    simulate::{Groups, Job, Policy, Setting, Workload, run},
};

const SPEEDS: [f64; 6] = [1.0, 2.0, 4.0, 1.0, 2.0, 4.0];
const PAGE: u32 = 128;

/// Requests that teach, and those that count.
const LEARNING: usize = 200;
const COUNTED: usize = 5_000;

/// A static weight is the speed over the highest, to one of these powers; 0 is no weights.
const POWERS: [f64; 6] = [0.0, 0.5, 0.75, 1.0, 1.25, 1.5];

fn around(rng: &mut Rng, mean: u64) -> u64 {
    mean / 2 + rng.u64(..=mean)
}

/// `rate` prompts a second of about 2,000 tokens, which share nothing, with answers of about 100.
fn alone(rate: f64, seed: u64) -> Workload {
    let mut rng = Rng::with_seed(seed);
    let mut at = 0.0;
    let jobs = (0..LEARNING + COUNTED).map(|_| {
        at -= (1.0 - rng.f64()).ln() / rate;
        let (prompt, output) = (around(&mut rng, 2_000), around(&mut rng, 100));
        let pages = (0..(prompt + output) / u64::from(PAGE)).map(|_| BlockHash(rng.u64(..)));
        (at, Job::new(prompt, output, pages.collect()))
    });
    Workload::recorded(PAGE, jobs.collect::<Vec<_>>())
}

/// The median and the 99th percentile of the seconds to the first token, after learning.
#[derive(Clone, Copy, Debug)]
struct Tail {
    p50: f64,
    p99: f64,
}

fn tail(workload: &Workload, policy: &str, power: Option<f64>, seed: u64) -> Tail {
    let mean = SPEEDS.iter().sum::<f64>() / SPEEDS.len() as f64;
    let most = SPEEDS.iter().copied().fold(0.0, f64::max);
    let weights =
        power.map_or_else(Vec::new, |power| SPEEDS.map(|speed| (speed / most).powf(power)).to_vec());
    let setting = Setting {
        speeds: SPEEDS.map(|speed| speed / mean).to_vec(),
        capabilities: weights,
        ..Setting::of(SPEEDS.len())
    };
    let policy: Policy = policy.parse().unwrap();
    let outcome = run(workload, &policy, &setting, seed).unwrap();
    let mut times: Vec<_> = outcome.served[LEARNING..].iter().map(|served| served.first_token).collect();
    times.sort_unstable_by(f64::total_cmp);
    Tail { p50: times[times.len() / 2], p99: times[times.len() * 99 / 100] }
}

/// What is learned, the best static weights by their p99, in the models that learn no speed and then in all, and the least of each
/// figure that any weights had.
fn search(workload: &Workload, seed: u64) -> [Tail; 4] {
    let learned = tail(workload, "time", None, seed);
    println!("seed {seed}: learned {learned:.4?}");
    let mut least = Tail { p50: f64::INFINITY, p99: f64::INFINITY };
    let mut best_of = |policies: &[&str]| {
        let mut best = Tail { p50: f64::INFINITY, p99: f64::INFINITY };
        for policy in policies {
            for power in POWERS {
                let found = tail(workload, policy, Some(power), seed);
                println!("    {policy}, speed^{power}: {found:.4?}");
                least = Tail { p50: least.p50.min(found.p50), p99: least.p99.min(found.p99) };
                if found.p99 < best.p99 {
                    best = found;
                }
            }
        }
        best
    };
    let unlearned = best_of(&["blocks", "blocks-s20c2"]);
    let beside = best_of(&["time"]);
    let all = if beside.p99 < unlearned.p99 { beside } else { unlearned };
    println!("    best without learning {unlearned:.4?}, of all {all:.4?}; least {least:.4?}");
    [learned, unlearned, all, least]
}

fn is_near_the_best(seed: u64) {
    // Three quarters of the 5.5 requests a second that an engine of mean speed can do.
    let rate = 0.75 * 5.5 * SPEEDS.len() as f64;
    let [learned, unlearned, all, least] = search(&alone(rate, seed), seed);
    for best in [unlearned, all, least] {
        assert!(learned.p50 <= 1.1 * best.p50 && learned.p99 <= 1.1 * best.p99, "{learned:?} {best:?}");
    }
}

#[test]
fn what_is_learned_is_near_the_best_static_weights() {
    is_near_the_best(1);
}

#[test]
#[ignore = "a minute: more seeds"]
fn what_is_learned_is_near_the_best_static_weights_in_more_draws() {
    (2..=5).for_each(is_near_the_best);
}

/// Where many prompts share a few beginnings, medians are near those of the best weights, and tails are not.
#[test]
#[ignore = "a minute: where it is behind, and by how much"]
fn where_prefixes_are_shared_tails_are_behind_the_best_static_weights() {
    let groups = Groups { prompts: 100, prompt_tokens: 1_920, question_tokens: 300, output_tokens: 100 };
    for (rate, seed) in [(36.0, 1), (36.0, 2), (72.0, 1), (72.0, 2)] {
        println!("{rate} requests a second");
        let seconds = (LEARNING + COUNTED) as f64 / rate;
        let [learned, _, all, _] = search(&groups.workload(rate, seconds, &mut Rng::with_seed(seed)), seed);
        assert!(learned.p50 <= 1.25 * all.p50 && learned.p99 <= 1.6 * all.p99, "{learned:?} {all:?}");
    }
}
