//! Who may say that a stream is to be trusted.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::fleet::{StreamState, StreamStatus};

/// The door to a stream's published state.
///
/// Two threads write it. The stream's thread withdraws credit the moment there is doubt; the applier grants
/// it once the index is there. A grant that was queued before a withdrawal must not undo it, so every
/// withdrawal makes the tickets given out before it void.
///
/// A stream that is live for all that was published is incomplete here while the index may not hold what it says: while its
/// rank may not grow, and from the first batch that was not taken until a state is granted that was decided on after.
#[derive(Debug)]
pub(super) struct Gate {
    status: Arc<StreamStatus>,
    inside: Mutex<Inside>,
}

#[derive(Debug)]
struct Inside {
    withdrawals: u64,
    granted: StreamState,
    growth_stopped: bool,
    /// Overloads that began, those that ended for the stream's thread, and those that ended for the applier, too.
    overloads: [u64; 3],
}

/// Says that a state was decided on before any later withdrawal.
#[derive(Clone, Copy)]
pub(super) struct Ticket {
    withdrawals: u64,
    overloads: u64,
}

impl Gate {
    pub(super) fn new(status: Arc<StreamStatus>) -> Arc<Self> {
        let granted = status.state();
        let inside = Inside { withdrawals: 0, granted, growth_stopped: false, overloads: [0; 3] };
        Arc::new(Self { status, inside: Mutex::new(inside) })
    }

    pub(super) fn status(&self) -> &StreamStatus {
        &self.status
    }

    /// From now on nothing is credited, whatever is still queued.
    pub(super) fn withdraw(&self) {
        self.change(|inside| {
            inside.withdrawals += 1;
            inside.granted = StreamState::Unproven;
            // What the applier would have to work off first is not credited any more, and may never be told of again.
            inside.overloads[2] = inside.overloads[1];
        });
    }

    pub(super) fn ticket(&self) -> Ticket {
        let inside = self.inside.lock();
        Ticket { withdrawals: inside.withdrawals, overloads: inside.overloads[1] }
    }

    pub(super) fn grant(&self, state: StreamState, ticket: Ticket) {
        self.change(|inside| {
            inside.overloads[2] = inside.overloads[2].max(ticket.overloads);
            if inside.withdrawals == ticket.withdrawals {
                inside.granted = state;
            }
        });
    }

    /// A batch was not taken.
    pub(super) fn begin_overload(&self) {
        self.change(|inside| inside.overloads[0] += 1);
    }

    /// Batches are taken again; tickets from here on know of it.
    pub(super) fn end_overload(&self) {
        self.change(|inside| inside.overloads[1] = inside.overloads[0]);
    }

    /// From the next batch on the rank holds no more blocks than it does.
    pub(super) fn stop_growth(&self) {
        self.change(|inside| inside.growth_stopped = true);
    }

    pub(super) fn start_growth(&self) {
        self.change(|inside| inside.growth_stopped = false);
    }

    /// Changes what is inside and shows what comes of it, under the lock: a look and a write with another's write in
    /// between would show what is over.
    fn change(&self, change: impl FnOnce(&mut Inside)) {
        let mut inside = self.inside.lock();
        change(&mut inside);
        let [begun, _, ended] = inside.overloads;
        self.status.set_overloaded(begun > ended);
        self.status.set_growth_stopped(inside.growth_stopped);
        let held_back = begun > ended || inside.growth_stopped;
        self.status.set_state(match inside.granted {
            StreamState::Live if held_back => StreamState::Incomplete,
            granted => granted,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_queued_before_a_withdrawal_is_void() {
        let gate = Gate::new(Arc::new(StreamStatus::new(StreamState::Unproven)));
        let early = gate.ticket();
        gate.grant(StreamState::Live, early);
        assert_eq!(gate.status.state(), StreamState::Live);
        gate.withdraw();
        gate.grant(StreamState::Live, early);
        assert_eq!(gate.status.state(), StreamState::Unproven);
        gate.grant(StreamState::Incomplete, gate.ticket());
        assert_eq!(gate.status.state(), StreamState::Incomplete);
    }

    #[test]
    fn a_live_stream_is_incomplete_while_its_rank_may_not_grow() {
        let gate = Gate::new(Arc::new(StreamStatus::new(StreamState::Unproven)));
        gate.grant(StreamState::Live, gate.ticket());
        gate.stop_growth();
        assert_eq!((gate.status.state(), gate.status.growth_stopped()), (StreamState::Incomplete, true));
        gate.withdraw();
        assert_eq!(gate.status.state(), StreamState::Unproven);
        gate.grant(StreamState::Live, gate.ticket());
        assert_eq!(gate.status.state(), StreamState::Incomplete);
        gate.start_growth();
        assert_eq!((gate.status.state(), gate.status.growth_stopped()), (StreamState::Live, false));
    }

    #[test]
    fn an_overload_shows_at_once_and_until_a_state_is_granted_that_knows_of_its_end() {
        let gate = Gate::new(Arc::new(StreamStatus::new(StreamState::Unproven)));
        let early = gate.ticket();
        gate.grant(StreamState::Live, early);
        gate.begin_overload();
        assert_eq!((gate.status.state(), gate.status.overloaded()), (StreamState::Incomplete, true));
        let during = gate.ticket();
        gate.end_overload();
        let after = gate.ticket();
        for ticket in [early, during] {
            gate.grant(StreamState::Live, ticket);
            assert_eq!(gate.status.state(), StreamState::Incomplete);
        }
        gate.grant(StreamState::Replaying, after);
        assert_eq!((gate.status.state(), gate.status.overloaded()), (StreamState::Replaying, false));
        gate.grant(StreamState::Live, after);
        assert_eq!((gate.status.state(), gate.status.totals().overloads), (StreamState::Live, 1));
    }

    /// What was queued when a connection broke says nothing any more, and nobody may be left to grant anything.
    #[test]
    fn an_overload_that_ended_is_over_once_credit_is_withdrawn() {
        let gate = Gate::new(Arc::new(StreamStatus::new(StreamState::Unproven)));
        gate.grant(StreamState::Live, gate.ticket());
        gate.begin_overload();
        gate.withdraw();
        assert_eq!((gate.status.state(), gate.status.overloaded()), (StreamState::Unproven, true));
        let during = gate.ticket();
        gate.end_overload();
        gate.withdraw();
        assert_eq!((gate.status.state(), gate.status.overloaded()), (StreamState::Unproven, false));
        gate.grant(StreamState::Live, during);
        assert_eq!(gate.status.state(), StreamState::Unproven);
        gate.grant(StreamState::Live, gate.ticket());
        assert_eq!((gate.status.state(), gate.status.totals().overloads), (StreamState::Live, 1));
    }
}
