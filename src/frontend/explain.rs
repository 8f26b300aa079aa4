//! `POST /v1/route/explain`: where would this request go, and why not elsewhere?
//!
//! The body is that of a chat or a completion. Nothing is sent and nothing is booked. Of a request in two hops the
//! answer is the decode hop's, with the prefill hop's in `prefill`, and there in `conditional_disagg` whether the request
//! would bypass it.

use bytes::Bytes;
use http::HeaderMap;
use serde_json::{Value, json};

use super::{
    admin,
    app::App,
    asking::Hop,
    bypass,
    counters::Surface,
    devices,
    error::ApiError,
    parity, queue,
    route::{self, Asked},
    why::{cost_object, why},
};
use crate::{
    fleet::{DeviceWeights, RankMember, RouterConfig, SetView, StreamState},
    hash::BlockSize,
    select::{Mode, Phase, Refusal, Row},
};

/// Answers one question.
pub(super) async fn explain(
    app: &App,
    surface: Surface,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<Value, ApiError> {
    let asked = route::ask(app, surface, headers, body).await?;
    let split = app.split(&asked.set, &asked.hints);
    let (hop, prefill) = match &split {
        Ok(Some(split)) => (split.decode, Some((&split.set, split.prefill))),
        _ => (Hop::whole(&asked.hints), None),
    };
    let mut answer = hop_object(app, &asked, &asked.set, hop);
    let known = admin::prefill_object(&asked.set);
    if known.is_object() {
        let mut object = prefill.map_or_else(|| json!({}), |(set, hop)| hop_object(app, &asked, set, hop));
        object["pool"] = known;
        match &split {
            Ok(Some(split)) => {
                if let Some(bypass) = bypass::object(app, &asked, split) {
                    object["conditional_disagg"] = bypass;
                }
            }
            Ok(None) => {}
            Err(error) => object["refused"] = json!(error.message),
        }
        answer["prefill"] = object;
    }
    Ok(answer)
}

/// One hop: who could take it, who would, and why.
fn hop_object(app: &App, asked: &Asked, set: &SetView, hop: Hop) -> Value {
    let tokens = &asked.prompt.tokens;
    let mut answer = Facts {
        model: &set.key.model,
        worker_set: set.key.to_string(),
        worker_set_state: set.state().name(),
        phase: hop.phase,
        config: &set.config,
        config_from: set.source.name(),
        config_generation: set.frontend.generation,
        prompt_tokens: tokens.ids.len() as u64,
        prompt_complete: tokens.complete,
        tokens_from: tokens.source.name(),
        tokens_problem: tokens.problem.as_deref(),
        block_size: set.block_size,
    }
    .object();
    if let Some(queue) = queue::describe(app, set, &asked.prompt, hop, &asked.hints) {
        answer["queue"] = queue;
    }
    let now_ms = app.fleet.now_ms();
    let beside = |row: &Row| {
        set.by_slot(row.slot).map_or_else(Beside::default, |member| {
            let state = member.status.state();
            Beside {
                url: Some(member.worker.url.to_string()),
                approximate: Some(state == StreamState::Approximate),
                withheld_because: Some(withholding(member)),
                index_from: (state != StreamState::Absent && state != StreamState::Approximate)
                    .then(|| member.status.origin().name()),
                parity: member.worker.parity.withholds().then(|| parity::object(member)),
                breaker: Some(member.worker.breaker(now_ms).name()),
                failures: Some(member.worker.failures()),
                inhibited_seconds: Some(member.worker.inhibited_ms(now_ms) as f64 / 1000.0),
            }
        })
    };
    app.dry_run(set, &asked.prompt, hop, |outcome, rows, considered| {
        answer["prompt_blocks"] = json!(considered.blocks);
        if let Some(session) = &considered.session {
            answer["session"] = session.object(set, outcome.as_ref().ok(), rows);
        }
        let made = outcome.as_ref().map(|choice| choice.row);
        Told { mode: set.config.mode, made, rows, beside: &beside }.describe(&mut answer);
    });
    answer
}

/// What is told of a hop before its candidates.
pub(super) struct Facts<'a> {
    pub(super) model: &'a str,
    pub(super) worker_set: String,
    pub(super) worker_set_state: &'static str,
    pub(super) phase: Phase,
    pub(super) config: &'a RouterConfig,
    pub(super) config_from: &'static str,
    pub(super) config_generation: u64,
    pub(super) prompt_tokens: u64,
    pub(super) prompt_complete: bool,
    pub(super) tokens_from: &'static str,
    pub(super) tokens_problem: Option<&'a str>,
    pub(super) block_size: BlockSize,
}

