//! A simulated fleet in which GPUs get hot or fall off the bus, with and without telemetry.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

use std::ops::Range;

use fastrand::Rng;
use kvroute::{
    device::Weights,
    hash::BlockHash,
    simulate::{Change, Happening, Job, Outcome, Policy, Setting, Workload, run},
};

const ENGINES: usize = 8;
const PAGE: u32 = 128;

/// Of what the healthy fleet can do.
const LOAD: f64 = 0.75;

/// Engines 0 and 1 are throttled from then on, to this part of their clocks.
const HOT: [usize; 2] = [0, 1];
const FROM: f64 = 30.0;
const CLOCKS: f64 = 0.35;
const UNTIL: f64 = 150.0;

fn around(rng: &mut Rng, mean: u64) -> u64 {
    mean / 2 + rng.u64(..=mean)
}

/// A prompt of about 2,000 tokens that shares nothing with any other, and an answer of about 100.
fn job(rng: &mut Rng) -> Job {
    let (prompt, output) = (around(rng, 2_000), around(rng, 100));
    let pages = (0..(prompt + output) / u64::from(PAGE)).map(|_| BlockHash(rng.u64(..)));
    Job::new(prompt, output, pages.collect())
}

/// Requests a second that one engine serves which never waits for any.
fn capacity() -> f64 {
    let mut rng = Rng::with_seed(0);
    let workload = Workload::recorded(PAGE, (0..1_000).map(|_| (0.0, job(&mut rng))).collect::<Vec<_>>());
    let outcome = run(&workload, &policy("round-robin", true), &Setting::of(1), 0).unwrap();
    let last = outcome.served.iter().map(|served| served.total).fold(0.0, f64::max);
    1_000.0 / last
}

/// Requests at the times of a Poisson process, at [`LOAD`] of what the fleet can do while it is well.
fn workload(capacity: f64, seed: u64) -> Workload {
    let mut rng = Rng::with_seed(seed);
    let rate = LOAD * ENGINES as f64 * capacity;
    let (mut jobs, mut at) = (Vec::new(), 0.0);
    loop {
        at -= (1.0 - rng.f64()).ln() / rate;
        if at > UNTIL {
            return Workload::recorded(PAGE, jobs);
        }
        jobs.push((at, job(&mut rng)));
    }
}

fn policy(name: &str, enabled: bool) -> Policy {
    let mut policy: Policy = name.parse().unwrap();
    policy.tuning.device_weights = Weights { enabled, ..Weights::default() };
    policy
}

fn telemetry(changes: Vec<Change>) -> Setting {
    Setting { changes, telemetry: true, ..Setting::of(ENGINES) }
}

fn at(at: f64, what: Happening) -> Vec<Change> {
    HOT.map(|engine| Change { at, engine, what }).to_vec()
}

/// Below this are so many of a hundred of the seconds to the first token, of requests that came within `when`.
fn percentile(hundredths: usize, outcome: &Outcome, when: Range<f64>) -> f64 {
    let came = outcome.served.iter().filter(|served| when.contains(&served.came));
    let mut times: Vec<_> = came.map(|served| served.first_token).collect();
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() * hundredths / 100]
}

fn p99(outcome: &Outcome, when: Range<f64>) -> f64 {
    percentile(99, outcome, when)
}

/// The part of the requests that came within `when` which engines 0 and 1 served.
fn share(outcome: &Outcome, when: Range<f64>) -> f64 {
    let came = outcome.served.iter().filter(|served| when.contains(&served.came));
    let (theirs, all) = came
        .fold((0, 0), |(theirs, all), served| (theirs + u32::from(HOT.contains(&served.engine)), all + 1));
    f64::from(theirs) / f64::from(all)
}

/// The p99 with device weights and without, of ten seeds, from the moment on at which two engines report that they are
/// throttled.
fn throttled(model: &str) -> Vec<[f64; 2]> {
    let capacity = capacity();
    let of_seed = |seed| {
        let workload = workload(capacity, seed);
        let p99s = [true, false].map(|enabled| {
            let setting = telemetry(at(FROM, Happening::Clocks(CLOCKS)));
            let outcome = run(&workload, &policy(model, enabled), &setting, seed).unwrap();
            assert_eq!(outcome.served.len(), workload.sessions.len());
            println!(
                "{model}, seed {seed}, weights {enabled}: p50 {:.3} s",
                percentile(50, &outcome, FROM..UNTIL)
            );
            p99(&outcome, FROM..UNTIL)
        });
        let [with, without] = p99s;
        println!(
            "{model}, seed {seed}: p99 {with:.3} s with weights, {without:.3} s without, {:.2}",
            with / without
        );
        p99s
    };
    (1..=10).map(of_seed).collect()
}

#[test]
fn under_blocks_weights_take_the_tail_off_a_throttled_fleet() {
    for [with, without] in throttled("blocks") {
        assert!(with <= 0.6 * without, "{with} against {without}");
    }
}

/// Learned speeds do most of it there without weights. If what was learned of a slot were not taken as it is at full clocks, a
/// throttled one would count as slow twice, and weights would gain nothing at all: both means are then 0.94 s.
#[test]
fn under_time_weights_add_to_what_learned_speeds_do() {
    let p99s = throttled("time");
    let mean = |arm: usize| p99s.iter().map(|arms| arms[arm]).sum::<f64>() / p99s.len() as f64;
    println!("mean {:.3} s with weights, {:.3} s without", mean(0), mean(1));
    assert!(mean(0) <= 0.95 * mean(1));
}

