//! Batches that the sink does not take, and what the index holds being built anew.

use std::{collections::VecDeque, ops::Deref, time::Duration};

use super::{Fingerprint, Output, Purpose, StreamMachine};

/// How often an overloaded stream's sink is asked whether it has room.
const ROOM_CHECK: Duration = Duration::from_millis(50);

/// Which batches the sink was handed: the last one, the one before, and those that are still among the outputs.
#[derive(Debug, Default)]
pub(super) struct Handed {
    coming: VecDeque<Fingerprint>,
    last: Option<Fingerprint>,
    before: Option<Fingerprint>,
}

impl Handed {
    /// The sink has this batch, though it was not handed it.
    pub(super) fn resume(&mut self, batch: Fingerprint) {
        self.last = Some(batch);
    }

    /// A batch is put among the outputs.
    pub(super) fn add(&mut self, batch: Fingerprint) {
        self.coming.push_back(batch);
    }

    /// The driver takes an output.
    pub(super) fn note<P>(&mut self, output: &Output<P>) {
        match output {
            Output::Apply { .. } => self.before = std::mem::replace(&mut self.last, self.coming.pop_front()),
            Output::Clear => (self.last, self.before) = (None, None),
            _ => {}
        }
    }
}

impl<P: Deref<Target = [u8]>> StreamMachine<P> {
    /// The batch that was last among the outputs was not taken, and neither would those after it be: there is no room. Live
    /// batches are dropped from here on.
    pub fn refused(&mut self, now: Duration, sequence: u64) {
        self.outputs.retain(|output| !matches!(output, Output::Apply { .. } | Output::AskReplay { .. }));
        self.handed.coming.clear();
        self.handed.last = self.handed.before;
        self.last = self.handed.last;
        match self.last {
            Some(last) => self.cursor.advance(last.sequence),
            None => self.cursor.forget_applied(),
        }
        self.request = None;
        self.retry_at = None;
        self.held.clear();
        self.room_at = Some((now + ROOM_CHECK).max(self.resync_after));
        self.outputs.push_back(Output::GapFound);
        if !self.can_replay {
            self.lose_before(sequence.saturating_add(1));
        }
        self.publish();
    }

    /// Whether the stream is overloaded and it is time to see whether the sink has room: if so, tell [`StreamMachine::room`].
    #[must_use]
    pub fn wants_room(&mut self, now: Duration) -> bool {
        let due = self.room_at.is_some_and(|at| at <= now);
        if due {
            self.room_at = Some(now + ROOM_CHECK);
        }
        due
    }

    /// The sink takes batches again: what was not taken is asked for.
    pub fn room(&mut self, now: Duration) {
        if self.room_at.take().is_none() {
            return;
        }
        self.resync_after = now + self.settings.resync_pause;
        // Whoever shows the state shows by it, too, that the overload is over.
        self.restate = true;
        if self.connected && self.can_replay {
            if self.proven && self.last.is_some() {
                self.ask(now, Purpose::Heal);
            } else {
                self.identify(now);
            }
        }
        self.publish();
    }

    /// What the index holds of the rank is to be built anew, because it was not allowed to hold all that it was told, or holds
    /// what its engine cannot.
    pub fn rebuild(&mut self, now: Duration) {
        self.outputs.push_back(Output::Clear);
        self.restate = true;
        if self.connected && !self.proven && self.can_replay && self.last.is_some() {
            // What is applied may be a dead engine's, and then its numbers say nothing about those of this one.
            self.rebuild_due = true;
        } else {
            self.build_anew(now);
        }
        self.publish();
    }

    /// Forgets what was applied, and asks for all of it.
    pub(super) fn build_anew(&mut self, now: Duration) {
        self.last = None;
        self.resumes = false;
        self.rebuild_due = false;
        self.cursor.forget_applied();
        self.request = None;
        self.retry_at = None;
        self.lost_before = None;
        if !self.can_replay {
            self.lost_before = Some(0);
            return;
        }
        self.outputs.push_back(Output::Anew);
        if self.connected && self.room_at.is_none() {
            self.identify(now);
        }
    }
}
