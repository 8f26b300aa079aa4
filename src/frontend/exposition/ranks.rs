//! Every rank of every worker: what it does, what it holds, and how its event stream stands.

use std::{fmt, sync::atomic::Ordering::Relaxed};

use crate::{
    event::Tier,
    fleet::{BreakerState, FleetView, RankMember, SetView, StreamState},
    metrics::{Labels, Page},
};

/// Every rank with its labels written out.
pub(in crate::frontend) struct Ranks<'a> {
    /// On the fleet's clock.
    now_ms: u64,
    ranks: Vec<(&'a SetView, &'a RankMember, [String; 2])>,
}

impl<'a> Ranks<'a> {
    pub(super) fn of(view: &'a FleetView, now_ms: u64) -> Self {
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

    /// A gauge of each rank.
    pub(in crate::frontend) fn gauge(
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

    pub(super) fn write(&self, page: &mut Page<'_>) -> fmt::Result {
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
        self.gauge(page, "worker_slow_start", "What it weighs because it is new or recovered", |_, m| {
            m.worker.slow_start(now)
        })?;
        self.counter(page, "worker_chosen", "Requests sent there", |m| m.tally.chosen.load(Relaxed))?;
        self.counter(page, "worker_prompt_tokens", "Prompt tokens reported", |m| {
            m.tally.prompt_tokens.load(Relaxed)
        })?;
        self.counter(page, "worker_cached_tokens", "Of those, reported as cached", |m| {
            m.tally.cached_tokens.load(Relaxed)
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
        self.counter(
            page,
            "worker_event_reconnects",
            "Event sockets that brought nothing and were made anew",
            |m| m.status.totals().reconnects,
        )?;
        self.counter(page, "worker_unreadable_batches", "Batches of which not all could be read", |m| {
            m.status.totals().unreadable_batches
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
        self.breaker_states(page)?;
        self.stream_states(page)?;
        self.cached_blocks(page)
    }

    /// A row for each rank and each thing that `each` names, under the label `key`.
    pub(in crate::frontend) fn rows<V, I: IntoIterator<Item = (&'static str, V)>>(
        &self,
        key: &'static str,
        each: impl Fn(&RankMember) -> I,
    ) -> Vec<([(&str, &str); 4], V)> {
        let rows =
            self.ranks.iter().zip(self.labels()).flat_map(|((_, member, _), [worker, rank, model])| {
                each(member).into_iter().map(move |(name, value)| ([worker, rank, model, (key, name)], value))
            });
        rows.collect()
    }

    fn breaker_states(&self, page: &mut Page<'_>) -> fmt::Result {
        let rows = self.rows("state", |member| {
            let now = member.worker.breaker(self.now_ms);
            BreakerState::ALL.map(|state| (state.name(), i64::from(state == now)))
        });
        page.gauges(
            "worker_breaker_state",
            "1 for the state that the worker's circuit breaker is in",
            rows.iter().map(|(labels, value)| (labels as Labels<'_>, *value)),
        )
    }

    fn stream_states(&self, page: &mut Page<'_>) -> fmt::Result {
        let rows = self.rows("state", |member| {
            let now = member.status.state();
            StreamState::ALL.map(|state| (state.name(), i64::from(state == now)))
        });
        page.gauges(
            "worker_stream_state",
            "1 for the state that the event stream is in",
            rows.iter().map(|(labels, value)| (labels as Labels<'_>, *value)),
        )?;
        let rows = self.rows("state", |member| {
            StreamState::ALL.map(StreamState::name).into_iter().zip(member.status.transitions())
        });
        page.counters(
            "worker_stream_transitions",
            "Times that the event stream came to the state",
            rows.iter().map(|(labels, count)| (labels as Labels<'_>, *count)),
        )
    }

    fn cached_blocks(&self, page: &mut Page<'_>) -> fmt::Result {
        let rows = self.rows("tier", |member| {
            let blocks = member.cohort.index.blocks(member.slot);
            Tier::ALL.map(|tier| (tier.name(), i64::try_from(blocks[tier.index()]).unwrap_or(i64::MAX)))
        });
        page.gauges(
            "worker_cached_blocks",
            "Blocks that the index holds for it",
            rows.iter().map(|(labels, value)| (labels as Labels<'_>, *value)),
        )
    }
}
