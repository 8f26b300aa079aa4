//! KV events, by what became of them.

use std::fmt;

use crate::{frontend::app::App, metrics::Page};

pub(super) fn events(app: &App, page: &mut Page<'_>) -> fmt::Result {
    let of = app.streams.totals();
    let kinds =
        [("stored", of.stored_events), ("removed", of.removed_events), ("cleared", of.cleared_events)];
    let b = of.blocks;
    let blocks = [
        ("stored", b.stored),
        ("already", b.already),
        ("pending", b.pending),
        ("removed", b.removed),
        ("unknown", b.unknown),
        ("cleared", b.cleared),
        ("refused", b.refused),
    ];
    let problems = [
        ("bad_message", of.bad_messages),
        ("unreadable_batch", of.unreadable_batches),
        ("foreign_rank_batch", of.foreign_rank_batches),
    ];
    page.counter(
        "unheard_prompts",
        "Prompts whose blocks nobody expects where they were sent",
        of.unheard_prompts,
    )?;
    page.counters_by("kind", "events", "KV events applied, by kind", kinds)?;
    page.counters_by("result", "event_blocks", "Blocks of those events, by what became of them", blocks)?;
    page.counters_by("problem", "event_problems", "Messages and events that could not be used", problems)?;
    page.counters_by("reason", "events_rejected", "Events that the index must not see", of.rejected)
}
