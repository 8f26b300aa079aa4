//! The numbers of a frontend, written to the metrics page when it is scraped.

use std::{
    collections::BTreeSet,
    fmt::{self, Debug},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use super::{
    app::App,
    connections,
    counters::{Outcome, Surface},
    devices, drift,
    first_token::FirstTokenTimes,
    index_memory, index_snapshot, overlaps, parity,
    prompts::TokenSource,
    queue, session, tokenising,
};
use crate::{
    event::Tier,
    fleet::{FleetView, PrefillPool, RankMember, SetState, SetView, StreamState, WorkerType},
    metrics::{Exposition, Histogram, Labels, Page, Source},
};

/// The page as text.
pub(super) fn text(app: &Arc<App>) -> Result<String, fmt::Error> {
    let mut page = Exposition::new();
    page.add(Numbers(Arc::clone(app)));
    page.text()
}

struct Numbers(Arc<App>);

impl Debug for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Numbers")
    }
}

impl Source for Numbers {
    fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        let app = &self.0;
        let view = app.fleet.view();
        requests(app, page)?;
        choices(app, page)?;
        app.decisions.write(page)?;
        doors(app, page)?;
        stages(app, page)?;
        tokenising::write(app, page)?;
        overlaps::write(app, page)?;
        sets(app, &view, page)?;
        Ranks::of(&view, app.fleet.now_ms()).write(page)?;
        devices::write(&view, app.fleet.now_ms(), page)?;
        parity::write(app, &view, page)?;
        drift::write(&view, page)?;
        index_memory::write(app, &view, page)?;
        index_snapshot::write(app, page)?;
        events(app, page)
    }
}

fn requests(app: &App, page: &mut Page<'_>) -> fmt::Result {
    let counters = &app.counters;
    page.gauge("requests_in_flight", "Requests being served now", app.in_flight())?;
    let names =
        |surface: Surface, outcome: Outcome| [("surface", surface.name()), ("outcome", outcome.name())];
    let values: Vec<_> = counters.requests().map(|(s, o, count)| (names(s, o), count)).collect();
    let values = values.iter().map(|(labels, count)| (&labels[..], *count));
    page.counters("requests", "Requests finished, by API and outcome", values)?;
    let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed);
    page.counter("retries", "Requests tried on another worker", load(&counters.retries))?;
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

/// Who gets in, over what, and what is written of it.
fn doors(app: &App, page: &mut Page<'_>) -> fmt::Result {
    app.gate.write(page)?;
    let listeners = [("public", &*app.public_connections), ("admin", &*app.admin_connections)];
    connections::write(&listeners, page)?;
    app.files.write(page)?;
    app.access_log.write(page)
}

fn choices(app: &App, page: &mut Page<'_>) -> fmt::Result {
    let counters = &app.counters;
    let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed);
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
    page.counters_by("reason", "exclusions", "Candidates that could not be chosen", counters.exclusions())?;
    page.counters_by("reason", "refusals", "Requests that got no worker", counters.refusals())?;
    let help = "Prefill hops of requests in two hops, by how they ended";
    page.counters_by("outcome", "prefills", help, counters.prefills())?;
    let help = "Whether requests bypassed the prefill workers, and why";
    page.counters_by("outcome", "bypass_decisions", help, counters.bypasses())
}

