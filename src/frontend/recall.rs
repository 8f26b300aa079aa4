//! `GET /v1/route/decisions/ID`: where did this request go, and why not elsewhere?
//!
//! The answer has each decision that was recorded of the request, in the shape of `explain`'s hops, with what came of it. It is made
//! of what was kept and of the function that decided, so that it tells what held then, whatever holds now. Only a worker's URL is
//! looked up now, and is null for one that has left.

use serde_json::{Value, json};

use super::{
    app::App,
    decision_log::Kept,
    error::ApiError,
    explain::{Beside, Facts, Told},
};
use crate::{
    decisions::{Outcome, replay},
    fleet::{FleetView, RankMember},
    select::Row,
};

/// Tells of the decisions of a request.
///
/// # Errors
/// 404 where none is kept.
pub(super) fn recall(app: &App, request: &str) -> Result<Value, ApiError> {
    let kept = app.decisions.of(request);
    if kept.is_empty() {
        return Err(ApiError::not_found(format!(
            "no decision of a request of that name is kept (its answer's x-request-id names it): {}",
            app.decisions.how_long()
        )));
    }
    let view = app.fleet.view();
    let decisions: Vec<_> = kept.iter().map(|kept| decision_object(&view, kept)).collect();
    Ok(json!({ "request_id": request, "decisions": decisions }))
}

fn decision_object(view: &FleetView, kept: &Kept) -> Value {
    let decision = &kept.decision;
    let (rule, question) = (&decision.rule, &decision.question);
    let mut answer = Facts {
        model: &rule.model,
        worker_set: rule.worker_set.clone(),
        worker_set_state: kept.set_state,
        phase: question.phase,
        config: &kept.config,
        config_from: kept.config_from,
        config_generation: decision.config_generation,
        prompt_tokens: question.isl_tokens,
        prompt_complete: kept.tokens_complete,
        tokens_from: kept.tokens_from,
        tokens_problem: kept.tokens_problem.as_deref(),
        block_size: rule.block_size,
    }
    .object();
    answer["prompt_blocks"] = json!(question.prompt_blocks);
    let remade = replay(decision);
    let beside = |row: &Row| {
        let mut members = view.members();
        let of_row = |member: &RankMember| member.worker.id == row.worker && member.slot == row.slot;
        let found = members.find(|(_, member)| of_row(member));
        // What its stream was then is not kept.
        Beside { url: found.map(|(_, member)| member.worker.url.to_string()), ..Beside::default() }
    };
    let made = remade.made.as_ref().copied();
    Told { mode: rule.mode, made, rows: &remade.rows, beside: &beside }.describe(&mut answer);
    answer["decision"] = json!({
        "number": decision.number,
        "at_ms": decision.at_ms,
        "fleet_generation": decision.generation,
        "fingerprint": rule.fingerprint,
    });
    answer["outcome"] = kept.outcome.get().map_or(Value::Null, outcome_object);
    answer
}

/// What came of a request; null while it is not over.
fn outcome_object(outcome: &Outcome) -> Value {
    let Outcome { finish, status, first_token, lasted, prompt_tokens, cached_tokens } = outcome;
    json!({
        "finish": finish.name(),
        "status": status,
        "first_token_seconds": first_token.map(|time| time.as_secs_f64()),
        "seconds": lasted.as_secs_f64(),
        "prompt_tokens": prompt_tokens,
        "cached_tokens": cached_tokens,
    })
}
