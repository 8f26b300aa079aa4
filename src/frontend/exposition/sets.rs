//! Worker sets: their configurations, whether their members agree, and how well their first tokens are predicted.

use std::{collections::BTreeSet, fmt, sync::Arc};

use crate::{
    fleet::{FleetView, PrefillPool, SetState, SetView, WorkerType},
    frontend::{app::App, first_token::FirstTokenTimes, prompts::TokenSource, queue, session},
    metrics::{Histogram, Page},
};

pub(super) fn sets(app: &App, view: &FleetView, page: &mut Page<'_>) -> fmt::Result {
    page.gauge(
        "fleet_generation",
        "Goes up with every change of the fleet",
        i64::try_from(view.generation).unwrap_or(i64::MAX),
    )?;
    page.counter(
        "foreign_registrations",
        "Registrations refused because their namespace is not served",
        app.fleet.strangers(),
    )?;
    let names = view.sets.iter().map(|set| (set, set.key.to_string(), set.key.model_type.to_string()));
    let names: Vec<_> = names.collect();
    let labels: Vec<_> = names
        .iter()
        .map(|(set, name, model_type)| {
            [
                ("worker_set", name.as_str()),
                ("model", set.key.model.as_str()),
                ("model_type", model_type.as_str()),
                ("router_mode", set.config.mode.name()),
                ("router_cost_model", set.config.tuning.cost_model.name()),
                ("router_config_from", set.source.name()),
            ]
        })
        .collect();
    page.gauges(
        "worker_set_info",
        "Worker sets and their routing configuration",
        labels.iter().map(|labels| (&labels[..], 1)),
    )?;
    session::write(app, &names, page)?;
    disagreements(&names, page)?;
    prefill_pools(&names, page)?;
    first_tokens(app, &names, page)?;
    queue::write(app, names.iter().map(|(set, name, _)| (&***set, name.as_str())), page)?;
    // Sets of one model have one tokenizer, and a series may stand on the page once.
    let models: BTreeSet<_> = view.sets.iter().map(|set| set.key.model.as_str()).collect();
    let sources: Vec<_> = models
        .into_iter()
        .map(|model| ([("model", model)], i64::from(app.prompts.source(model) == TokenSource::Nobody)))
        .collect();
    page.gauges(
        "model_untokenised",
        "1 if a model is routed by load alone because nobody can tell its prompts' tokens",
        sources.iter().map(|(labels, value)| (&labels[..], *value)),
    )
}

/// Whether the members of each set agree. `sets` come with their names and what they serve.
fn disagreements(sets: &[(&Arc<SetView>, String, String)], page: &mut Page<'_>) -> fmt::Result {
    let labels: Vec<_> = sets
        .iter()
        .map(|(set, name, model_type)| {
            [
                ("worker_set", name.as_str()),
                ("model", set.key.model.as_str()),
                ("model_type", model_type.as_str()),
            ]
        })
        .collect();
    let rows = || labels.iter().map(|labels| &labels[..]).zip(sets.iter().map(|(set, ..)| &**set));
    page.gauges(
        "worker_set_conflict",
        "1 if a worker set takes no requests because its members' cards differ",
        rows().map(|(labels, set)| (labels, i64::from(set.state() == SetState::Conflict))),
    )?;
    page.gauges(
        "worker_set_cohorts",
        "Different cards, in effect, among the members of a worker set",
        rows().map(|(labels, set)| (labels, i64::try_from(set.cohorts.len()).unwrap_or(i64::MAX))),
    )
}

/// What each decode set knows of its prefill workers. `sets` come with their names and what they serve.
fn prefill_pools(sets: &[(&Arc<SetView>, String, String)], page: &mut Page<'_>) -> fmt::Result {
    let decode = sets.iter().filter(|(set, ..)| set.key.worker_type == WorkerType::Decode);
    let rows: Vec<_> = decode
        .flat_map(|(set, name, _)| {
            PrefillPool::NAMES.map(|state| {
                let labels =
                    [("worker_set", name.as_str()), ("model", set.key.model.as_str()), ("state", state)];
                (labels, i64::from(set.prefill.name() == state))
            })
        })
        .collect();
    page.gauges(
        "prefill_pool_state",
        "1 for what a decode set knows of its prefill workers, 0 for the other states",
        rows.iter().map(|(labels, value)| (&labels[..], *value)),
    )
}

/// How well first tokens are predicted. `sets` come with their names.
fn first_tokens(app: &App, sets: &[(&Arc<SetView>, String, String)], page: &mut Page<'_>) -> fmt::Result {
    let kept = &app.counters.first_tokens;
    kept.retain(|key| sets.iter().any(|(set, ..)| set.key == *key));
    let rows: Vec<_> = sets
        .iter()
        .map(|(set, name, model_type)| {
            let labels = [
                ("worker_set", name.as_str()),
                ("model", set.key.model.as_str()),
                ("model_type", model_type.as_str()),
            ];
            (labels, kept.of(&set.key))
        })
        .collect();
    let mut write = |name, help, histogram: fn(&FirstTokenTimes) -> &Histogram| {
        let snapshots: Vec<_> =
            rows.iter().map(|(labels, times)| (labels, histogram(times).snapshot())).collect();
        page.histograms(name, help, snapshots.iter().map(|(labels, of)| (&labels[..], of)))
    };
    write("first_token_seconds", "From a booking to its first token, where that was predicted", |times| {
        &times.actual
    })?;
    write("first_token_predicted_seconds", "The same as predicted", |times| &times.predicted)?;
    write("first_token_error_seconds", "How far off each prediction was", |times| &times.error)
}
