//! Where sessions went: for each worker set a table from a session to the slot that its last request was sent to.
//!
//! A client names a session, so that what its requests have in common stays on one slot even where no block of it is known to
//! be cached. What the name means for a choice is [`SessionAffinity`](crate::select::SessionAffinity)'s to say; here it is
//! only remembered, for a time that begins anew when a request of the session ends.
//!
//! Slots are remembered with their generation, so a session whose worker is gone is never taken for one of the successor
//! that has its index: whoever looks a slot up compares it whole with those of the set's members. A prefill set and a decode
//! set remember apart, each by its own configuration.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use ahash::{AHashMap, RandomState};
use parking_lot::Mutex;

use super::clock::Clock;
use crate::slot::Slot;

/// How many sessions a worker set remembers. At the limit the one that was idle for longest is forgotten; if none is
/// idle, the new one is not remembered.
pub const MOST_SESSIONS: usize = 65_536;

/// Longest name of a session, in bytes.
const LONGEST_NAME: usize = 256;

/// A session, by a digest of its name: the name is the client's, and no matter of ours. Digests are made with keys of this
/// process, so nobody can make two names that collide.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub u128);

impl SessionId {
    /// The session that `tenant` calls `name`; `None` for a name that is empty or longer than 256 bytes. Tenants do not share
    /// sessions.
    #[must_use]
    pub fn of(tenant: Option<&str>, name: &str) -> Option<Self> {
        static KEYS: OnceLock<[RandomState; 2]> = OnceLock::new();
        if name.is_empty() || name.len() > LONGEST_NAME {
            return None;
        }
        let keys = KEYS.get_or_init(|| [RandomState::new(), RandomState::new()]);
        let [high, low] = [0, 1].map(|half: usize| u128::from(keys[half].hash_one((tenant, name))));
        Some(Self(high << 64 | low))
    }
}

/// The sessions of one worker set. Its mutex is held for a look-up or a change of one session; requests without a session
/// never take it.
#[derive(Debug)]
pub struct Sessions {
    table: Mutex<Table>,
    capacity: usize,
}

#[derive(Debug, Default)]
struct Table {
    sessions: AHashMap<SessionId, Session>,
    /// Those without a request in flight, the one that is idle for longest first.
    idle: BTreeMap<u64, SessionId>,
    /// How many times a session has become idle.
    turn: u64,
}

#[derive(Debug)]
struct Session {
    slot: Slot,
    in_flight: u32,
    /// Since when there is no request in flight, and where it stands among the idle.
    idle_since: Duration,
    turn: u64,
}

impl Default for Sessions {
    fn default() -> Self {
        Self::new(MOST_SESSIONS)
    }
}

impl Sessions {
    /// A table of at most `capacity` sessions, without any.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { table: Mutex::default(), capacity }
    }

    /// Where the last request of a session went, if that is known and no older at `now` than `ttl`.
    #[must_use]
    pub fn slot(&self, id: SessionId, ttl: Duration, now: Duration) -> Option<Slot> {
        let mut table = self.table.lock();
        table.forget_older(ttl, now);
        table.sessions.get(&id).map(|session| session.slot)
    }

    /// A request of a session was sent to `chosen`, where `seen` is what was known when it was chosen: of requests that are
    /// placed side by side the first says where the session is. Whether the session is remembered; if so,
    /// [`Sessions::end`] has to follow, once.
    #[must_use]
    pub fn begin(&self, id: SessionId, seen: Option<Slot>, chosen: Slot) -> bool {
        let mut table = self.table.lock();
        let Table { sessions, idle, .. } = &mut *table;
        if let Some(session) = sessions.get_mut(&id) {
            if session.in_flight == 0 {
                idle.remove(&session.turn);
            }
            session.in_flight = session.in_flight.saturating_add(1);
            if seen == Some(session.slot) {
                session.slot = chosen;
            }
            return true;
        }
        if sessions.len() >= self.capacity {
            let Some((_, longest)) = idle.pop_first() else { return false };
            sessions.remove(&longest);
        }
        let session = Session { slot: chosen, in_flight: 1, idle_since: Duration::ZERO, turn: 0 };
        sessions.insert(id, session);
        true
    }

    /// A request of a session has ended, whichever way.
    pub fn end(&self, id: SessionId, now: Duration) {
        let mut table = self.table.lock();
        let Table { sessions, idle, turn } = &mut *table;
        let Some(session) = sessions.get_mut(&id) else { return };
        session.in_flight = session.in_flight.saturating_sub(1);
        if session.in_flight == 0 {
            *turn += 1;
            (session.idle_since, session.turn) = (now, *turn);
            idle.insert(*turn, id);
        }
    }

    /// How many sessions are remembered at `now`.
    #[must_use]
    pub fn count(&self, ttl: Duration, now: Duration) -> usize {
        let mut table = self.table.lock();
        table.forget_older(ttl, now);
        table.sessions.len()
    }
}

impl Table {
    /// Each session that goes has become idle once, so this takes no longer than that did.
    fn forget_older(&mut self, ttl: Duration, now: Duration) {
        while let Some(first) = self.idle.first_entry() {
            let since = self.sessions.get(first.get()).map_or(Duration::ZERO, |session| session.idle_since);
            if now.saturating_sub(since) < ttl {
                return;
            }
            self.sessions.remove(&first.remove());
        }
    }
}

/// A request's part in its session, for as long as it is in flight.
#[derive(Debug)]
pub struct SessionUse {
    sessions: Arc<Sessions>,
    id: SessionId,
    clock: Clock,
}

impl SessionUse {
    /// Notes that a request was sent to `chosen`, see [`Sessions::begin`]; `None` if the session is not remembered.
    #[must_use]
    pub fn begin(
        sessions: &Arc<Sessions>,
        id: SessionId,
        seen: Option<Slot>,
        chosen: Slot,
        clock: Clock,
    ) -> Option<Self> {
        let begun = sessions.begin(id, seen, chosen);
        begun.then(|| Self { sessions: Arc::clone(sessions), id, clock })
    }
}

impl Drop for SessionUse {
    fn drop(&mut self) {
        self.sessions.end(self.id, self.clock.now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_told_apart_by_tenant_and_has_a_length() {
        let id = |tenant, name: &str| SessionId::of(tenant, name);
        assert_eq!(id(None, "a"), id(None, "a"));
        for other in [id(Some("t"), "a"), id(Some(""), "a"), id(None, "b"), id(Some("ta"), "")] {
            assert_ne!(id(None, "a"), other);
        }
        assert_eq!(id(None, ""), None);
        assert!(id(None, &"x".repeat(256)).is_some());
        assert_eq!(id(None, &"x".repeat(257)), None);
    }
}