fn stages(app: &App, page: &mut Page<'_>) -> fmt::Result {
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

fn sets(app: &App, view: &FleetView, page: &mut Page<'_>) -> fmt::Result {
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

/// Every rank with its labels written out.
struct Ranks<'a> {
    /// On the fleet's clock.
    now_ms: u64,
    ranks: Vec<(&'a SetView, &'a RankMember, [String; 2])>,
}

impl<'a> Ranks<'a> {
    fn of(view: &'a FleetView, now_ms: u64) -> Self {
        let ranks = view.members().map(|(set, member)| {
            (&**set, &**member, [member.worker.id.to_string(), member.rank.to_string()])
        });
        Self { now_ms, ranks: ranks.collect() }
    }

    fn labels(&self) -> Vec<[(&str, &str); 3]> {
        self.ranks
            .iter()
            .map(|(set, _, [worker, rank])| {
                [("worker", worker.as_str()), ("rank", rank), ("model", &set.key.model)]
            })
            .collect()
    }

    fn gauge(
        &self,
        page: &mut Page<'_>,
        name: &str,
        help: &str,
        value: impl Fn(&SetView, &RankMember) -> f64,
    ) -> fmt::Result {
        let labels = self.labels();
        let values = self.ranks.iter().zip(&labels);
        page.gauges(name, help, values.map(|((set, member, _), l)| (&l[..], value(set, member))))
    }

    fn counter(
        &self,
        page: &mut Page<'_>,
        name: &str,
        help: &str,
        value: impl Fn(&RankMember) -> u64,
    ) -> fmt::Result {
        let labels = self.labels();
        let values = self.ranks.iter().zip(&labels);
        page.counters(name, help, values.map(|((_, member, _), l)| (&l[..], value(member))))
    }

    fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        let load = |set: &SetView, member: &RankMember| set.selector.loads().get(member.slot);
        self.gauge(page, "worker_requests", "Requests in flight", |set, member| {
            f64::from(load(set, member).requests)
        })?;
        self.gauge(page, "worker_prefill_tokens", "Prompt tokens outstanding", |set, member| {
            load(set, member).prefill_tokens as f64
        })?;
        self.gauge(page, "worker_decode_blocks", "Blocks that requests use", |set, member| {
            load(set, member).decode_blocks as f64
        })?;
        self.gauge(
            page,
            "worker_prefill_seconds_per_token",
            "Prefill time a token, as learned",
            |set, m| set.selector.loads().seconds_per_token(m.slot),
        )?;
        self.gauge(page, "worker_event_lag_seconds", "Age of the last event batch when applied", |_, m| {
            m.status.totals().lag_ms as f64 / 1000.0
        })?;
        let now = self.now_ms;
        self.gauge(page, "worker_routable", "1 if it takes new requests", |set, member| {
            f64::from(u8::from(set.exclusion(member, now).is_none()))
        })?;
        self.gauge(page, "worker_busy", "1 if it is over a busy threshold", |set, member| {
            let loads = set.selector.loads();
            let (tuned, capacity) = (set.selector.tuning().busy, member.worker.capacity());
            f64::from(u8::from(loads.is_busy(member.slot, tuned, &capacity)))
        })?;
        self.gauge(
            page,
            "worker_inhibited_seconds",
            "For how long it gets no requests because it failed some",
            |_, m| m.worker.inhibited_ms(now) as f64 / 1000.0,
        )?;
        self.counter(page, "worker_chosen", "Requests sent there", |m| m.chosen.load(Relaxed))?;
        self.counter(page, "worker_prompt_tokens", "Prompt tokens reported", |m| {
            m.prompt_tokens.load(Relaxed)
        })?;
        self.counter(page, "worker_cached_tokens", "Of those, reported as cached", |m| {
            m.cached_tokens.load(Relaxed)
        })?;
        self.counter(page, "worker_event_batches", "Event batches applied", |m| m.status.totals().batches)?;
        self.counter(page, "worker_event_gaps", "Times that batches were missing", |m| {
            m.status.totals().gaps
        })?;
        self.counter(page, "worker_event_replays", "Replays asked for", |m| m.status.totals().replays)?;
        self.counter(page, "worker_event_overloads", "Times that batches came too fast", |m| {
            m.status.totals().overloads
        })?;
        let flag = f64::from;
        self.gauge(
            page,
            "worker_event_overloaded",
            "1 while batches that come too fast are dropped",
            |_, m| flag(u8::from(m.status.overloaded())),
        )?;
        self.gauge(
            page,
            "worker_growth_stopped",
            "1 while the index holds no more of its blocks",
            |_, m| flag(u8::from(m.status.growth_stopped())),
        )?;
        self.counter(page, "worker_restarts", "New incarnations recognised", |m| m.status.totals().restarts)?;
        self.counter(page, "worker_unreadable_batches", "Batches that could not be read", |m| {
            m.status.totals().rejected_batches
        })?;
        self.gauge(
            page,
            "worker_expected_blocks",
            "Blocks held to be cached there because they were sent there",
            |_, member| {
                let expected = member.expected.as_ref();
                let blocks = expected.map(|expected| member.cohort.index.blocks(expected.slot));
                blocks.map_or(0.0, |blocks| blocks[Tier::Gpu.index()] as f64)
            },
        )?;
        self.stream_states(page)?;
        self.cached_blocks(page)
    }

    fn stream_states(&self, page: &mut Page<'_>) -> fmt::Result {
        let labels = self.labels();
        let rows: Vec<_> = self
            .ranks
            .iter()
            .zip(&labels)
            .flat_map(|((_, member, _), labels)| {
                let now = member.status.state();
                StreamState::ALL.into_iter().map(move |state| {
                    let [worker, rank, model] = *labels;
                    ([worker, rank, model, ("state", state.name())], i64::from(state == now))
                })
            })
            .collect();
        page.gauges(
            "worker_stream_state",
            "1 for the state that the event stream is in",
            rows.iter().map(|(labels, value)| (labels as Labels<'_>, *value)),
        )
    }

    fn cached_blocks(&self, page: &mut Page<'_>) -> fmt::Result {
        let labels = self.labels();
        let rows: Vec<_> = self
            .ranks
            .iter()
            .zip(&labels)
            .flat_map(|((_, member, _), labels)| {
                let blocks = member.cohort.index.blocks(member.slot);
                Tier::ALL.into_iter().map(move |tier| {
                    let [worker, rank, model] = *labels;
                    let count = i64::try_from(blocks[tier.index()]).unwrap_or(i64::MAX);
                    ([worker, rank, model, ("tier", tier.name())], count)
                })
            })
            .collect();
        page.gauges(
            "worker_cached_blocks",
            "Blocks that the index holds for it",
            rows.iter().map(|(labels, value)| (labels as Labels<'_>, *value)),
        )
    }
}

fn events(app: &App, page: &mut Page<'_>) -> fmt::Result {
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
    labelled(page, "events", "KV events applied, by kind", "kind", &kinds)?;
    labelled(page, "event_blocks", "Blocks of those events, by what became of them", "result", &blocks)?;
    labelled(page, "event_problems", "Messages and events that could not be used", "problem", &problems)?;
    labelled(page, "events_rejected", "Events that the index must not see", "reason", &rejected)
}

fn add<const N: usize>(sums: &mut [(&str, u64); N], more: [u64; N]) {
    for ((_, sum), more) in sums.iter_mut().zip(more) {
        *sum += more;
    }
}

fn labelled(
    page: &mut Page<'_>,
    name: &str,
    help: &str,
    label: &str,
    counts: &[(&'static str, u64)],
) -> fmt::Result {
    let rows: Vec<_> = counts.iter().map(|&(value, count)| ([(label, value)], count)).collect();
    page.counters(name, help, rows.iter().map(|(labels, count)| (&labels[..], *count)))
}
