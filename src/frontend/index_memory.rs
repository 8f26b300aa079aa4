//! The numbers of the indexes, and of the memory that they may use.

use std::fmt;

use super::app::App;
use crate::{fleet::FleetView, index::Totals, metrics::Page};

/// Writes them to the page.
pub(super) fn write(app: &App, view: &FleetView, page: &mut Page<'_>) -> fmt::Result {
    indexes(view, page)?;
    memory(app, page)
}

fn indexes(view: &FleetView, page: &mut Page<'_>) -> fmt::Result {
    let mut seen: Vec<(&str, u32, bool)> = Vec::new();
    let mut rows: Vec<([(&str, &str); 1], Totals)> = Vec::new();
    let cohorts = view.sets.iter().flat_map(|set| set.cohorts.iter().map(move |of| (set, &of.cohort)));
    for (set, cohort) in cohorts {
        // Cohorts that hash alike share an index, which shall be counted once; a model's others are added.
        let model = set.key.model.as_str();
        let hashing = (model, cohort.block_size.get(), cohort.eagle);
        if seen.contains(&hashing) {
            continue;
        }
        seen.push(hashing);
        let totals = cohort.index.totals();
        match rows.iter_mut().find(|(labels, _)| labels[0].1 == model) {
            Some((_, sum)) => {
                sum.places += totals.places;
                sum.pending += totals.pending;
                sum.dropped += totals.dropped;
                sum.bytes += totals.bytes;
            }
            None => rows.push(([("model", model)], totals)),
        }
    }
    let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let places = rows.iter().map(|(labels, of)| (&labels[..], gauge(of.places)));
    page.gauges("index_places", "Distinct blocks in the index", places)?;
    let bytes = rows.iter().map(|(labels, of)| (&labels[..], gauge(of.bytes)));
    page.gauges("index_bytes", "Memory of the index, room for growth included", bytes)?;
    let pending = rows.iter().map(|(labels, of)| (&labels[..], gauge(of.pending)));
    page.gauges("index_pending_blocks", "Blocks that wait for a parent, never credited", pending)?;
    let dropped = rows.iter().map(|(labels, of)| (&labels[..], of.dropped));
    page.counters("index_dropped_blocks", "Waiting blocks given up at the limit", dropped)
}

fn memory(app: &App, page: &mut Page<'_>) -> fmt::Result {
    let memory = app.streams.memory();
    let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    page.gauge(
        "index_memory_bytes",
        "Memory that the indexes use, as the limit counts it",
        gauge(memory.used),
    )?;
    page.gauge(
        "index_memory_limit_bytes",
        "What they may use; 0 without a limit",
        gauge(memory.limit.unwrap_or(0)),
    )?;
    page.gauge(
        "index_stopped_ranks",
        "Ranks of whose blocks the index holds no more, because memory is short",
        gauge(memory.stopped_ranks),
    )
}
