//! Conditional disaggregation: a request that could be split goes to its decode worker alone.
//!
//! Before a request is split, the decode hop is previewed, without booking anything. If the rule of the decode set's
//! configuration ([`ConditionalDisagg`](crate::select::ConditionalDisagg)) says so, the request is admitted on the worker
//! that the preview chose, that very one, with all of its work: prefill workers see nothing of it. It is marked with a
//! header towards the engine, and a client that asked to be told gets an event.
//!
//! What goes wrong on this shorter way before there is an answer leads back to the two hops, as a try elsewhere (`retry/`), if another
//! decode worker would take the second. A request that only asks where it would go, or that names its prefill worker, is not asked about.

use std::{
    pin::Pin as PinBox,
    sync::atomic::Ordering::Relaxed,
    task::{Context, Poll},
};

use axum::{body::Body, response::Response};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, header, request::Parts};
use http_body::Frame;
use serde_json::{Value, json};
use tracing::warn;

use super::{
    app::App,
    asking::Hop,
    counters::Counters,
    error::ApiError,
    place::refused,
    retry::Tries,
    route::{self, Asked},
    two_hop::Split,
    watch::InFlight,
};
use crate::{
    fleet::SetView,
    select::{
        BypassFacts, BypassVerdict, Choice, ConditionalDisagg, Level, Phase, Pin, PinField, RefusalKind, Row,
    },
    slot::{Rank, WorkerId},
};

/// The mark of a request that bypasses the prefill workers: a header towards the engine, an annotation and the name of
/// an event towards the client. Only the router sets it.
pub(super) const MARK: HeaderName = HeaderName::from_static("x-bypass-remote-prefill");

/// What the rule says of one request, on what grounds, and who would take it.
#[derive(Clone, Copy, Debug)]
struct Preview {
    rule: ConditionalDisagg,
    facts: BypassFacts,
    verdict: BypassVerdict,
    worker: WorkerId,
    rank: Rank,
}

/// Why the rule is not asked.
#[derive(Clone, Copy, Debug)]
enum Unasked {
    PrefillWorkerNamed,
    TokensUnknown,
    Refused,
}

impl Unasked {
    const fn why(self) -> &'static str {
        match self {
            Self::PrefillWorkerNamed => "the request names its prefill worker",
            Self::TokensUnknown => "the prompt's tokens are not known, or not all of them",
            Self::Refused => "no decode worker would take the request",
        }
    }
}

impl App {
    /// Asks the rule of the decode set; `None` if it has none.
    fn preview(&self, asked: &Asked, split: &Split) -> Option<Result<Preview, Unasked>> {
        let rule = asked.set.config.tuning.conditional_disagg?;
        let tokens = &asked.prompt.tokens;
        if split.prefill.pin.is_some() {
            return Some(Err(Unasked::PrefillWorkerNamed));
        }
        if tokens.ids.is_empty() || !tokens.complete {
            return Some(Err(Unasked::TokensUnknown));
        }
        let set = &asked.set;
        let decode = self.dry_run(set, &asked.prompt, split.decode, |outcome, rows, _| {
            outcome.ok().map(|choice| (choice, decode_level(set, &choice, rows)))
        });
        let Some((choice, decode)) = decode else { return Some(Err(Unasked::Refused)) };
        let prefill = if rule.policy.asks_load() {
            let set = &split.set;
            self.dry_run(set, &asked.prompt, split.prefill, |outcome, rows, _| {
                prefill_level(set, &outcome.ok()?, rows)
            })
        } else {
            None
        };
        let facts = BypassFacts {
            prompt_tokens: tokens.ids.len() as u64,
            cached_tokens: choice.cached_tokens,
            prefill,
            decode,
        };
        let verdict = rule.judge(&facts);
        Some(Ok(Preview { rule, facts, verdict, worker: choice.worker, rank: choice.rank }))
    }
}

