//! What a queue knows of a request that waits in it.

use crate::hash::SequenceHash;
use std::{sync::Arc, time::Duration};

/// A request that waits. Times are those of the clock of the loads.
#[derive(Clone, PartialEq, Debug)]
pub struct Waiting {
    /// When it came.
    pub arrived: Duration,
    /// What it says of its own urgency.
    pub urgency: Urgency,
    /// Which ranks may take it: those with the same number may go to the same ones. 0 is any of the set; those that may go to
    /// some only, because they are pinned for one, have other numbers.
    pub lane: u64,
    /// Whose it is; empty if nobody says. It matters where tenants share by turns.
    pub tenant: Arc<str>,
    /// Tokens of its prompt.
    pub isl_tokens: u64,
    /// Those of them that nobody who could take it has cached.
    pub uncached_tokens: u64,
    /// How long the cheapest rank would be at its prefill, in seconds.
    pub prefill_seconds: f64,
    /// Its first block. What is booked for another request with the same one may be worth joining.
    pub prefix: Option<SequenceHash>,
}

impl Waiting {
    /// Tokens to compute, at least one.
    #[must_use]
    pub fn work(&self) -> u64 {
        self.uncached_tokens.max(1)
    }
}

/// What a request says of its own urgency.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Urgency {
    /// A greater one goes before every smaller one, whatever else holds.
    pub strict_priority: u32,
    /// How many seconds earlier it wants to have come. What is below 0 counts as 0.
    pub priority_jump: f64,
    /// From when on its answer is of no use; `None`: it never ceases to be.
    pub deadline: Option<Duration>,
}

impl Urgency {
    /// The jump that counts; what is no number counts as none.
    #[must_use]
    pub fn jump(&self) -> f64 {
        if self.priority_jump > 0.0 { self.priority_jump } else { 0.0 }
    }
}

/// The name of a request in its queue, in order of coming.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub(super) u64);

impl Ticket {
    /// Greater than every other.
    pub(super) const LAST: Self = Self(u64::MAX);
}

/// A place in the order of leaving: the least goes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Place {
    strict: std::cmp::Reverse<u32>,
    /// The end of time, where there is none.
    deadline: Duration,
    score: Score,
    /// Whatever is equal so far goes in order of coming.
    pub(super) ticket: Ticket,
}

impl Place {
    /// The place of a request with this `score`, of which the greatest goes first.
    pub(super) fn new(urgency: &Urgency, score: f64, ticket: Ticket) -> Self {
        Self {
            strict: std::cmp::Reverse(urgency.strict_priority),
            deadline: urgency.deadline.unwrap_or(Duration::MAX),
            score: Score(score),
            ticket,
        }
    }
}

/// Greatest first, by the total order of floating-point numbers.
#[derive(Clone, Copy, Debug)]
struct Score(f64);

impl Ord for Score {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.0.total_cmp(&self.0)
    }
}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Score {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Score {}
