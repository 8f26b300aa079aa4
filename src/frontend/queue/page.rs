//! The queues on the metrics page.

use std::fmt;

use super::{set_queue::Depth, wait::order};
use crate::{fleet::SetView, frontend::app::App, metrics::Page};

/// Writes who waits in the queues of `sets`, which come with their names.
pub(in crate::frontend) fn write<'a>(
    app: &App,
    sets: impl Iterator<Item = (&'a SetView, &'a str)>,
    page: &mut Page<'_>,
) -> fmt::Result {
    app.queues.drop_forgotten();
    let now = app.fleet.clock().now();
    let rows: Vec<_> = sets
        .map(|(set, name)| {
            let labels = [("worker_set", name), ("model", set.key.model.as_str()), ("order", order(set))];
            (labels, app.queues.known(set).map(|queue| queue.depth(now)).unwrap_or_default())
        })
        .collect();
    let mut gauge = |name, help, value: fn(&Depth) -> f64| {
        page.gauges(name, help, rows.iter().map(|(labels, depth)| (&labels[..], value(depth))))
    };
    gauge("queue_requests", "Requests that wait in the router", |depth| depth.requests as f64)?;
    gauge("queue_prompt_tokens", "Prompt tokens of those", |depth| depth.isl_tokens as f64)?;
    gauge("queue_oldest_seconds", "How long the one has waited that came first", |depth| {
        depth.oldest.as_secs_f64()
    })?;
    let tally = &app.queues.tally;
    let help = "Requests that waited or were not let, by what became of them";
    page.counters_by("outcome", "queue_outcomes", help, tally.counts())?;
    page.histogram(
        "queue_wait_seconds",
        "How long requests waited for which a worker was then chosen",
        &tally.waited.snapshot(),
    )
}
