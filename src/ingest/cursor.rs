//! Where one rank's stream stands, and what a sequence number says about it.

/// The numbers of one incarnation of an engine: what is in the index, and what the live socket has said.
///
/// They differ, because a replay overtakes the live socket: batches that a replay already brought still
/// wait in the subscriber's queue and arrive again. That is why `applied` alone cannot tell an old duplicate
/// from a restart. The rule that can: *a live connection delivers one incarnation's batches in strictly
/// increasing order*. So
///
/// * at or below the last number **heard live**: the engine counts from the start again, [`Observation::Restart`];
/// * above that, but at or below the last number **applied**: a replay was quicker, [`Observation::Stale`].
///
/// That holds for what was applied and is **forgotten**, too: until a replay has brought it again, the batches that the first one
/// overtook would lead back to what the index held when they were published.
///
/// A new connection begins with a doubt. Batches that were heard over the last one are not said over it; of those that a replay brought
/// meanwhile nobody knows, for it may have reached an engine that was connected already. So what is at or below the last number applied
/// before, and was not heard, is [`Observation::Doubtful`] until the engine is shown to be the same, or another.
///
/// A replayed batch is never a restart: a replay may say again what was said before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cursor {
    applied: Option<u64>,
    heard: Option<u64>,
    heard_before: Option<u64>,
    forgotten: Option<u64>,
    doubtful: Option<u64>,
}

/// What a sequence number means, given the cursor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Observation {
    /// The one that was expected.
    Contiguous,
    /// Seen before in this incarnation.
    Stale,
    /// Batches are missing, from `expected` on.
    Gap {
        /// The first number that is missing.
        expected: u64,
    },
    /// The engine counts anew: it is another incarnation.
    Restart,
    /// Applied before this connection, which may have begun before that was replayed; or another incarnation's.
    Doubtful,
}

impl Cursor {
    /// The cursor of an incarnation of which nothing has been seen.
    #[must_use]
    pub const fn new() -> Self {
        Self { applied: None, heard: None, heard_before: None, forgotten: None, doubtful: None }
    }

    /// The last number applied; `None` before the first.
    #[must_use]
    pub const fn applied(&self) -> Option<u64> {
        self.applied
    }

    /// The number that would be contiguous: engines count from 0.
    #[must_use]
    pub fn expected(&self) -> u64 {
        self.applied.map_or(0, |applied| applied.saturating_add(1))
    }

    /// Observes a number on the live socket, and remembers that it was heard.
    pub fn live(&mut self, sequence: u64) -> Observation {
        if self.heard.max(self.heard_before).is_some_and(|heard| sequence <= heard) {
            return Observation::Restart;
        }
        self.heard = Some(sequence);
        if self.doubtful.is_some_and(|doubtful| sequence <= doubtful) {
            return Observation::Doubtful;
        }
        if self.forgotten.is_some_and(|forgotten| sequence <= forgotten) {
            return Observation::Stale;
        }
        self.replayed(sequence)
    }

    /// Observes a number in a replay, or one that was heard live and held back.
    #[must_use]
    pub fn replayed(&self, sequence: u64) -> Observation {
        let expected = self.expected();
        if sequence < expected {
            Observation::Stale
        } else if sequence == expected {
            Observation::Contiguous
        } else {
            Observation::Gap { expected }
        }
    }

    /// The batch with this number is applied, whatever came before it.
    pub fn advance(&mut self, sequence: u64) {
        self.applied = Some(sequence);
    }

    /// Nothing of this incarnation counts as applied any more; what was heard stays heard.
    pub fn forget_applied(&mut self) {
        self.forgotten = self.forgotten.max(self.applied.take());
    }

    /// All that the engine has was told. What is forgotten and was not told again was another incarnation's, for only newer batches push
    /// one out of a ring.
    pub fn complete(&mut self) {
        self.forgotten =
            self.forgotten.filter(|&forgotten| self.applied.is_some_and(|applied| applied >= forgotten));
    }

    /// A new connection begins, of the same incarnation or another.
    pub fn reconnected(&mut self) {
        self.heard_before = self.heard_before.max(self.heard.take());
        self.doubtful = self.doubtful.max(self.applied).max(self.forgotten);
    }

    /// The engine of this connection was shown to be the one whose batches were applied.
    pub fn trust(&mut self) {
        self.doubtful = None;
    }

    /// What is applied next may be another incarnation's: what is known of the one before excuses no number, and betrays none.
    pub fn doubt(&mut self) {
        *self = Self { heard: self.heard, ..Self::new() };
    }

