//! When first tokens come, and when they were to come.

use std::{sync::Arc, time::Duration};

use ahash::AHashMap;
use parking_lot::RwLock;

use crate::{
    fleet::{Clock, SetKey},
    load::Booking,
    metrics::Histogram,
};

/// Times from a booking to its first token, of the answers of one worker set for which there was a prediction.
#[derive(Debug, Default)]
pub(super) struct FirstTokenTimes {
    /// As they were.
    pub(super) actual: Histogram,
    /// As the time model predicted them.
    pub(super) predicted: Histogram,
    /// How far off it was, either way.
    pub(super) error: Histogram,
}

impl FirstTokenTimes {
    fn observe(&self, predicted: Duration, actual: Duration) {
        self.actual.observe(actual);
        self.predicted.observe(predicted);
        self.error.observe(actual.abs_diff(predicted));
    }
}

/// The times of every worker set.
#[derive(Debug, Default)]
pub(super) struct FirstTokens {
    /// Written only for a set that is new or gone.
    sets: RwLock<AHashMap<SetKey, Arc<FirstTokenTimes>>>,
}

impl FirstTokens {
    /// Those of one set.
    pub(super) fn of(&self, set: &SetKey) -> Arc<FirstTokenTimes> {
        if let Some(times) = self.sets.read().get(set) {
            return Arc::clone(times);
        }
        Arc::clone(self.sets.write().entry(set.clone()).or_default())
    }

    /// Drops those of sets that are gone.
    pub(super) fn retain(&self, stays: impl Fn(&SetKey) -> bool) {
        if !self.sets.read().keys().all(&stays) {
            self.sets.write().retain(|set, _| stays(set));
        }
    }
}

/// What is to be done when the first token of a booked request comes.
pub(super) struct FirstToken {
    clock: Clock,
    booked: Duration,
    predicted: Option<(Duration, Arc<FirstTokenTimes>)>,
}

impl FirstToken {
    /// Of a request that was booked at `booked`, with what was predicted, in seconds.
    pub(super) fn expect(
        clock: Clock,
        booked: Duration,
        predicted: Option<f64>,
        times: impl FnOnce() -> Arc<FirstTokenTimes>,
    ) -> Self {
        let predicted = predicted.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        Self { clock, booked, predicted: predicted.map(|predicted| (predicted, times())) }
    }

    /// It came now.
    pub(super) fn came(&self, booking: &Booking) {
        let now = self.clock.now();
        booking.first_token(now);
        if let Some((predicted, times)) = &self.predicted {
            times.observe(*predicted, now.saturating_sub(self.booked));
        }
    }
}
