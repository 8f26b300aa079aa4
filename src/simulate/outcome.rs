//! What came of a run.

/// One request that was served.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Served {
    /// Seconds from its coming to its first token.
    pub first_token: f64,
    /// And to its last.
    pub total: f64,
    /// Seconds to the first token on an engine that does nothing else and has kept every page of the requests before.
    pub ideal: f64,
    /// Tokens of its prompt, and how many of them were cached.
    pub prompt_tokens: u64,
    /// See there.
    pub cached_tokens: u64,
    /// The engine that served it, from 0.
    pub engine: usize,
    /// When it came, in seconds after the start.
    pub came: f64,
}

impl Served {
    /// Whether its first token came too late: two seconds after three times the ideal.
    #[must_use]
    pub fn missed(&self) -> bool {
        self.first_token > 2.0 + 3.0 * self.ideal
    }
}

/// A fence that telemetry puts up, or takes down.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fence {
    /// Seconds after the start.
    pub at: f64,
    /// Whose it is.
    pub engine: usize,
    /// Whether it keeps requests away from now on.
    pub up: bool,
}

/// All requests of a run that count.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Outcome {
    /// When telemetry fenced an engine, and when it did not any more; of the whole run.
    pub fences: Vec<Fence>,
    /// In order of their coming.
    pub served: Vec<Served>,
    /// Requests that nobody served: their prompt fits no engine, or there was no engine.
    pub unserved: usize,
    /// Answers that broke off with their engine.
    pub broken: usize,
    /// Prompt tokens that each engine prefilled, whoever's.
    pub prefilled: Vec<u64>,
    /// Seconds that each engine took for the steps in which it prefilled.
    pub busy: Vec<f64>,
}

/// The figures of a run.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Figures {
    /// Requests that count and were served.
    pub requests: f64,
    /// Seconds to the first token.
    pub first_token: Times,
    /// Seconds to the last.
    pub total: Times,
    /// Prompt tokens from a cache, of all.
    pub hit_rate: f64,
    /// Prompt tokens that engines computed, those computed again included.
    pub prefill_tokens: f64,
    /// The prefill time of the busiest engine over the mean.
    pub busiest: f64,
    /// Requests whose first token came too late ([`Served::missed`]) or never, of all.
    pub missed: f64,
}

/// How some times are spread, in seconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Times {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// Nine of ten are below.
    pub p90: f64,
    /// 99 of a hundred are below.
    pub p99: f64,
}

impl Times {
    fn of(mut times: Vec<f64>) -> Self {
        times.sort_unstable_by(f64::total_cmp);
        let quantile = |share: f64| {
            let last = times.len().saturating_sub(1);
            times.get((share * last as f64).round() as usize).copied().unwrap_or(0.0)
        };
        let mean = times.iter().sum::<f64>() / times.len().max(1) as f64;
        Self { mean, p50: quantile(0.5), p90: quantile(0.9), p99: quantile(0.99) }
    }
}

impl Outcome {
    /// Its figures.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let times = |of: fn(&Served) -> f64| Times::of(self.served.iter().map(of).collect());
        let sum = |of: fn(&Served) -> u64| self.served.iter().map(of).sum::<u64>() as f64;
        let late = self.served.iter().filter(|served| served.missed()).count();
        let (asked, never) = (self.served.len() + self.unserved + self.broken, self.unserved + self.broken);
        let (busy, busiest) = (self.busy.iter().sum::<f64>(), self.busy.iter().copied().fold(0.0, f64::max));
        Figures {
            requests: self.served.len() as f64,
            first_token: times(|served| served.first_token),
            total: times(|served| served.total),
            hit_rate: sum(|served| served.cached_tokens) / sum(|served| served.prompt_tokens).max(1.0),
            prefill_tokens: self.prefilled.iter().sum::<u64>() as f64,
            busiest: if busy == 0.0 { 1.0 } else { busiest * self.busy.len() as f64 / busy },
            missed: (late + never) as f64 / asked.max(1) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_of_all_requests() {
        let served = |first_token| Served {
            first_token,
            total: 2.0,
            ideal: 1.0,
            prompt_tokens: 100,
            cached_tokens: 25,
            engine: 0,
            came: 0.0,
        };
        let outcome = Outcome {
            fences: Vec::new(),
            served: (1..=101).map(|i| served(f64::from(i))).collect(),
            unserved: 1,
            broken: 2,
            prefilled: vec![30, 10, 20],
            busy: vec![3.0, 1.0, 2.0],
        };
        let figures = outcome.figures();
        assert_eq!(figures.first_token, Times { mean: 51.0, p50: 51.0, p90: 91.0, p99: 100.0 });
        assert_eq!((figures.requests, figures.total.mean, figures.hit_rate), (101.0, 2.0, 0.25));
        assert_eq!((figures.prefill_tokens, figures.busiest), (60.0, 1.5));
        assert_eq!(figures.missed, 99.0 / 104.0, "up to five seconds are in time");
        assert_eq!(Outcome::default().figures().busiest, 1.0);
    }
}
