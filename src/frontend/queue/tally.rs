//! What became of requests that waited.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::metrics::Histogram;

/// How a request left a queue, or did not enter it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::frontend) enum Left {
    /// A worker was chosen.
    Placed,
    /// Nobody was left who could take it.
    Refused,
    /// Its deadline passed.
    Late,
    /// Its client gave up.
    Cancelled,
    /// As many requests waited already as may.
    FullOfRequests,
    /// As many prompt tokens waited already as may.
    FullOfTokens,
}

impl Left {
    pub(in crate::frontend) const ALL: [Self; 6] =
        [Self::Placed, Self::Refused, Self::Late, Self::Cancelled, Self::FullOfRequests, Self::FullOfTokens];

    /// The label in metrics.
    pub(in crate::frontend) const fn name(self) -> &'static str {
        match self {
            Self::Placed => "placed",
            Self::Refused => "refused",
            Self::Late => "deadline",
            Self::Cancelled => "cancelled",
            Self::FullOfRequests => "full_of_requests",
            Self::FullOfTokens => "full_of_tokens",
        }
    }
}

/// Counts of all queues; every access is Relaxed, as of all of the frontend's counters.
#[derive(Debug, Default)]
pub(in crate::frontend) struct Tally {
    left: [AtomicU64; Left::ALL.len()],
    /// How long those waited for whom a worker was chosen.
    pub(in crate::frontend) waited: Histogram,
}

impl Tally {
    pub(in crate::frontend) fn count(&self, left: Left) {
        self.left[left as usize].fetch_add(1, Relaxed);
    }

    pub(in crate::frontend) fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Left::ALL.into_iter().zip(&self.left).map(|(left, count)| (left.name(), count.load(Relaxed)))
    }
}
