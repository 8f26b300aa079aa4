//! The table of sessions against a literal one.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

use std::time::Duration;

use kvroute::{
    fleet::{SessionId, Sessions},
    slot::Slot,
};
use proptest::prelude::*;

const TTL: Duration = Duration::from_secs(10);

fn slot(index: u32, generation: u32) -> Slot {
    Slot { index, generation }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const A: SessionId = SessionId(1);
const B: SessionId = SessionId(2);
const C: SessionId = SessionId(3);

#[test]
fn a_session_is_remembered_until_it_was_idle_for_so_long() {
    let sessions = Sessions::default();
    assert_eq!(sessions.slot(A, TTL, seconds(0)), None);
    assert!(sessions.begin(A, None, slot(3, 0)));
    assert_eq!(sessions.slot(A, TTL, seconds(1_000)), Some(slot(3, 0)), "a request in flight keeps it");
    assert!(sessions.begin(A, Some(slot(3, 0)), slot(3, 0)));
    sessions.end(A, seconds(1_000));
    assert_eq!(sessions.slot(A, TTL, seconds(2_000)), Some(slot(3, 0)), "the other one, too");
    sessions.end(A, seconds(2_000));
    assert_eq!(sessions.slot(A, TTL, seconds(2_009)), Some(slot(3, 0)));
    assert_eq!(sessions.slot(A, TTL, seconds(2_010)), None);
    assert_eq!(sessions.count(TTL, seconds(2_010)), 0);
}

#[test]
fn of_requests_placed_side_by_side_the_first_says_where_the_session_is() {
    let sessions = Sessions::default();
    assert!(sessions.begin(A, None, slot(1, 0)));
    assert!(sessions.begin(A, None, slot(2, 0)), "it is remembered, and changes nothing");
    assert_eq!(sessions.slot(A, TTL, seconds(0)), Some(slot(1, 0)));
    assert!(sessions.begin(A, Some(slot(1, 0)), slot(2, 0)));
    assert_eq!(sessions.slot(A, TTL, seconds(0)), Some(slot(2, 0)), "it has moved");
}

#[test]
fn at_the_limit_the_session_that_was_idle_for_longest_goes() {
    let sessions = Sessions::new(2);
    for (id, now) in [(A, 1), (B, 2)] {
        assert!(sessions.begin(id, None, slot(0, 0)));
        sessions.end(id, seconds(now));
    }
    assert!(sessions.begin(C, None, slot(0, 0)));
    let found = |id| sessions.slot(id, TTL, seconds(3)).is_some();
    assert_eq!([A, B, C].map(found), [false, true, true]);
    // With all of them in flight there is no room.
    assert!(sessions.begin(B, Some(slot(0, 0)), slot(0, 0)));
    assert!(!sessions.begin(A, None, slot(0, 0)));
    assert_eq!(sessions.count(TTL, seconds(3)), 2);
}

#[derive(Clone, Debug)]
enum Op {
    Look(u8),
    /// A request begins on a slot; what is known of the session is known when it does, or was out of date.
    Begin(u8, u32, bool),
    /// One of the requests in flight ends.
    End(prop::sample::Index),
    Pass(u8),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => (0_u8..6).prop_map(Op::Look),
        6 => (0_u8..6, 0_u32..4, prop::bool::weighted(0.8)).prop_map(|(id, slot, fresh)| Op::Begin(id, slot, fresh)),
        5 => any::<prop::sample::Index>().prop_map(Op::End),
        2 => (0_u8..8).prop_map(Op::Pass),
    ]
}

/// A list of sessions, first the one that was idle for longest, then those with requests in flight in any order.
#[derive(Default)]
struct Literal {
    sessions: Vec<(u8, Slot, u32, Duration)>,
}

impl Literal {
    fn expire(&mut self, now: Duration) {
        self.sessions.retain(|&(_, _, in_flight, idle)| in_flight > 0 || now < idle + TTL);
    }

    fn slot(&mut self, id: u8, now: Duration) -> Option<Slot> {
        self.expire(now);
        self.sessions.iter().find(|session| session.0 == id).map(|session| session.1)
    }

    fn begin(&mut self, id: u8, seen: Option<Slot>, chosen: Slot, capacity: usize) -> bool {
        if let Some(session) = self.sessions.iter_mut().find(|session| session.0 == id) {
            session.2 += 1;
            if seen == Some(session.1) {
                session.1 = chosen;
            }
            return true;
        }
        if self.sessions.len() == capacity {
            let Some(longest) = self.sessions.iter().position(|session| session.2 == 0) else { return false };
            self.sessions.remove(longest);
        }
        self.sessions.push((id, chosen, 1, Duration::ZERO));
        true
    }

    fn end(&mut self, id: u8, now: Duration) {
        let at = self.sessions.iter().position(|session| session.0 == id).unwrap();
        let (id, slot, in_flight, idle) = self.sessions.remove(at);
        if in_flight == 1 {
            self.sessions.push((id, slot, 0, now));
        } else {
            self.sessions.insert(at, (id, slot, in_flight - 1, idle));
        }
    }
}

proptest! {
    #[test]
    fn the_table_is_the_literal_one(ops in prop::collection::vec(op(), 0..200), capacity in 1_usize..5) {
        let (sessions, mut literal) = (Sessions::new(capacity), Literal::default());
        let (mut now, mut in_flight) = (seconds(0), Vec::new());
        for op in ops {
            match op {
                Op::Look(id) => {
                    prop_assert_eq!(sessions.slot(SessionId(id.into()), TTL, now), literal.slot(id, now));
                }
                Op::Begin(id, index, fresh) => {
                    let known = literal.slot(id, now);
                    prop_assert_eq!(sessions.slot(SessionId(id.into()), TTL, now), known);
                    let seen = if fresh { known } else { Some(slot(9, 9)) };
                    let begun = sessions.begin(SessionId(id.into()), seen, slot(index, 0));
                    prop_assert_eq!(begun, literal.begin(id, seen, slot(index, 0), capacity));
                    if begun {
                        in_flight.push(id);
                    }
                }
                Op::End(which) => {
                    if !in_flight.is_empty() {
                        let id = in_flight.swap_remove(which.index(in_flight.len()));
                        sessions.end(SessionId(id.into()), now);
                        literal.end(id, now);
                    }
                }
                Op::Pass(time) => now += seconds(time.into()),
            }
            literal.expire(now);
            prop_assert_eq!(sessions.count(TTL, now), literal.sessions.len());
        }
    }
}
