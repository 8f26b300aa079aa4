//! Sessions: requests that follow one another, and the slot that the last of them went to.

use crate::slot::Slot;
use std::{fmt, str::FromStr};

/// What a worker set does with sessions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SessionAffinity {
    /// For how many seconds a session is remembered after its last request has ended; `None` remembers none. Default `None`.
    pub ttl_secs: Option<u64>,
    /// What a session's slot means for a choice. Without effect where no session is remembered. Default
    /// [`AffinityMode::Hard`].
    pub mode: AffinityMode,
}

/// What a session's slot means for its next request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum AffinityMode {
    /// A must: nobody else is eligible, for as long as the slot takes requests. If it is busy, so is the session.
    #[default]
    Hard,
    /// A wish: its cost is [lower](super::cost::session_bonus), so that a much better slot wins; modes without costs follow
    /// it while the slot is eligible.
    Soft,
}

impl AffinityMode {
    /// Every mode.
    pub const ALL: [Self; 2] = [Self::Hard, Self::Soft];

    /// The spelling of the command line and the card.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hard => "hard",
            Self::Soft => "soft",
        }
    }
}

impl fmt::Display for AffinityMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A mode of affinity that nobody knows.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("invalid session affinity mode \"{name}\"; expected 'hard' or 'soft'")]
pub struct UnknownAffinityMode {
    /// The name as given.
    pub name: String,
}

impl FromStr for AffinityMode {
    type Err = UnknownAffinityMode;

    fn from_str(name: &str) -> Result<Self, UnknownAffinityMode> {
        let mut modes = Self::ALL.into_iter();
        modes.find(|mode| mode.name() == name).ok_or_else(|| UnknownAffinityMode { name: name.to_owned() })
    }
}

/// What a request's session says: where it went last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tie {
    /// The slot, in the incarnation that it had then. A successor at its index is nobody's tie.
    pub slot: Slot,
    /// What that means.
    pub mode: AffinityMode,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_others_are_told_which_there_are() {
        for mode in AffinityMode::ALL {
            assert_eq!(mode.name().parse(), Ok(mode));
        }
        let error = "x".parse::<AffinityMode>().unwrap_err().to_string();
        assert_eq!(error, "invalid session affinity mode \"x\"; expected 'hard' or 'soft'");
    }
}
