//! The log's numbers.

use std::{fmt, sync::atomic::Ordering::Relaxed};

use super::AccessLog;
use crate::{frontend::log_queue::LogCounters, metrics::Page};

impl AccessLog {
    /// Writes them; all are 0 without a log.
    pub(in crate::frontend) fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        let none = LogCounters::default();
        let counters = self.0.as_ref().map_or(&none, |queue| &queue.counters);
        page.counters_by(
            "result",
            "access_log_lines",
            "Lines for the access log, by what became of them",
            counters.results(),
        )?;
        page.gauge("access_log_waiting", "Lines that wait to be written", counters.waiting.load(Relaxed))?;
        page.gauge(
            "access_log_failing",
            "1 while the access log cannot be written",
            i64::from(counters.failing.load(Relaxed)),
        )
    }
}
