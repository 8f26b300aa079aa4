//! `kvroute simulate`: policies on one simulated fleet, side by side; or recorded decisions.

mod chart;
mod report;
mod source;
mod sweep;
mod table;

use std::{
    fs::File,
    io::Write as _,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    str::FromStr,
};

use clap::{ArgGroup, Args};

use self::{
    source::{Arrivals, Made, Source},
    sweep::Sweep,
};
use super::{
    Outcome,
    decisions::{self, Question},
    print,
};
use crate::{
    config::flags::{self, RouterFlags},
    simulate::{Change, EngineModel, Happening, Policy, Setting},
};

/// Flags of `kvroute simulate`.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("source").args(["trace", "workload", "decisions"]).required(true)))]
pub(super) struct SimulateCommand {
    /// Mooncake trace: JSON lines with timestamp, input_length, output_length and hash_ids
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Workload to make: groups (many short questions to few long system prompts), agents (conversations that grow), long-agents
    /// (long contexts and long pauses), burst (agents, and bursts of one new prompt), cold-burst (one burst alone), het (agents, on
    /// engines of which some are twice and four times as fast as others)
    #[arg(long, value_name = "WORKLOAD", hide_possible_values = true)]
    workload: Option<Made>,
    /// Requests to send, from the start of the trace [default: all]
    #[arg(long, value_name = "N", conflicts_with = "workload")]
    requests: Option<usize>,
    /// When requests of one time of the trace come: spread (over the time to the next) or recorded (all at once)
    #[arg(
        long,
        value_name = "WHEN",
        default_value = "spread",
        hide_possible_values = true,
        conflicts_with = "workload"
    )]
    arrivals: Arrivals,
    /// How many times as fast as recorded, or as what the workload sends to so many engines; a list makes a sweep
    #[arg(long, default_value = "1", value_delimiter = ',', value_name = "X,...", value_parser = super::drive::rate)]
    rate: Vec<f64>,
    /// Seconds for which the workload makes requests
    #[arg(long, default_value_t = 600.0, value_name = "SECONDS", value_parser = positive, conflicts_with = "trace")]
    seconds: f64,
    /// Policies to compare: time or blocks, the cost models of mode kv, as blocks:SCALE:CREDIT with other weights than the
    /// defaults; blocks-s20c2 and dynamo-tuned, two sets of such weights; router modes; smg and llm-d, the rules of other routers; pooled, all
    /// engines with one cache, which no fleet can have
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "POLICY,...",
        default_value = "time,blocks,blocks-s20c2,least-loaded,round-robin"
    )]
    policy: Vec<Policy>,
    /// Number of engines, 1 to 1024
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    engines: u16,
    /// Speeds of the engines by turns, scaled so that together they are as fast as equal ones [default: 1; 1,2,4 for het]
    #[arg(long, value_delimiter = ',', value_name = "X,...", value_parser = positive)]
    speeds: Vec<f64>,
    /// An engine, from 1, runs at this part of its speed, from and up to so many seconds after the start
    #[arg(long, value_delimiter = ',', value_name = "ENGINE:SPEED@FROM[-TO],...")]
    throttle: Vec<Throttle>,
    /// Has the router read the engines' GPUs once a second: it then knows what --throttle does to their clocks
    #[arg(long)]
    telemetry: bool,
    /// An engine, from 1, dies after so many seconds, and comes back with an empty cache
    #[arg(long, value_delimiter = ',', value_name = "ENGINE@AT[-BACK],...")]
    fail: Vec<Span>,
    /// An engine, from 1, is there only after so many seconds
    #[arg(long, value_delimiter = ',', value_name = "ENGINE@AT,...")]
    join: Vec<Span>,
    /// Tokens that fit the KV cache of an engine, 16384 or more
    #[arg(long, default_value_t = EngineModel::default().cache_tokens, value_name = "TOKENS",
        value_parser = clap::value_parser!(u64).range(16_384..))]
    cache_tokens: u64,
    /// Seconds from the end of a step to its KV events at the router, 0 or more
    #[arg(long, default_value_t = 0.02, value_name = "SECONDS", value_parser = not_negative)]
    event_delay: f64,
    /// Share of a trace's requests, or of a workload's time, that warms the caches and does not count, 0 to 0.9
    #[arg(long, default_value_t = 0.1, value_name = "SHARE", value_parser = share)]
    warm_up: f64,
    /// Runs of each policy, with other draws, 1 to 100
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100))]
    seeds: u64,
    /// Seed of the first run
    #[arg(long, default_value_t = 1, value_name = "SEED")]
    first_seed: u64,
    /// Runs at a time [default: one a core]
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Writes all figures of all runs to a file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draws times to first token over the rates into a file as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Make the decisions of a log again (frontend --decision-log) and say whether each comes out as it was recorded; with
    /// router flags, say what would have been chosen with them. Repeat it for several files
    #[arg(long, value_name = "FILE", help_heading = RECORDED, conflicts_with_all = OF_A_SIMULATION)]
    decisions: Vec<PathBuf>,
    /// Show the decisions of one request instead
    #[arg(long, value_name = "ID", requires = "decisions", help_heading = RECORDED)]
    request: Option<String>,
    #[command(flatten)]
    router: RouterFlags<flags::Frontend>,
}

