//! Whose end it is, on a socket that listens: the engine's, or that of somebody who never got in.
//!
//! ZMQ names a connection when it is accepted and when it ends, by its file descriptor, and not when its handshake succeeds; whether
//! a failed one is reported as such depends on how it failed. So connections are followed by their ends: one that never got through
//! its handshake was none.

use ahash::AHashMap;

/// The connections of a socket that listens.
#[derive(Debug, Default)]
pub(super) struct Accepted {
    /// Whether each that is open is known to have got through its handshake.
    open: AHashMap<u32, bool>,
    /// Handshakes that succeeded, of connections among those that are not known to.
    unattributed: usize,
}

impl Accepted {
    /// A connection began.
    pub(super) fn accepted(&mut self, descriptor: u32) {
        self.open.insert(descriptor, false);
    }

    /// One of those that are open got through its handshake.
    pub(super) fn shaken(&mut self) {
        let mut silent = self.open.values_mut().filter(|shaken| !**shaken);
        match (silent.next(), silent.next()) {
            (Some(only), None) if self.unattributed == 0 => *only = true,
            // Several, or one whose beginning is reported after this.
            _ => self.unattributed += 1,
        }
    }

    /// A connection ended; whether it had got through its handshake, as far as that can be told.
    pub(super) fn ended(&mut self, descriptor: u32) -> bool {
        if self.open.remove(&descriptor).unwrap_or(false) {
            return true;
        }
        let silent = self.open.values().filter(|shaken| !**shaken).count();
        let is_one = silent < self.unattributed;
        self.unattributed -= usize::from(is_one);
        is_one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_never_got_in_does_not_end() {
        let mut connections = Accepted::default();
        connections.accepted(7);
        connections.shaken();
        for stranger in [8, 9, 8] {
            connections.accepted(stranger);
            assert!(!connections.ended(stranger));
        }
        connections.accepted(8);
        assert!(connections.ended(7), "a stranger that stays takes nobody's place");
        assert!(!connections.ended(8));
        // The number is used again.
        connections.accepted(7);
        assert!(!connections.ended(7));
    }

    #[test]
    fn two_engines_end_one_by_one() {
        let mut connections = Accepted::default();
        for engine in [7, 8] {
            connections.accepted(engine);
            connections.shaken();
        }
        assert!(connections.ended(8));
        assert!(connections.ended(7));
    }

    #[test]
    fn of_several_that_may_have_got_in_the_last_ends_are_real() {
        let mut connections = Accepted::default();
        connections.accepted(7);
        connections.accepted(8);
        connections.shaken();
        assert!(!connections.ended(8));
        assert!(connections.ended(7));
    }

    #[test]
    fn a_handshake_may_be_told_before_its_connection() {
        let mut connections = Accepted::default();
        connections.shaken();
        connections.accepted(7);
        assert!(connections.ended(7));
        assert_eq!((connections.open.len(), connections.unattributed), (0, 0));
    }
}
