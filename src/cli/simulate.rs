//! `kvroute simulate`: policies on one simulated fleet, side by side; or recorded decisions.

use std::{fmt::Write as _, path::PathBuf};

use clap::{ArgGroup, Args, ValueEnum};

use super::{
    Outcome,
    decisions::{self, Question},
    drive::trace::{self, TraceRequest},
    print,
};
use crate::{
    config::flags::{self, RouterFlags},
    hash::BlockHash,
    simulate::{EngineModel, Figures, Job, Policy, Setting, Workload, run},
};

/// Flags of `kvroute simulate`.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("source").args(["trace", "workload", "decisions"]).required(true)))]
pub(super) struct SimulateCommand {
    /// Mooncake trace: JSON lines with timestamp, input_length, output_length and hash_ids
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Workload to make: groups (many short questions to few long system prompts), agents (conversations that grow), burst
    /// (agents, and bursts of one new prompt)
    #[arg(long, value_name = "WORKLOAD", hide_possible_values = true)]
    workload: Option<Made>,
    /// Requests to send, from the start of the trace [default: all]
    #[arg(long, value_name = "N", conflicts_with = "workload")]
    requests: Option<usize>,
    /// How many times as fast as recorded, or as what the workload sends to so many engines
    #[arg(long, default_value_t = 1.0, value_name = "X", value_parser = super::drive::rate)]
    rate: f64,
    /// Seconds for which the workload begins requests
    #[arg(long, default_value_t = 600.0, value_name = "SECONDS", value_parser = positive, conflicts_with = "trace")]
    seconds: f64,
    /// Policies to compare: time or blocks, the cost models of mode kv, as blocks:SCALE:CREDIT with other weights than the
    /// defaults; or router modes
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "POLICY,...",
        default_value = "time,blocks,blocks:20:2,least-loaded,round-robin"
    )]
    policy: Vec<Policy>,
    /// Number of engines, 1 to 1024
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    engines: u16,
    /// Speeds of the engines by turns, scaled so that together they are as fast as equal ones
    #[arg(long, value_delimiter = ',', value_name = "X,...", default_value = "1", value_parser = positive)]
    speeds: Vec<f64>,
    /// Tokens that fit the KV cache of an engine, 16384 or more
    #[arg(long, default_value_t = EngineModel::default().cache_tokens, value_name = "TOKENS",
        value_parser = clap::value_parser!(u64).range(16_384..))]
    cache_tokens: u64,
    /// Share of the requests that warm the caches and do not count, 0 to 0.9
    #[arg(long, default_value_t = 0.1, value_name = "SHARE", value_parser = share)]
    warm_up: f64,
    /// Runs of each policy, with other draws, 1 to 100
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100))]
    seeds: u64,
    /// Make the decisions of a log again (frontend --decision-log) and say whether each comes out as it was recorded; with
    /// router flags, say what would have been chosen with them. Repeat it for several files
    #[arg(long, value_name = "FILE", help_heading = RECORDED, conflicts_with_all = ["requests", "rate", "seconds", "policy",
        "engines", "speeds", "cache_tokens", "warm_up", "seeds"])]
    decisions: Vec<PathBuf>,
    /// Show the decisions of one request instead
    #[arg(long, value_name = "ID", requires = "decisions", help_heading = RECORDED)]
    request: Option<String>,
    #[command(flatten)]
    router: RouterFlags<flags::Frontend>,
}

const RECORDED: &str = "Recorded decisions";

/// A workload that needs no file.
#[derive(ValueEnum, Clone, Copy, Debug)]
enum Made {
    Groups,
    Agents,
    Burst,
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| *number > 0.0 && f64::is_finite(*number));
    number.ok_or_else(|| "a number above 0 is needed".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=0.9).contains(number));
    number.ok_or_else(|| "a number from 0 to 0.9 is needed".to_owned())
}

/// Tokens that one hash id of a trace stands for; here they are a page.
const TRACE_PAGE: u32 = 512;

impl SimulateCommand {
    pub(super) fn run(self) -> Outcome {
        if !self.decisions.is_empty() {
            let changes = self.router.changes()?;
            return match self.request {
                Some(_) if !changes.is_empty() => {
                    Err(format!("--request shows what was recorded; leave {changes} out").into())
                }
                Some(name) => decisions::run(&self.decisions, Question::Request(name)),
                None if changes.is_empty() => decisions::run(&self.decisions, Question::Replay),
                None => decisions::run(&self.decisions, Question::WhatIf(changes)),
            };
        }
        if self.router.any() {
            return Err("router flags ask about recorded decisions (--decisions); policies are compared with --policy".into());
        }
        let recorded = match &self.trace {
            Some(path) => trace::read(path, self.requests.unwrap_or(usize::MAX))?,
            None => Vec::new(),
        };
        let workloads: Vec<_> = (1..=self.seeds).map(|seed| self.workload(&recorded, seed)).collect();
        let setting = self.setting();
        let mut rows = Vec::new();
        for policy in &self.policy {
            let mut runs = Vec::new();
            let mut unserved = 0;
            for (seed, workload) in (1..).zip(&workloads) {
                let outcome = run(workload, policy, &setting, seed)?;
                unserved += outcome.unserved;
                runs.push((outcome.figures(), outcome.prefilled.iter().sum::<u64>()));
            }
            rows.push(Row { policy: policy.name.clone(), runs, unserved });
        }
        print(&table(&rows));
        Ok(())
    }

