//! What a run came to, as text.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    time::Duration,
};

use hdrhistogram::Histogram;

use super::client::{Answered, Run};

/// The figures of one run.
struct Figures {
    failed: usize,
    prompt: u64,
    cached: u64,
    first_token: Quantiles,
    total: Quantiles,
    /// Requests and prompt tokens computed, by worker.
    workers: BTreeMap<u64, (u64, u64)>,
}

struct Quantiles {
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
}

impl Figures {
    fn of(run: &Run) -> Self {
        let good = || run.answers.iter().filter(|answer| answer.ok);
        let mut workers = BTreeMap::new();
        for answer in good() {
            if let Some(worker) = answer.worker {
                let share: &mut (u64, u64) = workers.entry(worker).or_default();
                share.0 += 1;
                share.1 += computed(answer);
            }
        }
        Self {
            failed: run.answers.iter().filter(|answer| !answer.ok).count(),
            prompt: good().map(|answer| answer.prompt_tokens).sum(),
            cached: good().map(|answer| answer.cached_tokens).sum(),
            first_token: Quantiles::of(good().filter_map(|answer| answer.first_token)),
            total: Quantiles::of(good().map(|answer| answer.total)),
            workers,
        }
    }

    /// Prompt tokens computed by the busiest worker, over the mean.
    fn imbalance(&self) -> Option<f64> {
        let most = self.workers.values().map(|&(_, computed)| computed).max()?;
        let sum: u64 = self.workers.values().map(|&(_, computed)| computed).sum();
        (sum > 0).then(|| most as f64 * self.workers.len() as f64 / sum as f64)
    }
}

impl Quantiles {
    fn of(times: impl Iterator<Item = Duration>) -> Self {
        let times: Vec<_> = times.collect();
        let mut histogram = new_histogram();
        for time in &times {
            let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            histogram.saturating_record(micros.max(1));
        }
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e6;
        let sum: f64 = times.iter().map(Duration::as_secs_f64).sum();
        Self { mean: sum / times.len().max(1) as f64, p50: at(0.5), p90: at(0.9), p99: at(0.99) }
    }
}

/// Microseconds up to an hour, to three digits.
fn new_histogram() -> Histogram<u64> {
    #[expect(clippy::expect_used, reason = "constant bounds that the histogram accepts")]
    Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("constant bounds")
}

fn computed(answer: &Answered) -> u64 {
    answer.prompt_tokens.saturating_sub(answer.cached_tokens)
}

/// Tables of all runs: the figures, then each worker's share.
pub(super) fn table(runs: &[Run]) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_table(&mut text, runs);
    text
}

fn write_table(text: &mut String, runs: &[Run]) -> fmt::Result {
    let figures: Vec<_> = runs.iter().map(Figures::of).collect();
    writeln!(
        text,
        "\n| mode | requests | failed | prompt tokens | cached tokens | hit rate | TTFT mean | p50 | p90 | p99 | total \
         p50 | busiest/mean | wall |"
    )?;
    writeln!(text, "|---|---|---|---|---|---|---|---|---|---|---|---|---|")?;
    for (run, of) in runs.iter().zip(&figures) {
        let rate = of.cached as f64 / of.prompt.max(1) as f64;
        let imbalance = of.imbalance().map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
        writeln!(
            text,
            "| {} | {} | {} | {} | {} | {:.1} % | {:.3} s | {:.3} s | {:.3} s | {:.3} s | {:.3} s | {} | {:.0} s |",
            run.name,
            run.answers.len(),
            of.failed,
            of.prompt,
            of.cached,
            rate * 100.0,
            of.first_token.mean,
            of.first_token.p50,
            of.first_token.p90,
            of.first_token.p99,
            of.total.p50,
            imbalance,
            run.wall.as_secs_f64(),
        )?;
    }
    writeln!(text, "\n| mode | worker | requests | prompt tokens computed | share |\n|---|---|---|---|---|")?;
    for (run, of) in runs.iter().zip(&figures) {
        let sum: u64 = of.workers.values().map(|&(_, computed)| computed).sum();
        for (worker, (requests, computed)) in &of.workers {
            let share = *computed as f64 / sum.max(1) as f64 * 100.0;
            writeln!(text, "| {} | {worker} | {requests} | {computed} | {share:.1} % |", run.name)?;
        }
    }
    if let [first, rest @ ..] = figures.as_slice() {
        for (of, run) in rest.iter().zip(&runs[1..]) {
            let ratio = of.cached as f64 / first.cached.max(1) as f64;
            writeln!(text, "\n{} served {ratio:.2} times the cached tokens of {}.", run.name, runs[0].name)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(worker: u64, prompt: u64, cached: u64) -> Answered {
        Answered {
            ok: true,
            first_token: Some(Duration::from_millis(10)),
            total: Duration::from_millis(20),
            prompt_tokens: prompt,
            cached_tokens: cached,
            status: None,
            worker: Some(worker),
        }
    }

    #[test]
    fn shares_count_what_was_computed() {
        let answers = vec![answer(1, 100, 0), answer(1, 100, 100), answer(2, 300, 0), Answered::default()];
        let run = Run { name: "kv".into(), wall: Duration::from_secs(1), answers };
        let figures = Figures::of(&run);
        assert_eq!((figures.failed, figures.prompt, figures.cached), (1, 500, 100));
        assert_eq!(figures.workers[&1], (2, 100));
        assert_eq!(figures.imbalance(), Some(1.5));
        assert!(table(&[run]).contains("20.0 %"));
    }
}