    /// A new incarnation begins.
    pub fn restart(&mut self) {
        *self = Self::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(applied: Option<u64>, heard: Option<u64>) -> Cursor {
        Cursor { applied, heard, ..Cursor::new() }
    }

    #[test]
    fn live_numbers() {
        use Observation::{Contiguous, Gap, Restart, Stale};
        let table = [
            (at(None, None), 0, Contiguous),
            (at(None, None), 3, Gap { expected: 0 }),
            (at(Some(4), Some(4)), 5, Contiguous),
            (at(Some(4), Some(4)), 7, Gap { expected: 5 }),
            // The number just said, said again: no connection does that within an incarnation.
            (at(Some(4), Some(4)), 4, Restart),
            (at(Some(4), Some(4)), 0, Restart),
            // A replay reached 9 while 7..9 still waited in the subscriber's queue.
            (at(Some(9), Some(6)), 7, Stale),
            (at(Some(9), Some(6)), 6, Restart),
            (at(Some(9), None), 0, Stale),
            // Heard, but held back behind a gap.
            (at(Some(4), Some(12)), 13, Gap { expected: 5 }),
            (at(Some(4), Some(12)), 12, Restart),
            (at(Some(u64::MAX), Some(0)), u64::MAX, Contiguous),
        ];
        for (mut cursor, sequence, meaning) in table {
            assert_eq!(cursor.live(sequence), meaning, "{sequence} at {cursor:?}");
        }
    }

    #[test]
    fn a_replay_is_never_a_restart() {
        let cursor = at(Some(4), Some(12));
        for sequence in 0..=4 {
            assert_eq!(cursor.replayed(sequence), Observation::Stale);
        }
        assert_eq!(cursor.replayed(5), Observation::Contiguous);
        assert_eq!(cursor.replayed(9), Observation::Gap { expected: 5 });
    }

    #[test]
    fn what_is_forgotten_and_not_told_again_is_nobody_s() {
        for (told, then) in [(8, Observation::Contiguous), (9, Observation::Stale)] {
            let mut cursor = at(Some(9), Some(6));
            cursor.forget_applied();
            cursor.advance(told);
            cursor.complete();
            assert_eq!(cursor.live(9), then);
        }
    }

    #[test]
    fn after_a_reconnect_what_a_replay_brought_is_doubtful_until_the_engine_is_known() {
        let mut cursor = at(Some(9), Some(6));
        cursor.reconnected();
        assert_eq!(cursor.live(6), Observation::Restart);
        assert_eq!(cursor.live(7), Observation::Doubtful);
        cursor.trust();
        assert_eq!(cursor.live(8), Observation::Stale);
        assert_eq!(cursor.live(10), Observation::Contiguous);
    }

    #[test]
    fn what_was_applied_and_forgotten_is_stale_on_the_live_socket_alone() {
        let mut cursor = at(Some(9), Some(6));
        cursor.forget_applied();
        assert_eq!(cursor.live(7), Observation::Stale);
        assert_eq!(cursor.replayed(0), Observation::Contiguous);
        cursor.advance(0);
        cursor.forget_applied();
        assert_eq!(cursor.live(9), Observation::Stale, "the highest that was ever applied counts");
        assert_eq!(cursor.live(10), Observation::Gap { expected: 0 });
        assert_eq!(cursor.live(10), Observation::Restart);
    }

    #[test]
    fn after_a_reconnect_what_is_forgotten_is_doubtful_too() {
        let mut cursor = at(Some(9), Some(6));
        cursor.forget_applied();
        cursor.reconnected();
        assert_eq!(cursor.live(9), Observation::Doubtful);
        assert_eq!(cursor.live(9), Observation::Restart);
    }

    #[test]
    fn in_doubt_only_what_was_heard_of_the_one_that_speaks_counts() {
        let mut cursor = at(Some(9), Some(6));
        cursor.forget_applied();
        cursor.reconnected();
        cursor.doubt();
        cursor.advance(20);
        assert_eq!(cursor.live(3), Observation::Stale);
        cursor.doubt();
        cursor.advance(20);
        assert_eq!(cursor.live(3), Observation::Restart);
        assert_eq!(cursor.live(4), Observation::Stale);
    }

    #[test]
    fn a_new_incarnation_knows_nothing() {
        let mut cursor = at(Some(9), Some(12));
        cursor.restart();
        assert_eq!(cursor, Cursor::new());
    }
}
