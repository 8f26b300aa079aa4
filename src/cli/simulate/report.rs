//! The figures as JSON.

use serde::Serialize;

use super::sweep::{Row, Sweep};
use crate::simulate::Figures;

/// The whole file.
#[derive(Serialize)]
struct Report<'a> {
    version: &'static str,
    engines: usize,
    seeds: &'a [u64],
    results: Vec<Line<'a>>,
}

/// One policy at one rate.
#[derive(Serialize)]
struct Line<'a> {
    policy: &'a str,
    rate: f64,
    /// Means over the runs.
    mean: Cells,
    /// Standard deviations over the runs.
    spread: Cells,
    /// In order of the seeds.
    runs: Vec<Cells>,
}

impl<'a> Line<'a> {
    fn of(row: &'a Row) -> Self {
        Self {
            policy: &row.policy,
            rate: row.rate,
            mean: Cells::of(|of| row.over(of).0),
            spread: Cells::of(|of| row.over(of).1),
            runs: row.runs.iter().map(|run| Cells::of(|of| of(run))).collect(),
        }
    }
}

/// Times are in seconds, the rates and `missed` shares of one.
#[derive(Serialize)]
struct Cells {
    requests: f64,
    ttft: Quantiles,
    total: Quantiles,
    hit_rate: f64,
    prefill_tokens: f64,
    busiest_over_mean: f64,
    missed: f64,
}

#[derive(Serialize)]
struct Quantiles {
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
}

impl Cells {
    fn of(cell: impl Fn(fn(&Figures) -> f64) -> f64) -> Self {
        Self {
            requests: cell(|run| run.requests),
            ttft: Quantiles {
                mean: cell(|run| run.first_token.mean),
                p50: cell(|run| run.first_token.p50),
                p90: cell(|run| run.first_token.p90),
                p99: cell(|run| run.first_token.p99),
            },
            total: Quantiles {
                mean: cell(|run| run.total.mean),
                p50: cell(|run| run.total.p50),
                p90: cell(|run| run.total.p90),
                p99: cell(|run| run.total.p99),
            },
            hit_rate: cell(|run| run.hit_rate),
            prefill_tokens: cell(|run| run.prefill_tokens),
            busiest_over_mean: cell(|run| run.busiest),
            missed: cell(|run| run.missed),
        }
    }
}

/// All figures of all runs.
pub(super) fn json(sweep: &Sweep, rows: &[Row]) -> Result<String, serde_json::Error> {
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        engines: sweep.setting.speeds.len(),
        seeds: &sweep.seeds,
        results: rows.iter().map(Line::of).collect(),
    };
    serde_json::to_string_pretty(&report).map(|text| text + "\n")
}
