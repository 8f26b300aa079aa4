//! KV events, by what became of them.

use std::fmt;

use crate::{frontend::app::App, metrics::Page};

pub(super) fn events(app: &App, page: &mut Page<'_>) -> fmt::Result {
    let mut kinds = [("stored", 0), ("removed", 0), ("cleared", 0)];
    let mut blocks =
        ["stored", "already", "pending", "removed", "unknown", "cleared", "refused"].map(|name| (name, 0));
    let mut problems = [("bad_message", 0), ("unreadable_batch", 0), ("foreign_rank_batch", 0)];
    let mut rejected: Vec<(&'static str, u64)> = Vec::new();
    let mut unheard = 0;
    for (_, of) in app.streams.totals() {
        add(&mut kinds, [of.stored_events, of.removed_events, of.cleared_events]);
        let b = of.blocks;
        add(&mut blocks, [b.stored, b.already, b.pending, b.removed, b.unknown, b.cleared, b.refused]);
        add(&mut problems, [of.bad_messages, of.unreadable_batches, of.foreign_rank_batches]);
        unheard += of.unheard_prompts;
        for (reason, count) in of.rejected {
            match rejected.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, sum)) => *sum += count,
                None => rejected.push((reason, count)),
            }
        }
    }
    page.counter("unheard_prompts", "Prompts whose blocks nobody expects where they were sent", unheard)?;
    page.counters_by("kind", "events", "KV events applied, by kind", kinds)?;
    page.counters_by("result", "event_blocks", "Blocks of those events, by what became of them", blocks)?;
    page.counters_by("problem", "event_problems", "Messages and events that could not be used", problems)?;
    page.counters_by("reason", "events_rejected", "Events that the index must not see", rejected)
}

fn add<const N: usize>(sums: &mut [(&str, u64); N], more: [u64; N]) {
    for ((_, sum), more) in sums.iter_mut().zip(more) {
        *sum += more;
    }
}
