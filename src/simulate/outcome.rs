//! What came of a run.

/// One request that was served.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Served {
    /// Seconds from its coming to its first token.
    pub first_token: f64,
    /// And to its last.
    pub total: f64,
    /// Tokens of its prompt, and how many of them were cached.
    pub prompt_tokens: u64,
    /// See there.
    pub cached_tokens: u64,
}

/// All requests of a run that count.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Outcome {
    /// In order of their first turns.
    pub served: Vec<Served>,
    /// Requests whose prompt fits no engine.
    pub unserved: usize,
    /// Prompt tokens that each engine prefilled, whoever's.
    pub prefilled: Vec<u64>,
}

/// The figures of a run.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Figures {
    /// Requests that count.
    pub requests: f64,
    /// Seconds to the first token: mean, median, 99th percentile.
    pub first_token: [f64; 3],
    /// Seconds to the last, on average.
    pub total: f64,
    /// Prompt tokens from a cache, of all.
    pub hit_rate: f64,
    /// Prefill of the busiest engine over the mean.
    pub busiest: f64,
}

impl Outcome {
    /// Its figures.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let mut first: Vec<f64> = self.served.iter().map(|served| served.first_token).collect();
        first.sort_unstable_by(f64::total_cmp);
        let mean = |sum: f64, count: usize| if count == 0 { 0.0 } else { sum / count as f64 };
        let quantile = |share: f64| {
            let last = first.len().saturating_sub(1);
            first.get((share * last as f64).round() as usize).copied().unwrap_or(0.0)
        };
        let sum = |of: fn(&Served) -> f64| self.served.iter().map(of).sum::<f64>();
        let prefilled: u64 = self.prefilled.iter().sum();
        let busiest = self.prefilled.iter().max().copied().unwrap_or(0) as f64;
        Figures {
            requests: self.served.len() as f64,
            first_token: [mean(first.iter().sum(), first.len()), quantile(0.5), quantile(0.99)],
            total: mean(sum(|served| served.total), self.served.len()),
            hit_rate: sum(|served| served.cached_tokens as f64)
                / sum(|served| served.prompt_tokens as f64).max(1.0),
            busiest: if prefilled == 0 {
                1.0
            } else {
                busiest * self.prefilled.len() as f64 / prefilled as f64
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_of_all_requests() {
        let served = |first_token| Served { first_token, total: 2.0, prompt_tokens: 100, cached_tokens: 25 };
        let outcome = Outcome {
            served: (1..=101).map(|i| served(f64::from(i))).collect(),
            unserved: 0,
            prefilled: vec![30, 10, 20],
        };
        let figures = outcome.figures();
        assert_eq!(figures.first_token, [51.0, 51.0, 100.0]);
        assert_eq!(
            (figures.requests, figures.total, figures.hit_rate, figures.busiest),
            (101.0, 2.0, 0.25, 1.5)
        );
        assert_eq!(Outcome::default().figures().busiest, 1.0);
    }
}
