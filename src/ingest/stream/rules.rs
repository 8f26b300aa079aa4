//! What the machine does with what it is told.

use std::{ops::Deref, time::Duration};

use xxhash_rust::xxh3::xxh3_64;

use super::{Fingerprint, Output, Purpose, Request, StreamMachine};
use crate::ingest::cursor::Observation;

impl<P: Deref<Target = [u8]>> StreamMachine<P> {
    /// Starts the wait for the next check anew.
    pub(super) fn rest(&mut self, now: Duration) {
        self.check_at = self.settings.idle_check.filter(|_| self.can_replay).map(|after| now + after);
    }

    /// The live socket was silent for long. That is an engine without work, lost batches at the end of a burst, or a socket that is
    /// dead; the last is told by a second silence, after the first turned out to be none.
    pub(super) fn check(&mut self, now: Duration) {
        if std::mem::take(&mut self.deaf) {
            self.outputs.push_back(Output::Reconnect);
            self.rest(now);
        } else {
            self.ask(now, Purpose::Check);
        }
    }

    pub(super) fn drop_connection(&mut self) {
        self.unanswered = 0;
        self.deaf = false;
        self.connected = false;
        self.proven = false;
        self.request = None;
        self.held.clear();
        self.retry_at = None;
        self.check_at = None;
    }

    /// What the index holds is the connected engine's.
    pub(super) fn prove(&mut self) {
        self.proven = true;
        self.said_doubtful = false;
        self.cursor.trust();
    }

    /// Asks who is there: for the last batch if there is one, else for everything.
    pub(super) fn identify(&mut self, now: Duration) {
        if !self.can_replay {
            return;
        }
        if self.last.is_some() {
            self.ask(now, Purpose::Prove);
        } else {
            // The index holds nothing that could be someone else's.
            self.prove();
            self.ask(now, Purpose::Heal);
        }
    }

    /// Asks from the last batch on, inclusive, whatever it is for: the answer shows first who gives it.
    pub(super) fn ask(&mut self, now: Duration, purpose: Purpose) {
        let deadline = now + self.settings.replay_timeout;
        self.request = Some(Request { purpose, against: self.last, deadline, attempts: 0, waits: false });
        self.retry_at = None;
        self.outputs
            .push_back(Output::AskReplay { from: self.last.map_or(0, |last| last.sequence), purpose });
    }

    pub(super) fn same_incarnation(&mut self, now: Duration) {
        self.prove();
        if self.rebuild_due {
            self.build_anew(now);
            return;
        }
        if let Some(request) = &mut self.request {
            request.against = None;
            if request.purpose == Purpose::Prove {
                request.purpose = Purpose::Heal;
            }
        }
        self.join();
    }

    /// Drops what the last engine left. The held batches go too: the replay that follows brings those of the
    /// new engine again, for it is asked for after they were published.
    pub(super) fn begin_incarnation(&mut self) {
        self.outputs.push_back(Output::RestartFound);
        self.start_over();
        self.cursor.restart();
    }

    /// Drops what the index holds, and what was about to go there.
    pub(super) fn start_over(&mut self) {
        self.clear();
        self.lost_before = None;
        self.request = None;
        self.retry_at = None;
        self.held.clear();
        self.prove();
    }

    fn clear(&mut self) {
        self.resumes = false;
        self.rebuild_due = false;
        if self.last.take().is_some() {
            self.outputs.push_back(Output::Clear);
            self.restate = true;
        }
        self.cursor.forget_applied();
    }

    /// Batches before `first` will never come. The index must not keep what they may have taken away.
    pub(super) fn lose_before(&mut self, first: u64) {
        self.clear();
        if !self.proven {
            // They may be another engine's, of which the live socket may still bring lower numbers than the one before it came to.
            self.cursor.doubt();
        }
        self.lost_before = Some(first);
        self.prove();
    }

    pub(super) fn apply(&mut self, sequence: u64, payload: P) {
        let batch = Fingerprint { sequence, hash: xxh3_64(&payload) };
        self.last = Some(batch);
        self.handed.add(batch);
        self.cursor.advance(sequence);
        if sequence == 0 {
            self.lost_before = None;
        }
        self.outputs.push_back(Output::Apply { sequence, payload });
    }

    pub(super) fn gap(&mut self, now: Duration, sequence: u64, payload: P) {
        self.outputs.push_back(Output::GapFound);
        if !self.can_replay {
            self.lose_before(sequence);
            self.apply(sequence, payload);
            return;
        }
        if self.proven {
            self.ask(now, Purpose::Heal);
        } else {
            self.identify(now);
        }
        self.hold(now, sequence, payload);
    }

