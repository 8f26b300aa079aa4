//! Requests, the choices made for them, and the stages of a decision.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::{
    frontend::{
        app::App,
        counters::{Outcome, Surface},
    },
    metrics::Page,
};

pub(super) fn requests(app: &App, page: &mut Page<'_>) -> fmt::Result {
    let counters = &app.counters;
    page.gauge("requests_in_flight", "Requests being served now", app.in_flight())?;
    let names =
        |surface: Surface, outcome: Outcome| [("surface", surface.name()), ("outcome", outcome.name())];
    let values: Vec<_> = counters.requests().map(|(s, o, count)| (names(s, o), count)).collect();
    let values = values.iter().map(|(labels, count)| (&labels[..], *count));
    page.counters("requests", "Requests finished, by API and outcome", values)?;
    let load = |counter: &AtomicU64| counter.load(Relaxed);
    app.retries.write(app.fleet.clock().now(), page)?;
    page.counter(
        "untokenised_requests",
        "Requests routed by load alone because nobody could tell their tokens",
        load(&counters.untokenised),
    )?;
    page.counter("unknown_hint_keys", "Keys of nvext that nobody reads", load(&counters.unknown_hints))?;
    page.counter(
        "reported_answers",
        "Answers whose usage said how many prompt tokens were cached",
        load(&counters.reported),
    )?;
    page.counter(
        "reported_prompt_tokens",
        "Prompt tokens of those answers",
        load(&counters.reported_prompt_tokens),
    )?;
    page.counter(
        "reported_cached_tokens",
        "Cached prompt tokens of those answers",
        load(&counters.reported_cached_tokens),
    )
}

pub(super) fn choices(app: &App, page: &mut Page<'_>) -> fmt::Result {
    let counters = &app.counters;
    let load = |counter: &AtomicU64| counter.load(Relaxed);
    page.counter("choices", "Workers chosen", load(&counters.choices))?;
    page.counter("choice_candidates", "Eligible candidates, over all choices", load(&counters.candidates))?;
    page.counter("choice_prompt_blocks", "Full blocks of the prompts routed", load(&counters.prompt_blocks))?;
    page.counter(
        "choice_overlap_blocks",
        "Blocks of those that the chosen worker was credited with",
        load(&counters.overlap_blocks),
    )?;
    let cost = load(&counters.cost_microseconds) as f64 / 1e6;
    page.counter("choice_cost_seconds", "Cost of the chosen workers, in seconds (cost model time)", cost)?;
    let cost = load(&counters.cost_block_thousandths) as f64 / 1000.0;
    page.counter("choice_cost_blocks", "Cost of the chosen workers, in blocks (cost model blocks)", cost)?;
    let help = "Times that a worker's circuit breaker opened, let a request through as a probe, or closed";
    page.counters_by("to", "breaker_changes", help, app.fleet.breaker_changes())?;
    page.counters_by("reason", "exclusions", "Candidates that could not be chosen", counters.exclusions())?;
    page.counters_by("reason", "refusals", "Requests that got no worker", counters.refusals())?;
    let help = "Prefill hops of requests in two hops, by how they ended";
    page.counters_by("outcome", "prefills", help, counters.prefills())?;
    let help = "Whether requests bypassed the prefill workers, and why";
    page.counters_by("outcome", "bypass_decisions", help, counters.bypasses())
}

pub(super) fn stages(app: &App, page: &mut Page<'_>) -> fmt::Result {
    let counters = &app.counters;
    for (name, help, histogram) in [
        ("tokenise_seconds", "From a request's body to its tokens", &counters.tokenise),
        ("hash_seconds", "From tokens to block hashes", &counters.hash),
        ("lookup_seconds", "The index lookup", &counters.lookup),
        ("admit_seconds", "Reading loads, deciding and booking", &counters.admit),
        (
            "time_to_first_byte_seconds",
            "From a request's last byte in to its answer's first byte out",
            &counters.first_byte,
        ),
    ] {
        page.histogram(name, help, &histogram.snapshot())?;
    }
    Ok(())
}