#[test]
fn what_telemetry_does_not_report_is_healed_by_learned_speed_alone() {
    let capacity = capacity();
    for seed in 1..=3 {
        let workload = workload(capacity, seed);
        let [time, blocks] = ["time", "blocks"].map(|model| {
            let changes = [at(FROM, Happening::Speed(CLOCKS)), at(90.0, Happening::Speed(1.0))].concat();
            run(&workload, &policy(model, true), &telemetry(changes), seed).unwrap()
        });
        let during = FROM..90.0;
        let tails = [&time, &blocks].map(|outcome| p99(outcome, during.clone()));
        let shares = [0.0..FROM, FROM + 10.0..90.0, 120.0..UNTIL].map(|when| share(&time, when));
        println!(
            "seed {seed}: p99 {:.3} s under time, {:.3} s under blocks; shares {shares:.3?}",
            tails[0], tails[1]
        );
        assert!(tails[0] <= 0.6 * tails[1]);
        assert!(shares[1] <= 0.6 * shares[0] && shares[2] >= 0.7 * shares[0]);
    }
}

#[test]
fn a_fleet_that_cools_down_comes_back_and_does_not_swing() {
    let capacity = capacity();
    for (model, seed) in [("time", 1), ("time", 2), ("blocks", 1), ("blocks", 2)] {
        let changes = [at(FROM, Happening::Clocks(CLOCKS)), at(70.0, Happening::Clocks(1.0))].concat();
        let outcome =
            run(&workload(capacity, seed), &policy(model, true), &telemetry(changes), seed).unwrap();
        let windows = |from: u32, to: u32| {
            (from..to)
                .step_by(10)
                .map(|at| share(&outcome, f64::from(at)..f64::from(at + 10)))
                .collect::<Vec<_>>()
        };
        let (before, hot, after) = (windows(0, 30), windows(40, 70), windows(80, 150));
        println!("{model}, seed {seed}: shares {before:.2?}, hot {hot:.2?}, after {after:.2?}");
        assert!(outcome.fences.is_empty(), "slow is not broken");
        let usual = before.iter().sum::<f64>() / before.len() as f64;
        assert!(hot.iter().all(|&share| share <= 0.6 * usual));
        assert!(after.iter().all(|&share| (0.7 * usual..=1.3 * usual).contains(&share)));
        assert!(p99(&outcome, 90.0..UNTIL) <= 1.5 * p99(&outcome, 0.0..FROM));
    }
}

/// Engine 0's GPU falls off the bus; the engine notices 12 s later and dies, and comes again once the GPU is back.
#[test]
fn a_lost_gpu_is_fenced_within_two_samples_and_its_requests_finish_elsewhere() {
    const LOST: f64 = 40.02;
    const DIES: f64 = 52.0;
    let change = |at, what| Change { at, engine: 0, what };
    let changes = vec![
        change(LOST, Happening::LosesGpu),
        change(DIES, Happening::Dies),
        change(80.0, Happening::RegainsGpu),
        change(82.0, Happening::Comes),
    ];
    let capacity = capacity();
    for (model, seed) in [("time", 1), ("time", 2), ("blocks", 1), ("blocks", 2)] {
        let workload = workload(capacity, seed);
        let outcome = run(&workload, &policy(model, true), &telemetry(changes.clone()), seed).unwrap();
        let [up, down] = outcome.fences[..] else { panic!("{:?}", outcome.fences) };
        println!("{model}, seed {seed}: {up:?} {down:?}, {} answers broke off", outcome.broken);
        assert!(up.up && up.engine == 0 && up.at - LOST <= 2.0);
        assert!(!down.up && down.engine == 0 && (84.0..=86.0).contains(&down.at), "five clean samples");
        assert_eq!(outcome.served.len() + outcome.broken, workload.sessions.len());
        let fenced = outcome.served.iter().filter(|served| (up.at..down.at).contains(&served.came));
        assert!(fenced.clone().count() > 500 && fenced.clone().all(|served| served.engine != 0));
        let moved = |served: &&kvroute::simulate::Served| {
            served.came < up.at && served.came + served.first_token > DIES
        };
        let moved: Vec<_> = outcome.served.iter().filter(moved).collect();
        assert!(!moved.is_empty() && moved.iter().all(|served| served.engine != 0));
        assert!(
            outcome.served.iter().any(|served| served.came > down.at && served.engine == 0),
            "it is used again"
        );
        // Nobody who came while it was fenced waited for it to die.
        let worst = fenced.map(|served| served.first_token).fold(0.0, f64::max);
        assert!(worst < 5.0, "{worst}");

        let blind = run(&workload, &policy(model, false), &telemetry(changes.clone()), seed).unwrap();
        let stranded = blind.served.iter().filter(|served| (up.at..DIES).contains(&served.came));
        let stranded = stranded.filter(|served| served.came + served.first_token > DIES + 0.002).count();
        println!("    without weights {stranded} more were sent there to wait for its death");
    }
}