const RECORDED: &str = "Recorded decisions";

/// What says how to simulate, and would say nothing of what was recorded.
const OF_A_SIMULATION: [&str; 19] = [
    "requests",
    "arrivals",
    "rate",
    "seconds",
    "policy",
    "engines",
    "speeds",
    "throttle",
    "telemetry",
    "fail",
    "join",
    "cache_tokens",
    "event_delay",
    "warm_up",
    "seeds",
    "first_seed",
    "jobs",
    "json",
    "svg",
];

/// A time on one engine, as `ENGINE@FROM` or `ENGINE@FROM-TO`; the engine from 0.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Span {
    engine: usize,
    from: f64,
    to: Option<f64>,
}

/// What such a span is at part of its speed.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Throttle {
    span: Span,
    speed: f64,
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not ENGINE@SECONDS or ENGINE@SECONDS-SECONDS, as in 1@300-600");
        let (engine, times) = text.split_once('@').ok_or_else(wrong)?;
        let engine = engine.parse::<usize>().ok().and_then(|engine| engine.checked_sub(1));
        let time = |text: &str| not_negative(text).map_err(|_| wrong());
        let (from, to) = match times.split_once('-') {
            Some((from, to)) => (time(from)?, Some(time(to)?)),
            None => (time(times)?, None),
        };
        if to.is_some_and(|to| to <= from) {
            return Err(wrong());
        }
        Ok(Self { engine: engine.ok_or_else(wrong)?, from, to })
    }
}

impl FromStr for Throttle {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not ENGINE:SPEED@SECONDS or with -SECONDS, as in 1:0.3@300-600");
        let (engine, rest) = text.split_once(':').ok_or_else(wrong)?;
        let (speed, times) = rest.split_once('@').ok_or_else(wrong)?;
        let span = format!("{engine}@{times}").parse().map_err(|_| wrong())?;
        Ok(Self { span, speed: positive(speed).map_err(|_| wrong())? })
    }
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| *number > 0.0 && f64::is_finite(*number));
    number.ok_or_else(|| "a number above 0 is needed".to_owned())
}

fn not_negative(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| *number >= 0.0 && f64::is_finite(*number));
    number.ok_or_else(|| "a number of at least 0 is needed".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=0.9).contains(number));
    number.ok_or_else(|| "a number from 0 to 0.9 is needed".to_owned())
}

impl SimulateCommand {
    pub(super) fn run(self) -> Outcome {
        if self.decisions.is_empty() { self.simulate() } else { self.look_at_decisions() }
    }

    fn look_at_decisions(self) -> Outcome {
        let changes = self.router.changes()?;
        match self.request {
            Some(_) if !changes.is_empty() => {
                Err(format!("--request shows what was recorded; leave {changes} out").into())
            }
            Some(name) => decisions::run(&self.decisions, Question::Request(name)),
            None if changes.is_empty() => decisions::run(&self.decisions, Question::Replay),
            None => decisions::run(&self.decisions, Question::WhatIf(changes)),
        }
    }

