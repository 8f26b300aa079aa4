//! Why a candidate may not be chosen.

use std::fmt;

/// The reason that keeps a row from being chosen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Exclusion {
    /// Known, but not to be sent to now: failed lately, or not ready yet.
    Unroutable,
    /// It does not answer when it is asked for its health.
    Unhealthy,
    /// Finishing what it has; takes nothing new.
    Draining,
    /// Over a busy threshold.
    Overloaded,
    /// One of its devices is lost or at fault, or an operator keeps requests away.
    Fenced,
    /// Its worker set's members disagree about the routing configuration.
    ConflictingConfiguration,
    /// This request failed there already.
    AlreadyTried,
    /// The request is pinned to another worker or rank.
    NotPinned,
    /// The request's session is bound to another slot.
    OtherSession,
    /// The worker does not serve the adapter that the request asks for.
    AdapterNotLoaded,
    /// The worker went away after the list of members was made.
    Retired,
}

impl Exclusion {
    /// Every reason.
    pub const ALL: [Self; 11] = [
        Self::Unroutable,
        Self::Unhealthy,
        Self::Draining,
        Self::Overloaded,
        Self::Fenced,
        Self::ConflictingConfiguration,
        Self::AlreadyTried,
        Self::NotPinned,
        Self::OtherSession,
        Self::AdapterNotLoaded,
        Self::Retired,
    ];

    /// Whether it is a failure of the worker's that may be over by now, and no reason that stands until somebody changes it.
    #[must_use]
    pub const fn is_a_failure(self) -> bool {
        matches!(self, Self::Unroutable | Self::Unhealthy)
    }

    /// The name used in metrics and in `explain`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unroutable => "unroutable",
            Self::Unhealthy => "unhealthy",
            Self::Draining => "draining",
            Self::Overloaded => "overloaded",
            Self::Fenced => "fenced",
            Self::ConflictingConfiguration => "conflicting_configuration",
            Self::AlreadyTried => "already_tried",
            Self::NotPinned => "not_pinned",
            Self::OtherSession => "other_session",
            Self::AdapterNotLoaded => "adapter_not_loaded",
            Self::Retired => "retired",
        }
    }
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unroutable => "unroutable",
            Self::Unhealthy => "unhealthy",
            Self::Draining => "draining",
            Self::Overloaded => "overloaded",
            Self::Fenced => "fenced",
            Self::ConflictingConfiguration => "with a conflicting configuration",
            Self::AlreadyTried => "already tried",
            Self::NotPinned => "not pinned",
            Self::OtherSession => "not where the session is",
            Self::AdapterNotLoaded => "without the adapter",
            Self::Retired => "retired",
        })
    }
}

/// How many rows each reason excluded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExclusionCounts([u32; Exclusion::ALL.len()]);

impl ExclusionCounts {
    /// How many rows `reason` excluded.
    #[must_use]
    pub const fn get(&self, reason: Exclusion) -> u32 {
        self.0[reason as usize]
    }

    /// The reasons that excluded any row, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (Exclusion, u32)> + '_ {
        Exclusion::ALL.into_iter().map(|reason| (reason, self.get(reason))).filter(|&(_, count)| count > 0)
    }
}

impl FromIterator<Exclusion> for ExclusionCounts {
    fn from_iter<I: IntoIterator<Item = Exclusion>>(reasons: I) -> Self {
        let mut counts = Self::default();
        for reason in reasons {
            let count = &mut counts.0[reason as usize];
            *count = count.saturating_add(1);
        }
        counts
    }
}

/// As in "2 draining, 1 overloaded".
impl fmt::Display for ExclusionCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, (reason, count)) in self.iter().enumerate() {
            let separator = if position == 0 { "" } else { ", " };
            write!(f, "{separator}{count} {reason}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_by_reason() {
        for reason in Exclusion::ALL {
            let counts: ExclusionCounts = [reason, reason, Exclusion::Draining].into_iter().collect();
            assert_eq!(counts.get(reason), if reason == Exclusion::Draining { 3 } else { 2 });
        }
    }

    #[test]
    fn counts_read_as_a_list() {
        let counts: ExclusionCounts =
            [Exclusion::Overloaded, Exclusion::Draining, Exclusion::Draining].into_iter().collect();
        assert_eq!(counts.to_string(), "2 draining, 1 overloaded");
    }
}