    fn setting(&self) -> Setting {
        let engines = usize::from(self.engines);
        let speeds: Vec<f64> = self.speeds.iter().copied().cycle().take(engines).collect();
        let mean = speeds.iter().sum::<f64>() / engines as f64;
        Setting {
            model: EngineModel { cache_tokens: self.cache_tokens, ..EngineModel::default() },
            speeds: speeds.iter().map(|speed| speed / mean).collect(),
            warm_up: self.warm_up,
            ..Setting::of(engines)
        }
    }

    fn workload(&self, recorded: &[TraceRequest], seed: u64) -> Workload {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let rate = self.rate * f64::from(self.engines);
        match self.workload {
            Some(Made::Groups) => Workload::groups(1.5 * rate, self.seconds, rng),
            Some(Made::Agents) => Workload::agents(0.1 * rate, self.seconds, rng),
            Some(Made::Burst) => Workload::burst(0.1 * rate, self.seconds, rng),
            None => replayed(recorded, self.rate, rng),
        }
    }
}

/// The requests of a trace. Its clock is coarse, so those of one time are spread until the next.
fn replayed(requests: &[TraceRequest], rate: f64, rng: &mut fastrand::Rng) -> Workload {
    let due = |request: &TraceRequest| request.due(rate).as_secs_f64();
    let mut times: Vec<_> = requests.iter().map(due).collect();
    times.dedup();
    let jobs = requests.iter().map(|request| {
        let time = due(request);
        let next = times.get(times.partition_point(|&other| other <= time)).map_or(0.0, |next| next - time);
        // After a pause requests come at once again.
        let at = time + rng.f64() * next.min(3.0 / rate);
        let pages = request.input_length() / TRACE_PAGE as usize;
        let pages = request.hash_ids().iter().take(pages).map(|&id| BlockHash(id)).collect();
        (at, Job::new(request.input_length() as u64, u64::from(request.output_length()), pages))
    });
    Workload::recorded(TRACE_PAGE, jobs)
}

/// One policy's runs, each with the prompt tokens that all engines prefilled.
struct Row {
    policy: String,
    runs: Vec<(Figures, u64)>,
    unserved: usize,
}

impl Row {
    /// The mean over the runs, and how far they lie apart (standard deviation).
    fn over(&self, of: impl Fn(&Figures) -> f64) -> (f64, f64) {
        let count = self.runs.len() as f64;
        let mean = self.runs.iter().map(|(run, _)| of(run)).sum::<f64>() / count;
        let squares: f64 = self.runs.iter().map(|(run, _)| (of(run) - mean).powi(2)).sum();
        (mean, (squares / count).sqrt())
    }
}

fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "| policy | requests | TTFT mean | ± | p50 | p99 | total mean | hit rate | prefilled tokens | busiest/mean |\n\
         |---|---|---|---|---|---|---|---|---|---|"
    );
    for row in rows {
        let mean = |of: fn(&Figures) -> f64| row.over(of).0;
        let (first, apart) = row.over(|run| run.first_token[0]);
        let prefilled = row.runs.iter().map(|(_, tokens)| tokens).sum::<u64>() / row.runs.len().max(1) as u64;
        let _ = writeln!(
            text,
            "| {} | {:.0} | {first:.3} s | {apart:.3} | {:.3} s | {:.3} s | {:.2} s | {:.1} % | {prefilled} | {:.2} |",
            row.policy,
            mean(|run| run.requests),
            mean(|run| run.first_token[1]),
            mean(|run| run.first_token[2]),
            mean(|run| run.total),
            100.0 * mean(|run| run.hit_rate),
            mean(|run| run.busiest),
        );
    }
    for row in rows.iter().filter(|row| row.unserved > 0) {
        let _ = writeln!(
            text,
            "\n{}: {} requests did not fit an engine's cache and were not served; --cache-tokens makes it larger.",
            row.policy, row.unserved
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_line_for_each_policy_with_means_over_the_runs() {
        let run = |first| Figures {
            requests: 10.0,
            first_token: [first, 0.5, 2.0],
            hit_rate: 0.25,
            ..Figures::default()
        };
        let row =
            Row { policy: "time".to_owned(), runs: vec![(run(1.0), 100), (run(2.0), 300)], unserved: 2 };
        let text = table(&[row]);
        let line = text.lines().nth(2).unwrap();
        assert_eq!(
            line,
            "| time | 10 | 1.500 s | 0.500 | 0.500 s | 2.000 s | 0.00 s | 25.0 % | 200 | 0.00 |"
        );
        assert!(text.contains("2 requests did not fit"));
    }
}
