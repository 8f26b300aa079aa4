//! How it is guessed what a worker has cached, where no KV events say so.

use std::{fmt, str::FromStr};

/// How long what a worker was sent is held to be cached there.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ApproximateCache {
    /// Seconds, under [`ApproximatePolicy::Ttl`], from when a block was last part of a prompt that was sent there. At least 0.
    /// Default 120.
    pub ttl_secs: f64,
    /// When a block is held to be gone. Default [`ApproximatePolicy::Ttl`].
    pub policy: ApproximatePolicy,
}

impl Default for ApproximateCache {
    fn default() -> Self {
        Self { ttl_secs: 120.0, policy: ApproximatePolicy::Ttl }
    }
}

/// When a block is held to have left a cache. Under either, nobody is held to have more blocks than fit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum ApproximatePolicy {
    /// After a time.
    #[default]
    Ttl,
    /// When the cache has no room left for those sent later. A worker that does not say how much room it has is treated as under
    /// [`ApproximatePolicy::Ttl`].
    Lru,
}

impl ApproximatePolicy {
    /// Every policy.
    pub const ALL: [Self; 2] = [Self::Ttl, Self::Lru];

    /// The spelling of the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ttl => "ttl",
            Self::Lru => "lru",
        }
    }
}

impl fmt::Display for ApproximatePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A policy that nobody knows.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown approximate cache policy '{name}'; expected ttl or lru")]
pub struct UnknownApproximatePolicy {
    /// The name as given.
    pub name: String,
}

impl FromStr for ApproximatePolicy {
    type Err = UnknownApproximatePolicy;

    fn from_str(name: &str) -> Result<Self, UnknownApproximatePolicy> {
        let mut policies = Self::ALL.into_iter();
        let known = policies.find(|policy| policy.name() == name);
        known.ok_or_else(|| UnknownApproximatePolicy { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_others_are_told_which_there_are() {
        for policy in ApproximatePolicy::ALL {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        assert!("fifo".parse::<ApproximatePolicy>().unwrap_err().to_string().contains("expected ttl or lru"));
    }
}
