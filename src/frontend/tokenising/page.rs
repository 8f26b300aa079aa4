//! Tokenising on the metrics page.

use std::fmt;

use super::{super::app::App, Tokenising};
use crate::metrics::Page;

/// Writes what was cached, and how the queues stand.
pub(in crate::frontend) fn write(app: &App, page: &mut Page<'_>) -> fmt::Result {
    let Tokenising { cache, short, long, .. } = &app.tokenising;
    page.counters_by(
        "from",
        "tokenised_bytes",
        "Bytes of prompts by where their tokens came from",
        [("cache", cache.cached_bytes()), ("tokenizer", cache.tokenised_bytes())],
    )?;
    let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    page.gauge("tokenizer_cache_bytes", "Bytes in use for cached tokens", gauge(cache.bytes()))?;
    page.gauge("tokenizer_cache_segments", "Segments whose tokens are cached", gauge(cache.segments()))?;
    page.counter("tokenizer_cache_evictions", "Segments whose tokens gave way to others", cache.evictions())?;
    let lines = [short, long].map(|line| ([("line", line.name())], line));
    let waiting = lines.iter().map(|(labels, line)| (&labels[..], gauge(line.waiting() as u64)));
    page.gauges("tokenizer_waiting", "Prompts that wait to be tokenised", waiting)?;
    let refused = lines.iter().map(|(labels, line)| (labels[0].1, line.refused()));
    page.counters_by(
        "line",
        "tokenizer_refusals",
        "Requests refused because too many prompts waited to be tokenised",
        refused,
    )
}
