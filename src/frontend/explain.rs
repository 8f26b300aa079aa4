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
    bypass,
    counters::Surface,
    devices,
    error::ApiError,
    place::Hop,
    route::{self, Asked},
    why::{cost_object, why},
};
use crate::{
    fleet::{DeviceWeights, SetView, StreamState},
    select::{Choice, Refusal, Row},
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
    let mut answer = json!({
        "model": set.key.model,
        "worker_set": set.key.to_string(),
        "worker_set_state": set.state().name(),
        "phase": hop.phase.name(),
        "router_mode": set.config.mode.name(),
        "router_config_from": set.source.name(),
        "prompt_tokens": asked.prompt.tokens.ids.len(),
        "prompt_complete": asked.prompt.tokens.complete,
        "tokens_from": asked.prompt.tokens.source.name(),
        "block_size": set.block_size.get(),
        "router_config": &*set.config,
        "device_weights": DeviceWeights(set.config.tuning.device_weights),
        "router_cost_model": set.config.tuning.cost_model.name(),
    });
    if let Some(problem) = &asked.prompt.tokens.problem {
        answer["tokens_problem"] = json!(problem);
    }
    app.dry_run(set, &asked.prompt, hop, |outcome, rows, considered| {
        answer["prompt_blocks"] = json!(considered.blocks);
        if let Some(session) = &considered.session {
            answer["session"] = session.object(set, outcome.as_ref().ok(), rows);
        }
        describe(&mut answer, set, outcome, rows);
    });
    answer
}

fn describe(answer: &mut Value, set: &SetView, outcome: Result<Choice, Refusal>, rows: &[Row]) {
    let chosen = match outcome {
        Ok(choice) => {
            answer["choice"] = json!({
                "worker_id": choice.worker.0,
                "dp_rank": choice.rank.0,
                "overlap_blocks": choice.overlap.total(),
                "cached_tokens": choice.cached_tokens,
                "cost": choice.cost.map(|cost| cost.total()),
                "cost_unit": choice.cost.map(|cost| cost.model().unit()),
                "first_token_seconds": choice.cost.and_then(|cost| cost.first_token()),
            });
            Some(choice)
        }
        Err(refusal) => {
            answer["refusal"] = json!({ "reason": refusal.name(), "message": refusal.to_string() });
            None
        }
    };
    let candidates: Vec<_> = rows
        .iter()
        .enumerate()
        .map(|(position, row)| {
            let mut object = row_object(set, row);
            object["why"] = json!(why(position, row, chosen.as_ref(), rows));
            object
        })
        .collect();
    answer["candidates"] = json!(candidates);
}

fn row_object(set: &SetView, row: &Row) -> Value {
    let overlap = |o: crate::index::Overlap| json!({ "gpu": o.gpu, "host": o.host, "disk": o.disk, "external": o.external });
    let member = set.by_slot(row.slot);
    let mut object = json!({
        "worker_id": row.worker.0,
        "dp_rank": row.rank.0,
        "url": member.map(|member| member.worker.url.to_string()),
        "overlap_blocks": overlap(row.overlap),
        "cached_tokens": row.cached_tokens,
        "expected_blocks": row.expected,
        "approximate": member.is_some_and(|member| member.status.state() == StreamState::Approximate),
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
    });
    if let Some(withheld) = row.withheld {
        object["withheld_overlap_blocks"] = overlap(withheld);
        object["withheld_because"] = json!(member.map(|member| withholding(member.status.state()).name()));
    }
    if let Some(terms) = row.device {
        object["device"] = devices::terms_object(terms);
    }
    if let Some(cost) = &row.cost {
        object["cost"] = cost_object(cost);
    }
    object
}

/// The state that withheld a row's overlap, by the state now: the stream may have moved on since the row was made.
fn withholding(now: StreamState) -> StreamState {
    if now.credits_overlap() { StreamState::Unproven } else { now }
}
