//! A replay that waits for its turn, because so many run that no more may.

use std::{ops::Deref, time::Duration};

use super::StreamMachine;

impl<P: Deref<Target = [u8]>> StreamMachine<P> {
    /// The replay that was asked for has to wait for others. Nothing is held meanwhile: it will bring what arrives until it begins,
    /// too. Until then a stream that has batches missing is incomplete.
    pub fn replay_waits(&mut self) {
        if let Some(request) = &mut self.request {
            request.waits = true;
            request.deadline = Duration::MAX;
            self.held.clear();
        }
        self.publish();
    }

    /// The replay that had to wait is asked for now.
    pub fn replay_begins(&mut self, now: Duration) {
        if let Some(request) = &mut self.request {
            request.waits = false;
            request.deadline = now + self.settings.replay_timeout;
        }
        self.publish();
    }
}