    pub(super) fn hold(&mut self, now: Duration, sequence: u64, payload: P) {
        if !self.held.push(sequence, payload) {
            // Not `give_up`: an answer may be on its way, so a number that follows is no proof here.
            self.abandon(now);
        } else if self.request.as_ref().is_some_and(|request| request.against.is_none()) {
            self.join();
        }
    }

    /// A replayed batch that is not the one that proves the engine.
    pub(super) fn replayed_next(&mut self, now: Duration, sequence: u64, payload: P) {
        let Some(Request { purpose, against, .. }) = self.request else { return };
        match self.cursor.replayed(sequence) {
            Observation::Stale | Observation::Restart | Observation::Doubtful => return,
            Observation::Contiguous if against.is_none() => self.missed(),
            // What was heard live reaches further back than the ring does.
            Observation::Gap { .. }
                if purpose == Purpose::Heal && self.held.first().is_some_and(|first| first < sequence) =>
            {
                self.abandon(now);
                return;
            }
            // Lost for good. A number that follows is no better while the proof is outstanding: whose is it?
            Observation::Contiguous | Observation::Gap { .. } => {
                self.missed();
                self.lose_before(sequence);
            }
        }
        self.apply(sequence, payload);
        self.join();
    }

    /// A check or a proof turned up batches that were missed: from here on the replay heals.
    fn missed(&mut self) {
        let Some(request) = &mut self.request else { return };
        if request.purpose != Purpose::Heal {
            self.outputs.push_back(Output::GapFound);
        }
        self.deaf |= request.purpose == Purpose::Check;
        request.purpose = Purpose::Heal;
        request.against = None;
    }

    /// Goes from the replay to the held batches as soon as they meet; the rest of the replay is not needed.
    /// So while a proven replay runs, the first held batch is always beyond a gap.
    fn join(&mut self) {
        if self.held.is_empty() {
            return;
        }
        while self.held.first().is_some_and(|first| first <= self.cursor.expected()) {
            let Some((sequence, payload)) = self.held.pop() else { return };
            if sequence == self.cursor.expected() {
                self.apply(sequence, payload);
            }
        }
        if self.held.is_empty() {
            self.request = None;
        }
    }

    /// The replay that runs will not bring what it was asked for.
    pub(super) fn give_up(&mut self, now: Duration) {
        let Some(request) = self.request.take() else { return };
        let is_shown = request.against.is_none();
        if request.purpose == Purpose::Check {
            self.rest(now);
            return;
        }
        if self.said_doubtful {
            self.begin_incarnation();
            self.ask(now, Purpose::Heal);
            return;
        }
        let Some(first) = self.held.first() else {
            // No batch says how the engine stands, so nothing is known to be lost. Ask again.
            self.retry_at = Some(now + self.settings.retry * (1 << self.unanswered.min(4)));
            self.unanswered += 1;
            if self.last.is_some() {
                self.proven = false;
            } else {
                self.lost_before = Some(0);
            }
            return;
        };
        // A number that follows stands in for the answer, but not where another stream's word is to be shown, or the index holds
        // nothing for it to follow.
        if first == self.cursor.expected() && (is_shown || !(self.resumes || self.rebuild_due)) {
            self.prove();
            self.resume(now);
        } else {
            self.abandon(now);
        }
    }

    /// Goes on from the held batches, without what came before them.
    fn abandon(&mut self, now: Duration) {
        self.request = None;
        if let Some(first) = self.held.first() {
            self.lose_before(first);
        }
        self.resume(now);
    }

    /// Applies the held batches, the first whatever its number. A gap among them is a gap as any other.
    fn resume(&mut self, now: Duration) {
        if let Some((sequence, payload)) = self.held.pop() {
            self.apply(sequence, payload);
        }
        while let Some(first) = self.held.first() {
            if first != self.cursor.expected() {
                self.outputs.push_back(Output::GapFound);
                self.ask(now, Purpose::Heal);
                return;
            }
            let Some((sequence, payload)) = self.held.pop() else { return };
            self.apply(sequence, payload);
        }
    }

    pub(super) fn publish(&mut self) {
        let state = self.state();
        if state.credits_overlap() {
            self.resumes = false;
        }
        if self.restate || state != self.published {
            self.restate = false;
            self.published = state;
            self.outputs.push_back(Output::State(state));
        }
    }
}
