//! Agents: conversations that grow, each turn after the answer before it.

use std::sync::Arc;

use fastrand::Rng;

use super::{Job, PAGE, Turn, Workload, around, exponential, poisson};

/// Sessions of turns on one growing prompt: what was asked, answered and found out before comes again with each turn, and
/// all sessions share a system prompt.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Agents {
    /// Tokens of the system prompt. Default 1,536, whole pages.
    pub system_tokens: u64,
    /// Tokens that a session's first turn adds to it, on average. Default 2,000.
    pub first_tokens: u64,
    /// Turns of a session, on average. Default 8.
    pub turns: u64,
    /// Tokens that each later turn adds, on average, besides the answer before it. Default 700.
    pub turn_tokens: u64,
    /// Tokens of an answer, on average. Default 250.
    pub output_tokens: u64,
    /// Seconds between an answer and the next turn, on average. Default 8.
    pub pause: f64,
}

impl Default for Agents {
    fn default() -> Self {
        Self {
            system_tokens: 12 * u64::from(PAGE),
            first_tokens: 2_000,
            turns: 8,
            turn_tokens: 700,
            output_tokens: 250,
            pause: 8.0,
        }
    }
}

impl Agents {
    /// Long contexts, and pauses in which others want the room: sessions begin with a repository's worth of text, and a
    /// person reads each answer.
    pub const LONG: Self = Self {
        system_tokens: 24 * PAGE as u64,
        first_tokens: 32_000,
        turns: 8,
        turn_tokens: 1_500,
        output_tokens: 300,
        pause: 60.0,
    };

    /// `rate` sessions a second begin for `seconds`, after which no turn comes.
    #[must_use]
    pub fn workload(&self, rate: f64, seconds: f64, rng: &mut Rng) -> Workload {
        let sessions = poisson(rate, seconds, rng).into_iter().map(|at| self.session(at, rng)).collect();
        Workload { page_tokens: PAGE, sessions, until: seconds }
    }

    fn session(&self, begin: f64, rng: &mut Rng) -> Vec<Turn> {
        let name = rng.u64(..);
        let mut length = self.system_tokens + around(rng, self.first_tokens);
        let turns = around(rng, self.turns);
        (0..turns)
            .map(|turn| {
                let output = around(rng, self.output_tokens);
                // The output's pages have their names already: the next turn begins with them.
                let job = Job::of([length, output], (0, self.system_tokens), name);
                length += output + around(rng, self.turn_tokens);
                let after = if turn == 0 { begin } else { exponential(rng, self.pause) };
                Turn { after, job: Arc::new(job) }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_begins_with_the_turn_before_and_its_output() {
        let turns = Agents::default().session(0.0, &mut Rng::with_seed(3));
        assert!(turns.len() > 2);
        for pair in turns.windows(2) {
            let (before, next) = (&pair[0].job, &pair[1].job);
            assert!(next.prompt_tokens >= before.prompt_tokens + before.output_tokens);
            assert_eq!(before.sequence[..], next.sequence[..before.sequence.len()]);
        }
    }
}
