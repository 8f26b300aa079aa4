//! The log's numbers.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use super::{AccessLog, queue::LogCounters};
use crate::metrics::Page;

impl AccessLog {
    /// Writes them; all are 0 without a log.
    pub(in crate::frontend) fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        let counters = self.0.as_ref().map(|queue| &queue.counters);
        let count =
            |of: fn(&LogCounters) -> &AtomicU64| counters.map_or(0, |counters| of(counters).load(Relaxed));
        let lines = [
            ("written", count(|counters| &counters.written)),
            ("dropped", count(|counters| &counters.dropped)),
            ("lost", count(|counters| &counters.lost)),
        ];
        page.counters_by(
            "result",
            "access_log_lines",
            "Lines for the access log, by what became of them",
            lines,
        )?;
        let waiting = self.0.as_ref().map_or(0, |queue| queue.waiting());
        let waiting = i64::try_from(waiting).unwrap_or(i64::MAX);
        page.gauge("access_log_waiting", "Lines that wait to be written", waiting)?;
        page.gauge(
            "access_log_failing",
            "1 while the access log cannot be written",
            counters.map_or(0, |counters| i64::from(counters.failing.load(Relaxed))),
        )
    }
}
