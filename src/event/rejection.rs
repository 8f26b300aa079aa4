//! Why parts of an engine's events do not reach the index.

/// A reason for which an event, or a part of one, is not used. [`Rejection::name`] is the metric label.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Rejection {
    /// A field is missing, or has a type or a value that it cannot have.
    Malformed,
    /// A block is named by a byte string too short to fold into 64 bits.
    ShortHash,
    /// An event of a kind that this version does not know.
    UnknownTag,
    /// The engine itself marked the event as one to ignore.
    IgnoredEvent,
    /// The payload ended inside this event; whatever followed it is lost as well.
    Truncated,
    /// The blocks belong to an owner that is known and not supported.
    UnsupportedOwnership,
    /// The blocks belong to an owner that this version does not know.
    UnknownOwnership,
    /// The blocks lie with another worker.
    NonLocalLocality,
    /// The medium names no tier.
    UnknownMedium,
    /// The cache of an attention kind that a prefix cannot be matched by (sliding window, state space, ...).
    NonMainAttentionKind,
    /// An attention kind that this version does not know.
    UnknownKind,
    /// The event names a group that earlier stores showed to be of such a kind.
    NonMainAttentionGroup,
    /// The event names a group other than 0, without its kind, before any store told the kind.
    UnlearnedGroupIdx,
    /// A store without blocks.
    EmptyStore,
    /// A store that names one block twice, or its parent among the blocks: not a chain.
    RepeatedBlock,
    /// An adapter's blocks, with the adapter's number and without its name: prompts are hashed under the name.
    UnnamedLora,
    /// No salt of its own, and a parent that was stored under more than one.
    AmbiguousCacheNamespace,
    /// The engine's block size is not the configured one: nothing after that can be hashed.
    BlockSizeMismatch,
    /// Fewer tokens than the named blocks need: the blocks before are kept.
    TokensRunOut,
    /// Stored, but its salt could not be remembered, so continuations will not match.
    SaltMemoryFull,
}

impl Rejection {
    /// Every reason, in the order in which [`Rejections::iter`] gives them.
    pub const ALL: [Self; 20] = [
        Self::Malformed,
        Self::ShortHash,
        Self::UnknownTag,
        Self::IgnoredEvent,
        Self::Truncated,
        Self::UnsupportedOwnership,
        Self::UnknownOwnership,
        Self::NonLocalLocality,
        Self::UnknownMedium,
        Self::NonMainAttentionKind,
        Self::UnknownKind,
        Self::NonMainAttentionGroup,
        Self::UnlearnedGroupIdx,
        Self::EmptyStore,
        Self::RepeatedBlock,
        Self::UnnamedLora,
        Self::AmbiguousCacheNamespace,
        Self::BlockSizeMismatch,
        Self::TokensRunOut,
        Self::SaltMemoryFull,
    ];

    /// The label used in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::ShortHash => "short_hash",
            Self::UnknownTag => "unknown_tag",
            Self::IgnoredEvent => "ignored_event",
            Self::Truncated => "truncated",
            Self::UnsupportedOwnership => "unsupported_ownership",
            Self::UnknownOwnership => "unknown_ownership",
            Self::NonLocalLocality => "non_local_locality",
            Self::UnknownMedium => "unknown_medium",
            Self::NonMainAttentionKind => "non_main_attention_kind",
            Self::UnknownKind => "unknown_kind",
            Self::NonMainAttentionGroup => "non_main_attention_group",
            Self::UnlearnedGroupIdx => "unlearned_group_idx",
            Self::EmptyStore => "empty_store",
            Self::RepeatedBlock => "repeated_block",
            Self::UnnamedLora => "unnamed_lora",
            Self::AmbiguousCacheNamespace => "ambiguous_cache_namespace",
            Self::BlockSizeMismatch => "block_size_mismatch",
            Self::TokensRunOut => "tokens_run_out",
            Self::SaltMemoryFull => "salt_memory_full",
        }
    }
}

/// Events not used, counted by reason.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rejections([u64; Rejection::ALL.len()]);

impl Rejections {
    /// How often `reason` was met.
    #[must_use]
    pub const fn get(&self, reason: Rejection) -> u64 {
        self.0[reason as usize]
    }

    /// Every reason's metric label with its count, zeros included.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Rejection::ALL.iter().map(|&reason| (reason.name(), self.get(reason)))
    }

    /// All reasons together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, &count| sum.saturating_add(count))
    }

    pub(super) const fn count(&mut self, reason: Rejection) {
        let count = &mut self.0[reason as usize];
        *count = count.saturating_add(1);
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine = mine.saturating_add(theirs);
        }
    }

    pub(super) const fn clear(&mut self) {
        self.0 = [0; Rejection::ALL.len()];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_place_and_a_label_of_its_own() {
        let mut labels: Vec<_> = Rejection::ALL.iter().map(|reason| reason.name()).collect();
        for (at, &reason) in Rejection::ALL.iter().enumerate() {
            assert_eq!(reason as usize, at, "{reason:?} is out of order");
        }
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), Rejection::ALL.len());
    }
}
