//! The log's numbers.

use std::{fmt, sync::atomic::Ordering::Relaxed};

use super::recorder::Recorder;
use crate::{frontend::log_queue::LogCounters, metrics::Page};

impl Recorder {
    /// Writes them; all are 0 without a log.
    pub(in crate::frontend) fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        let log = self.log();
        let none = LogCounters::default();
        let counters = log.map_or(&none, |log| &log.queue.counters);
        page.counters_by(
            "result",
            "decision_log_records",
            "Records for the decision log, by what became of them",
            counters.results(),
        )?;
        page.counter(
            "decision_log_bytes",
            "Bytes written to the decision log",
            counters.bytes.load(Relaxed),
        )?;
        page.gauge(
            "decision_log_waiting",
            "Records that wait to be written",
            counters.waiting.load(Relaxed),
        )?;
        page.gauge(
            "decision_log_failing",
            "1 while the decision log cannot be written",
            i64::from(counters.failing.load(Relaxed)),
        )?;
        let (recent, bytes) = log.map_or((0, 0), |log| {
            let (count, bytes, _) = log.memory.extent();
            (count, bytes)
        });
        let gauge = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
        page.gauge("recent_decisions", "Decisions that can be asked about", gauge(recent))?;
        page.gauge("recent_decision_bytes", "Memory that they take", gauge(bytes))
    }
}
