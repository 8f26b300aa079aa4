//! Which of the requests that wait goes first, as far as nothing more urgent says so; a file a policy.

mod fcfs;
mod lcfs;
mod wspt;

use super::Waiting;
use std::{fmt, str::FromStr};

/// The order of requests of equal strict priority and equal deadline. Names and scores are Dynamo's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum QueuePolicy {
    /// First come, first served.
    #[default]
    Fcfs,
    /// Last come, first served.
    Lcfs,
    /// Least work first.
    Wspt,
}

impl QueuePolicy {
    /// Every policy, in order of name.
    pub const ALL: [Self; 3] = [Self::Fcfs, Self::Lcfs, Self::Wspt];

    /// The spelling of cards and flags.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fcfs => "fcfs",
            Self::Lcfs => "lcfs",
            Self::Wspt => "wspt",
        }
    }

    /// The score of a request, which never changes while it waits; the greatest goes first.
    #[must_use]
    pub fn score(self, waiting: &Waiting) -> f64 {
        match self {
            Self::Fcfs => fcfs::score(waiting),
            Self::Lcfs => lcfs::score(waiting),
            Self::Wspt => wspt::score(waiting),
        }
    }
}

impl fmt::Display for QueuePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A policy that nobody knows.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown queue policy '{name}'; expected one of {}", QueuePolicy::ALL.map(QueuePolicy::name).join(", "))]
pub struct UnknownQueuePolicy {
    /// The name as given.
    pub name: String,
}

impl FromStr for QueuePolicy {
    type Err = UnknownQueuePolicy;

    fn from_str(name: &str) -> Result<Self, UnknownQueuePolicy> {
        let known = Self::ALL.into_iter().find(|policy| policy.name() == name);
        known.ok_or_else(|| UnknownQueuePolicy { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_others_are_told_which_there_are() {
        for policy in QueuePolicy::ALL {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        let error = "sjf".parse::<QueuePolicy>().unwrap_err().to_string();
        assert_eq!(error, "unknown queue policy 'sjf'; expected one of fcfs, lcfs, wspt");
    }
}
