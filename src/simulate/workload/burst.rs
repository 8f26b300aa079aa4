//! Many requests at once for a prompt that nobody has seen.

use std::sync::Arc;

use fastrand::Rng;

use super::{Agents, Job, PAGE, Turn, Workload, around};

/// Bursts of one new prompt each.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bursts {
    /// How many there are. Default 4.
    pub bursts: u32,
    /// Requests of each. Default 200.
    pub requests: u32,
    /// Seconds within which they come. Default 2.
    pub within: f64,
    /// Tokens that they share. Default 8,064, whole pages.
    pub shared_tokens: u64,
    /// Tokens that each has of its own after that, on average. Default 200.
    pub own_tokens: u64,
    /// Tokens of an answer, on average. Default 150.
    pub output_tokens: u64,
}

impl Default for Bursts {
    fn default() -> Self {
        Self { bursts: 4, own_tokens: 200, ..Self::COLD }
    }
}

impl Bursts {
    /// A single burst, of equal prompts.
    pub const COLD: Self = Self {
        bursts: 1,
        requests: 200,
        within: 2.0,
        shared_tokens: 63 * PAGE as u64,
        own_tokens: 0,
        output_tokens: 150,
    };

    /// The bursts alone, evenly over `seconds`.
    #[must_use]
    pub fn workload(&self, seconds: f64, rng: &mut Rng) -> Workload {
        let mut workload = Workload { page_tokens: PAGE, sessions: Vec::new(), until: seconds };
        self.add_to(&mut workload, rng);
        workload
    }

    /// The bursts among `agents`, of whom `rate` a second begin a session.
    #[must_use]
    pub fn among(&self, agents: &Agents, rate: f64, seconds: f64, rng: &mut Rng) -> Workload {
        let mut workload = agents.workload(rate, seconds, rng);
        self.add_to(&mut workload, rng);
        workload
    }

    fn add_to(&self, workload: &mut Workload, rng: &mut Rng) {
        for burst in 1..=self.bursts {
            let begin = workload.until * f64::from(burst) / f64::from(self.bursts + 1);
            let shared = (rng.u64(..), self.shared_tokens);
            for _ in 0..self.requests {
                let prompt = self.shared_tokens + around(rng, self.own_tokens);
                let job = Job::of([prompt, around(rng, self.output_tokens)], shared, rng.u64(..));
                let after = begin + self.within * rng.f64();
                workload.sessions.push(vec![Turn { after, job: Arc::new(job) }]);
            }
        }
    }
}