    fn simulate(self) -> Outcome {
        if self.router.any() {
            return Err("router flags ask about recorded decisions (--decisions); policies are compared with --policy".into());
        }
        let setting = self.setting()?;
        let source = match (&self.trace, self.workload) {
            (Some(path), _) => Source::trace(path, self.requests, self.arrivals)?,
            (None, made) => Source::made(made.unwrap_or(Made::Agents), self.seconds, setting.speeds.len()),
        };
        let sweep = Sweep {
            source,
            setting,
            policies: self.policy,
            rates: self.rate,
            seeds: (self.first_seed..).take(usize::try_from(self.seeds).unwrap_or(1)).collect(),
        };
        let json = self.json.as_deref().map(|path| Output::open("--json", path)).transpose()?;
        let svg = self.svg.as_deref().map(|path| Output::open("--svg", path)).transpose()?;
        let rows = sweep.run(self.jobs)?;
        // The files are written, whatever becomes of the table.
        let printed = print(&table::table(&rows));
        if let Some(json) = json {
            json.write(&report::json(&sweep, &rows)?)?;
        }
        if let Some(svg) = svg {
            svg.write(&chart::svg(&rows))?;
        }
        printed
    }

    fn setting(&self) -> Result<Setting, String> {
        let engines = usize::from(self.engines);
        let by_turns = match &self.speeds[..] {
            [] if self.workload == Some(Made::Het) => &[1.0, 2.0, 4.0][..],
            [] => &[1.0],
            speeds => speeds,
        };
        let speeds: Vec<f64> = by_turns.iter().copied().cycle().take(engines).collect();
        let mean = speeds.iter().sum::<f64>() / engines as f64;
        Ok(Setting {
            model: EngineModel { cache_tokens: self.cache_tokens, ..EngineModel::default() },
            speeds: speeds.iter().map(|speed| speed / mean).collect(),
            changes: self.changes()?,
            event_delay: self.event_delay,
            warm_up: self.warm_up,
            telemetry: self.telemetry,
            ..Setting::of(engines)
        })
    }

    fn changes(&self) -> Result<Vec<Change>, String> {
        let mut changes = Vec::new();
        let mut happens = |flag: &str, span: Span, first: Happening, then: Happening| {
            if span.engine >= usize::from(self.engines) {
                return Err(format!(
                    "{flag}: there is no engine {}; --engines is {}",
                    span.engine + 1,
                    self.engines
                ));
            }
            let at = |at, what| Change { at, engine: span.engine, what };
            changes.push(at(span.from, first));
            changes.extend(span.to.map(|to| at(to, then)));
            Ok(())
        };
        for throttle in &self.throttle {
            happens("--throttle", throttle.span, Happening::Clocks(throttle.speed), Happening::Clocks(1.0))?;
        }
        for &span in &self.fail {
            happens("--fail", span, Happening::Dies, Happening::Comes)?;
        }
        for &span in &self.join {
            happens("--join", span, Happening::Comes, Happening::Dies)?;
        }
        Ok(changes)
    }
}

/// A file of results. It is opened before what it is for is worked out, which may take an hour.
struct Output<'a> {
    flag: &'static str,
    path: &'a Path,
    file: File,
}

impl<'a> Output<'a> {
    fn open(flag: &'static str, path: &'a Path) -> Result<Self, String> {
        let file = File::create(path).map_err(|error| unwritable(flag, path, &error))?;
        Ok(Self { flag, path, file })
    }

    fn write(mut self, text: &str) -> Result<(), String> {
        let written = self.file.write_all(text.as_bytes());
        written.map_err(|error| unwritable(self.flag, self.path, &error))
    }
}

fn unwritable(flag: &str, path: &Path, error: &std::io::Error) -> String {
    format!("{flag}: cannot write {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_to_an_engine_is_read() {
        assert_eq!("3@20".parse(), Ok(Span { engine: 2, from: 20.0, to: None }));
        assert_eq!("1@20-30.5".parse(), Ok(Span { engine: 0, from: 20.0, to: Some(30.5) }));
        let span = Span { engine: 1, from: 0.0, to: Some(60.0) };
        assert_eq!("2:0.3@0-60".parse(), Ok(Throttle { span, speed: 0.3 }));
        for wrong in ["0@5", "x@5", "1", "1@9-3", "1@-3"] {
            assert!(wrong.parse::<Span>().unwrap_err().contains("1@300-600"), "{wrong}");
        }
        for wrong in ["1@5", "1:0@5", "1:fast@5"] {
            assert!(wrong.parse::<Throttle>().unwrap_err().contains("1:0.3@300-600"), "{wrong}");
        }
    }
}
