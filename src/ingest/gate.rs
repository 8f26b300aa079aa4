//! Who may say that a stream is to be trusted.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::fleet::{StreamState, StreamStatus};

/// The door to a stream's published state.
///
/// Two threads write it. The stream's thread withdraws credit the moment there is doubt; the applier grants
/// it once the index is there. A grant that was queued before a withdrawal must not undo it, so every
/// withdrawal makes the tickets given out before it void.
pub(super) struct Gate {
    status: Arc<StreamStatus>,
    withdrawals: Mutex<u64>,
}

/// Says that a state was decided on before any later withdrawal.
#[derive(Clone, Copy)]
pub(super) struct Ticket(u64);

impl Gate {
    pub(super) fn new(status: Arc<StreamStatus>) -> Arc<Self> {
        Arc::new(Self { status, withdrawals: Mutex::new(0) })
    }

    pub(super) fn status(&self) -> &StreamStatus {
        &self.status
    }

    /// From now on nothing is credited, whatever is still queued.
    pub(super) fn withdraw(&self) {
        let mut withdrawals = self.withdrawals.lock();
        *withdrawals += 1;
        self.status.set_state(StreamState::Unproven);
    }

    pub(super) fn ticket(&self) -> Ticket {
        Ticket(*self.withdrawals.lock())
    }

    pub(super) fn grant(&self, state: StreamState, ticket: Ticket) {
        // Held while the state is written, or a withdrawal could come between the look and the write.
        let withdrawals = self.withdrawals.lock();
        if *withdrawals == ticket.0 {
            self.status.set_state(state);
        }
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
}
