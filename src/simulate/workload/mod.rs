//! Where requests come from.

mod agents;
mod burst;
mod groups;

use std::sync::Arc;

use fastrand::Rng;

pub use self::{agents::Agents, burst::Bursts, groups::Groups};
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

    /// A request whose pages of `page` tokens come from the text `shared` up to so many tokens, and from `own` after.
    fn of(tokens: [u64; 2], (shared, upto): (u64, u64), own: u64) -> Self {
        let [prompt_tokens, output_tokens] = tokens;
        let page = u64::from(PAGE);
        let pages = (0..(prompt_tokens + output_tokens) / page)
            .map(|at| page_of(if (at + 1) * page <= upto { shared } else { own }, at));
        Self::new(prompt_tokens, output_tokens, pages.collect())
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
#[derive(Clone, PartialEq, Debug)]
pub struct Workload {
    /// Tokens a page.
    pub page_tokens: u32,
    /// Each a list of turns, of which the first comes at its time and each other after the answer before it.
    pub sessions: Vec<Vec<Turn>>,
    /// Seconds after which no turn comes any more, so that a run is not measured while it empties.
    pub until: f64,
}

impl Workload {
    /// Requests by their times in seconds, as from a trace.
    #[must_use]
    pub fn recorded(page_tokens: u32, requests: impl IntoIterator<Item = (f64, Job)>) -> Self {
        let alone = |(after, job)| vec![Turn { after, job: Arc::new(job) }];
        Self { page_tokens, sessions: requests.into_iter().map(alone).collect(), until: f64::INFINITY }
    }

    /// When so large a `share` of it has come: of the time if it has an end, or else of the first turns.
    pub(super) fn after(&self, share: f64) -> f64 {
        if self.until.is_finite() {
            return share * self.until;
        }
        let mut begin: Vec<f64> =
            self.sessions.iter().filter_map(|turns| Some(turns.first()?.after)).collect();
        begin.sort_unstable_by(f64::total_cmp);
        begin.get((share * begin.len() as f64) as usize).copied().unwrap_or(0.0)
    }
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

/// Times of a Poisson process, `rate` a second for `seconds`.
fn poisson(rate: f64, seconds: f64, rng: &mut Rng) -> Vec<f64> {
    let mut times = Vec::new();
    let mut at = exponential(rng, 1.0 / rate);
    while at <= seconds {
        times.push(at);
        at += exponential(rng, 1.0 / rate);
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_makes_one_workload() {
        type Make = fn(&mut Rng) -> Workload;
        let groups: Make = |rng| Groups::default().workload(2.0, 60.0, rng);
        let agents: Make = |rng| Agents::default().workload(2.0, 60.0, rng);
        let bursts: Make = |rng| Bursts::default().among(&Agents::default(), 2.0, 60.0, rng);
        for make in [groups, agents, bursts] {
            let of = |seed| make(&mut Rng::with_seed(seed));
            assert_eq!(of(1), of(1));
            assert_ne!(of(1), of(2));
            assert!(of(1).sessions.len() > 60);
        }
    }

    #[test]
    fn a_share_is_of_the_requests_or_of_the_time() {
        let jobs = (0_u32..10).map(|at| (f64::from(at).powi(2), Job::alone(1000, 1, at.into(), 128)));
        let mut workload = Workload::recorded(128, jobs);
        assert_eq!(workload.after(0.5), 25.0);
        workload.until = 90.0;
        assert_eq!(workload.after(0.5), 45.0);
    }
}