/// How full the decode worker would be, as far as its blocks are counted and it said how many it has.
fn decode_level(set: &SetView, choice: &Choice, rows: &[Row]) -> Option<Level> {
    let row = rows.get(choice.row).filter(|_| set.config.tuning.router_track_active_blocks)?;
    let capacity = set.members.get(choice.row)?.worker.spec.total_kv_blocks?;
    Some(Level { used: row.load.decode_blocks.saturating_add(row.new_blocks), capacity })
}

/// How much waits at the prefill worker, as far as that is counted and it said how much it takes at a time.
fn prefill_level(set: &SetView, choice: &Choice, rows: &[Row]) -> Option<Level> {
    let row = rows.get(choice.row).filter(|_| set.config.tuning.router_track_prefill_tokens)?;
    let capacity = set.members.get(choice.row)?.worker.spec.max_num_batched_tokens?;
    Some(Level { used: row.load.prefill_tokens, capacity })
}

/// What became of a request that might have been served by its decode worker alone.
pub(super) enum Tried {
    /// It was, or it failed for good.
    Answered(Response),
    /// It has to be split, and its decode hop shall not go where the whole failed.
    Split(InFlight, Tries),
}

/// Serves a request by its decode worker alone, if the rule says so and the worker takes it.
pub(super) async fn serve(
    app: &App,
    in_flight: InFlight,
    head: &Parts,
    asked: &Asked,
    split: &Split,
) -> Tried {
    let mut tries = Tries::default();
    let Some(Ok(preview)) = app.preview(asked, split) else { return Tried::Split(in_flight, tries) };
    app.counters.bypass(preview.verdict);
    if !preview.verdict.bypasses() {
        return Tried::Split(in_flight, tries);
    }
    let pin = Pin { worker: preview.worker, rank: Some(preview.rank), field: PinField::DecodeWorkerId };
    let hop = Hop { phase: Phase::Aggregated, pin: Some(pin), session: split.decode.session };
    let mut placed = match app.place(&asked.set, &asked.prompt, hop, &[]) {
        Ok(placed) => placed,
        Err(refusal) if refusal.kind() == RefusalKind::Invalid => {
            app.counters.refusal(refusal.kind());
            return Tried::Answered(in_flight.refuse(refused(app, &asked.set, &refusal)));
        }
        Err(refusal) => {
            app.counters.bypass_failed();
            warn!(worker = %preview.worker, %refusal, "a bypass found its decode worker gone; a prefill worker is asked");
            return Tried::Split(in_flight, tries);
        }
    };
    let mut head = head.clone();
    head.headers.insert(MARK, HeaderValue::from_static("true"));
    let worker = std::sync::Arc::clone(&placed.member.worker);
    app.retries.request();
    // In two hops a prompt is computed first: of no use if nobody else decodes.
    let elsewhere = |tries: &mut Tries| {
        let another = app.takes(&asked.set, &asked.prompt, split.decode, tries.avoid());
        if another {
            app.counters.bypass_failed();
            tries.placed(app);
        } else {
            tries.nobody(app);
        }
        another
    };
    let forwarding = route::forward(app, &head, &mut placed, asked.body.clone());
    let answer = in_flight.in_time(forwarding).await;
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return Tried::Answered(in_flight.refuse(error)),
    };
    match answer {
        Ok(answer) => {
            route::note_answer(app, &answer, &worker);
            if tries.after_answer(app, &answer, &worker, &head) && elsewhere(&mut tries) {
                return Tried::Split(in_flight, tries);
            }
            let response = route::respond(answer, in_flight, placed, asked.hints.metadata, None);
            Tried::Answered(if asked.hints.asks_of_bypass { announced(response) } else { response })
        }
        Err(error) => {
            if tries.after_error(app, &error, &worker, &head) && elsewhere(&mut tries) {
                return Tried::Split(in_flight, tries);
            }
            app.counters.bypass_failed();
            warn!(%error, "request failed");
            Tried::Answered(in_flight.refuse(ApiError::upstream(&error)))
        }
    }
}

