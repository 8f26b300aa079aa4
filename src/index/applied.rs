//! What one event did.

use std::ops::AddAssign;

/// What an event changed, in blocks of one tier.
///
/// For a store, `stored + already + pending` is the number of its blocks; for a removal,
/// `removed + kept + unknown` is the number of its hashes. The other counts are side effects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Applied {
    /// Blocks that the slot holds in this tier since this event.
    pub stored: u32,
    /// Blocks that the slot held in this tier before: one more copy of each.
    pub already: u32,
    /// Blocks whose place is unknown: they wait for the name of their parent, or for their own.
    pub pending: u32,
    /// Blocks, placed or waiting, whose last copy in this tier went.
    pub removed: u32,
    /// Blocks that lost a copy in this tier and have others left.
    pub kept: u32,
    /// Removals of blocks that the slot does not hold in this tier.
    pub unknown: u32,
    /// Blocks, placed or waiting, that a clear, a retirement or a new generation dropped; a block counts once
    /// for each tier it was in.
    pub cleared: u32,
    /// Names that came back at another place, so that the slot no longer holds them at the earlier one.
    pub moved: u32,
    /// Blocks, of any slot, that had waited and now got their place.
    pub attached: u32,
    /// Waiting blocks of the slot dropped because too many wait.
    pub dropped: u32,
    /// Blocks that found no room: the slot may not grow, the index has grown to its limit, or a run has more different
    /// marks than it can keep. They are not held.
    pub refused: u32,
    /// Whether the event was ignored because it belongs to an incarnation that is over.
    pub stale: bool,
}

/// Sums the counts; the sum is stale if either part is.
impl AddAssign for Applied {
    fn add_assign(&mut self, other: Self) {
        self.stored += other.stored;
        self.already += other.already;
        self.pending += other.pending;
        self.removed += other.removed;
        self.kept += other.kept;
        self.unknown += other.unknown;
        self.cleared += other.cleared;
        self.moved += other.moved;
        self.attached += other.attached;
        self.dropped += other.dropped;
        self.refused += other.refused;
        self.stale |= other.stale;
    }
}