impl Facts<'_> {
    pub(super) fn object(&self) -> Value {
        let mut answer = json!({
            "model": self.model,
            "worker_set": self.worker_set,
            "worker_set_state": self.worker_set_state,
            "phase": self.phase.name(),
            "router_mode": self.config.mode.name(),
            "router_config_from": self.config_from,
            "config_generation": self.config_generation,
            "prompt_tokens": self.prompt_tokens,
            "prompt_complete": self.prompt_complete,
            "tokens_from": self.tokens_from,
            "block_size": self.block_size.get(),
            "router_config": self.config,
            "device_weights": DeviceWeights(self.config.tuning.device_weights),
            "router_cost_model": self.config.tuning.cost_model.name(),
            "router_hold": self.config.tuning.hold_seconds(),
        });
        if let Some(problem) = self.tokens_problem {
            answer["tokens_problem"] = json!(problem);
        }
        answer
    }
}

/// What is told of a candidate that is not in its row, as far as it is known.
#[derive(Default)]
pub(super) struct Beside {
    pub(super) url: Option<String>,
    /// Whether it is guessed what it has cached.
    pub(super) approximate: Option<bool>,
    /// What keeps the row from being credited: the state of its stream, or its parity check.
    pub(super) withheld_because: Option<&'static str>,
    /// Where what the index holds of it came from.
    pub(super) index_from: Option<&'static str>,
    /// How its breaker stands, how many requests in a row it failed, and for how long it gets none because of that.
    pub(super) breaker: Option<&'static str>,
    pub(super) failures: Option<u64>,
    pub(super) inhibited_seconds: Option<f64>,
    /// What the parity check says, if that is what does.
    pub(super) parity: Option<Value>,
}

/// A decision to be told, and where the rest about its candidates comes from.
pub(super) struct Told<'a> {
    pub(super) mode: Mode,
    /// The position of the row that was chosen, or why none was.
    pub(super) made: Result<usize, &'a Refusal>,
    pub(super) rows: &'a [Row],
    pub(super) beside: &'a dyn Fn(&Row) -> Beside,
}

impl Told<'_> {
    /// Tells who was chosen, or why nobody was, and why for every candidate.
    pub(super) fn describe(&self, answer: &mut Value) {
        let Self { mode, made, rows, .. } = *self;
        match made {
            Ok(chosen) => answer["choice"] = choice_object(&rows[chosen]),
            Err(refusal) => {
                answer["refusal"] = json!({ "reason": refusal.name(), "message": refusal.to_string() });
            }
        }
        let chosen = made.ok().map(|row| (row, mode));
        let candidates = rows.iter().enumerate().map(|(position, row)| {
            let mut object = self.row_object(row);
            object["why"] = json!(why(position, row, chosen, rows));
            object
        });
        answer["candidates"] = candidates.collect();
    }

    fn row_object(&self, row: &Row) -> Value {
        let overlap = |o: crate::index::Overlap| json!({ "gpu": o.gpu, "host": o.host, "disk": o.disk, "external": o.external });
        let beside = (self.beside)(row);
        let mut object = json!({
            "worker_id": row.worker.0,
            "dp_rank": row.rank.0,
            "url": beside.url,
            "overlap_blocks": overlap(row.overlap),
            "expected_blocks": row.expected,
            "approximate": beside.approximate,
            "index_from": beside.index_from,
            "cached_tokens": row.cached_tokens,
            "load": {
                "requests": row.load.requests,
                "prefill_tokens": row.load.prefill_tokens,
                "decode_blocks": row.load.decode_blocks,
                "new_blocks": row.new_blocks,
                "prefilling_requests": row.backlog.requests,
                "prefill_work": row.backlog.work,
            },
            "blocks_in_flight": row.carried,
            "prefill_work": row.prefill_work,
            "excluded": row.exclusion.map(crate::select::Exclusion::name),
            "busy": row.busy,
            "slow_start": row.slow_start,
            "breaker": beside.breaker,
            "failures": beside.failures,
            "inhibited_seconds": beside.inhibited_seconds,
        });
        if let Some(withheld) = row.withheld {
            object["withheld_overlap_blocks"] = overlap(withheld);
            object["withheld_because"] = json!(beside.withheld_because);
            if let Some(parity) = beside.parity {
                object["parity"] = parity;
            }
        }
        if let Some(terms) = row.device {
            object["device"] = devices::terms_object(terms);
        }
        if let Some(cost) = &row.cost {
            object["cost"] = cost_object(cost);
        }
        object
    }
}

fn choice_object(row: &Row) -> Value {
    json!({
        "worker_id": row.worker.0,
        "dp_rank": row.rank.0,
        "overlap_blocks": row.overlap.total(),
        "cached_tokens": row.cached_tokens,
        "cost": row.cost.map(|cost| cost.total()),
        "cost_unit": row.cost.map(|cost| cost.model().unit()),
        "first_token_seconds": row.cost.and_then(|cost| cost.first_token()),
    })
}

/// What withheld a row's overlap, by how things stand now: they may have moved on since the row was made.
fn withholding(member: &RankMember) -> &'static str {
    let now = member.status.state();
    match () {
        () if !now.credits_overlap() => now.name(),
        () if member.worker.parity.withholds() => "parity",
        () => StreamState::Unproven.name(),
    }
}