/// What explain says of it; `None` if the decode set has no rule.
pub(super) fn object(app: &App, asked: &Asked, split: &Split) -> Option<Value> {
    let preview = match app.preview(asked, split)? {
        Ok(preview) => preview,
        Err(unasked) => return Some(json!({ "bypass": false, "verdict": null, "why": unasked.why() })),
    };
    let level = |level: Option<Level>| level.map(|Level { used, capacity }| json!([used, capacity]));
    let facts = &preview.facts;
    Some(json!({
        "bypass": preview.verdict.bypasses(),
        "verdict": preview.verdict.name(),
        "why": preview.why(),
        "policy": preview.rule.policy.name(),
        "worker_id": preview.worker.0,
        "dp_rank": preview.rank.0,
        "prompt_tokens": facts.prompt_tokens,
        "cached_tokens": facts.cached_tokens,
        "net_new_tokens": facts.net_new_tokens(),
        "prefill_tokens_of_batch": level(facts.prefill),
        "decode_blocks_of_all": level(facts.decode),
    }))
}

impl Preview {
    /// One sentence on the verdict.
    fn why(&self) -> String {
        let Self { rule, facts, verdict, worker, .. } = self;
        let left = facts.net_new_tokens();
        let length = || {
            let ConditionalDisagg { eff_isl_threshold, eff_isl_ratio_threshold, .. } = rule;
            format!(
                "worker {worker} would have to compute {left} of {} tokens; short is less than {eff_isl_threshold}, and \
                 less than {eff_isl_ratio_threshold} of all",
                facts.prompt_tokens
            )
        };
        let level = |level: Option<Level>, threshold: Option<f64>, what: &str, of: &str| match level {
            Some(Level { used, capacity }) => {
                format!("{used} {what} against {} times {capacity} {of}", threshold.unwrap_or_default())
            }
            None => format!("nobody knows how many {what} there are, or {of}"),
        };
        match verdict {
            BypassVerdict::ShortPrompt | BypassVerdict::LongPrompt => length(),
            BypassVerdict::PrefillBusy | BypassVerdict::PrefillFree | BypassVerdict::PrefillLoadUnknown => {
                level(
                    facts.prefill,
                    rule.prefill_busy_threshold,
                    "prompt tokens that wait at the prefill worker",
                    "that it takes at a time (max_num_batched_tokens)",
                )
            }
            BypassVerdict::DecodeBusy | BypassVerdict::DecodeLoadUnknown => level(
                facts.decode,
                rule.decode_busy_threshold,
                "blocks in use at the decode worker with the request",
                "that it has (total_kv_blocks)",
            ),
        }
    }
}

impl Counters {
    fn bypass(&self, verdict: BypassVerdict) {
        self.bypasses[verdict as usize].fetch_add(1, Relaxed);
    }

    fn bypass_failed(&self) {
        self.failed_bypasses.fetch_add(1, Relaxed);
    }
}

const EVENT: &[u8] = b"event: x-bypass-remote-prefill\ndata: true\n\n";

/// Tells the client before the first event of a stream. Other answers have no place for it.
fn announced(response: Response) -> Response {
    let (mut head, body) = response.into_parts();
    let kind = head.headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let streams = kind.get(..17).is_some_and(|kind| kind.eq_ignore_ascii_case(b"text/event-stream"));
    if !streams || head.headers.contains_key(header::CONTENT_ENCODING) {
        return Response::from_parts(head, body);
    }
    head.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(head, Body::new(Announced { event: Some(Bytes::from_static(EVENT)), body }))
}

/// A body with an event in front.
struct Announced {
    event: Option<Bytes>,
    body: Body,
}

impl http_body::Body for Announced {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: PinBox<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(event) = self.event.take() {
            return Poll::Ready(Some(Ok(Frame::data(event))));
        }
        PinBox::new(&mut self.body).poll_frame(context)
    }
}
