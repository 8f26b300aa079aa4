//! Where requests come from.

use std::sync::Arc;

use fastrand::Rng;

use crate::hash::{BlockHash, SequenceHash, chain};

/// One request.
#[derive(Clone, PartialEq, Debug)]
pub struct Job {
    /// Tokens of the prompt, and tokens that will be generated, which nobody knows before.
    pub prompt_tokens: u64,
    /// See there.
    pub output_tokens: u64,
    /// Its full pages; of a session those that the output will fill, too.
    pub(super) pages: Vec<BlockHash>,
    pub(super) sequence: Vec<SequenceHash>,
}

impl Job {
    /// A request for `pages`, of which two with equal leading ones share those.
    #[must_use]
    pub fn new(prompt_tokens: u64, output_tokens: u64, pages: Vec<BlockHash>) -> Self {
        let mut sequence = Vec::new();
        chain(&pages, &mut sequence);
        Self { prompt_tokens, output_tokens, pages, sequence }
    }

    /// A request that shares its pages of `page` tokens with those of the same `name` alone.
    #[cfg(test)]
    pub(super) fn alone(prompt_tokens: u64, output_tokens: u64, name: u64, page: u64) -> Self {
        Self::new(
            prompt_tokens,
            output_tokens,
            (0..prompt_tokens / page).map(|at| page_of(name, at)).collect(),
        )
    }
}

/// A request and when it comes: so many seconds after the start, or, within a session, after the answer before it.
#[derive(Clone, PartialEq, Debug)]
pub struct Turn {
    /// Seconds.
    pub after: f64,
    /// The request.
    pub job: Arc<Job>,
}

/// Requests in sessions; most workloads have sessions of one request.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Workload {
    /// Tokens a page.
    pub page_tokens: u32,
    /// Each a list of turns, of which the first comes at its time and each other after the answer before it.
    pub sessions: Vec<Vec<Turn>>,
}

/// The content of page `at` of what is called `name`.
fn page_of(name: u64, at: u64) -> BlockHash {
    BlockHash(Rng::with_seed(name.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(at)).u64(..))
}

/// Tokens a page of the workloads that are made here.
const PAGE: u32 = 128;

fn exponential(rng: &mut Rng, mean: f64) -> f64 {
    -mean * (1.0 - rng.f64()).ln()
}

/// About `mean`, between a half and one and a half of it.
fn around(rng: &mut Rng, mean: u64) -> u64 {
    mean / 2 + rng.u64(..=mean)
}

impl Workload {
    /// Requests by their times in seconds, as from a trace.
    #[must_use]
    pub fn recorded(page_tokens: u32, requests: impl IntoIterator<Item = (f64, Job)>) -> Self {
        let alone = |(after, job)| vec![Turn { after, job: Arc::new(job) }];
        Self { page_tokens, sessions: requests.into_iter().map(alone).collect() }
    }

    /// A few long system prompts that many short questions share: `rate` requests a second for `seconds`, each with one of
    /// 64 prompts of 6,000 tokens, the popular ones more often.
    #[must_use]
    pub fn groups(rate: f64, seconds: f64, rng: &mut Rng) -> Self {
        let mut at = 0.0;
        let mut requests = Vec::new();
        let weights: Vec<f64> = (1..=64).map(|rank| 1.0 / f64::from(rank)).collect();
        let total: f64 = weights.iter().sum();
        loop {
            at += exponential(rng, 1.0 / rate);
            if at > seconds {
                return Self::recorded(PAGE, requests);
            }
            let mut draw = rng.f64() * total;
            let group = weights.iter().position(|weight| {
                draw -= weight;
                draw <= 0.0
            });
            let own = around(rng, 300);
            let tokens = 6_000 + own;
            let name = rng.u64(..);
            let pages = (0..tokens / u64::from(PAGE)).map(|page| {
                if page < 46 { page_of(group.unwrap_or(0) as u64, page) } else { page_of(name, page) }
            });
            requests.push((at, Job::new(tokens, around(rng, 250), pages.collect())));
        }
    }

    /// Agents: `rate` sessions a second begin for `seconds`; each has about eight turns on one growing conversation, of which
    /// it thinks for some seconds between two, and all share a system prompt of 1,500 tokens.
    #[must_use]
    pub fn agents(rate: f64, seconds: f64, rng: &mut Rng) -> Self {
        let mut at = 0.0;
        let mut sessions = Vec::new();
        loop {
            at += exponential(rng, 1.0 / rate);
            if at > seconds {
                return Self { page_tokens: PAGE, sessions };
            }
            sessions.push(session(at, rng));
        }
    }

    /// [`Workload::agents`] with four bursts: forty requests within a second for one new prompt of 8,000 tokens.
    #[must_use]
    pub fn burst(rate: f64, seconds: f64, rng: &mut Rng) -> Self {
        let mut workload = Self::agents(rate, seconds, rng);
        for burst in 1..=4 {
            let (begin, name) = (seconds * f64::from(burst) / 5.0, rng.u64(..));
            for _ in 0..40 {
                let own = rng.u64(..);
                let tokens = 8_000 + around(rng, 200);
                let pages = (0..tokens / u64::from(PAGE))
                    .map(|page| if page < 62 { page_of(name, page) } else { page_of(own, page) });
                let job = Job::new(tokens, around(rng, 150), pages.collect());
                workload.sessions.push(vec![Turn { after: begin + rng.f64(), job: Arc::new(job) }]);
            }
        }
        workload
    }
}

fn session(begin: f64, rng: &mut Rng) -> Vec<Turn> {
    const SYSTEM: u64 = 1_500;
    let name = rng.u64(..);
    let mut length = SYSTEM + around(rng, 2_000);
    let turns = around(rng, 8);
    (0..turns)
        .map(|turn| {
            let output = around(rng, 250);
            // The output's pages have their names already: the next turn begins with them.
            let pages = (0..(length + output) / u64::from(PAGE)).map(|page| {
                if page < SYSTEM / u64::from(PAGE) { page_of(0, page) } else { page_of(name, page) }
            });
            let job = Arc::new(Job::new(length, output, pages.collect()));
            length += output + around(rng, 700);
            let after = if turn == 0 { begin } else { exponential(rng, 8.0) };
            Turn { after, job }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_makes_one_workload() {
        type Make = fn(f64, f64, &mut Rng) -> Workload;
        for make in [Workload::groups as Make, Workload::agents, Workload::burst] {
            let of = |seed| make(2.0, 60.0, &mut Rng::with_seed(seed));
            assert_eq!(of(1), of(1));
            assert_ne!(of(1), of(2));
            assert!(of(1).sessions.len() > 60);
        }
    }

    #[test]
    fn a_turn_begins_with_the_turn_before_and_its_output() {
        let turns = session(0.0, &mut Rng::with_seed(3));
        for pair in turns.windows(2) {
            let (before, next) = (&pair[0].job, &pair[1].job);
            assert!(next.prompt_tokens >= before.prompt_tokens + before.output_tokens);
            assert_eq!(before.sequence[..], next.sequence[..before.sequence.len()]);
        }
    }
}
