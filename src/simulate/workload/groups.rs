//! A few long system prompts that many short questions share.

use fastrand::Rng;

use super::{Job, PAGE, Workload, around, poisson};

/// Questions to system prompts, of which the popular ones are asked more often: the k-th in proportion to `1 / k`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Groups {
    /// How many prompts there are. Default 400: with their popularity, more than one engine keeps and fewer than a fleet does.
    pub prompts: u32,
    /// Tokens of each. Default 6,016, whole pages.
    pub prompt_tokens: u64,
    /// Tokens of a question, on average. Default 180.
    pub question_tokens: u64,
    /// Tokens of an answer, on average. Default 400.
    pub output_tokens: u64,
}

impl Default for Groups {
    fn default() -> Self {
        Self { prompts: 400, prompt_tokens: 47 * u64::from(PAGE), question_tokens: 180, output_tokens: 400 }
    }
}

impl Groups {
    /// `rate` questions a second for `seconds`.
    #[must_use]
    pub fn workload(&self, rate: f64, seconds: f64, rng: &mut Rng) -> Workload {
        let weights: Vec<f64> = (1..=self.prompts).map(|rank| 1.0 / f64::from(rank)).collect();
        let total: f64 = weights.iter().sum();
        let requests = poisson(rate, seconds, rng).into_iter().map(|at| {
            let mut draw = rng.f64() * total;
            let group = weights.iter().position(|weight| {
                draw -= weight;
                draw <= 0.0
            });
            let tokens =
                [self.prompt_tokens + around(rng, self.question_tokens), around(rng, self.output_tokens)];
            let shared = (group.unwrap_or(0) as u64, self.prompt_tokens);
            (at, Job::of(tokens, shared, rng.u64(..)))
        });
        Workload { until: seconds, ..Workload::recorded(PAGE, requests.collect::<Vec<_>>()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_to_one_prompt_share_it_and_nothing_else() {
        let workload = Groups { prompts: 1, ..Groups::default() }.workload(5.0, 60.0, &mut Rng::with_seed(1));
        let sequence = |at: usize| &workload.sessions[at][0].job.sequence;
        let shared = sequence(0).iter().zip(sequence(1)).take_while(|(one, other)| one == other).count();
        assert_eq!(shared, 47);
    }

    #[test]
    fn the_first_prompts_are_the_popular_ones() {
        let workload = Groups::default().workload(50.0, 60.0, &mut Rng::with_seed(1));
        let of = |group: u64| {
            let first = super::super::page_of(group, 0);
            workload.sessions.iter().filter(|turns| turns[0].job.pages[0] == first).count()
        };
        assert!(of(0) > 3 * of(10) && of(10) > of(80), "{} {} {}", of(0), of(10), of(80));
    }
}
