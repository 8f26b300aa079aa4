//! Failures that tests ask for.

use std::collections::VecDeque;

use http::StatusCode;
use parking_lot::Mutex;

/// Failures in waiting: each is used by one request, in the order in which they were asked for.
#[derive(Debug, Default)]
pub(in crate::worker::mock) struct HttpFaults {
    failures: Mutex<VecDeque<StatusCode>>,
    cuts: Mutex<VecDeque<u64>>,
}

impl HttpFaults {
    pub(in crate::worker::mock) fn fail_next(&self, status: StatusCode) {
        self.failures.lock().push_back(status);
    }

    pub(in crate::worker::mock) fn cut_next(&self, events: u64) {
        self.cuts.lock().push_back(events);
    }

    pub(super) fn take_failure(&self) -> Option<StatusCode> {
        self.failures.lock().pop_front()
    }

    pub(super) fn take_cut(&self) -> Option<u64> {
        self.cuts.lock().pop_front()
    }
}
