//! A request in two hops: one worker computes the prompt, another takes it over and decodes.
//!
//! The prefill hop is the client's request with one token of output, and asks the engine to hand its blocks over
//! (`kv_transfer_params`, in the fields of vLLM's `NixlConnector`). What the engine answers there goes into the
//! client's own request, which is then sent to a decode worker as any other. The two hops are placed apart, each by
//! its set's configuration, and booked apart: what is booked for the prefill goes back with its answer. Both carry the
//! request's name, by which engines know the blocks that they pass on. If the client
//! leaves during the prefill, the prefill is cancelled. Engines that find each other by themselves get both hops at once
//! (`bootstrap.rs`).
//!
//! A prefill worker that fails before it answers is another one's turn, as with any request (`retry/`), and so is a decode worker: the
//! next one takes over the same blocks, or, where they are gone, computes the prompt again. A prefill that fails at all of
//! them fails the request. The decode worker computes prompts itself only where there are no
//! prefill workers, or where the operator said so: `--prefill-fallback decode`, or the rule of a bypass, which is asked
//! first.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use axum::{body::Body, response::Response};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header, request::Parts};
use http_body_util::{BodyExt as _, Limited};
use serde_json::{Value, json};
use tracing::warn;

use super::{
    app::App,
    asking::{Hop, Prompt},
    bootstrap,
    bypass::{self, Tried},
    counters::{Counters, Handover},
    decision_log::Ticket,
    error::ApiError,
    first_token::FirstToken,
    handover::{decode_body, handover, one_answer, one_prompt, prefill_body},
    hints::Hints,
    openai::Fields,
    place::{Placed, refused},
    queue::NotPlaced,
    request_id,
    retry::Tries,
    route::{self, Asked, Send},
    settings::PrefillFallback,
    traces::{self, Part},
    watch::{self, InFlight},
};
use crate::{
    fleet::{PrefillPool, RankMember, SessionUse, SetView, WorkerType},
    index::Overlap,
    load::Booking,
    proxy::{Answer, End, Observer, Usage},
    select::{Mode, Phase, Pin, PinField, RefusalKind},
};

/// How a request is split.
pub(super) struct Split {
    /// Who computes the prompt.
    pub(super) set: Arc<SetView>,
    pub(super) prefill: Hop,
    pub(super) decode: Hop,
}

/// The worker and the rank that computed a prompt.
pub(super) type Prefiller = (u64, u32);

impl App {
    /// How a request that `set` serves is split; `None` if the set serves it alone.
    ///
    /// # Errors
    /// 503 where prefill workers are known and cannot be used, or are demanded and not known; 400 where the prefill
    /// hop has to be named and is not.
    pub(super) fn split(&self, set: &SetView, hints: &Hints) -> Result<Option<Split>, ApiError> {
        if set.key.worker_type != WorkerType::Decode {
            return Ok(None);
        }
        let model = &set.key.model;
        let problem = match &set.prefill {
            PrefillPool::None if set.frontend.enforce_disagg => {
                return Err(ApiError::unavailable(format!(
                    "no prefill worker of '{model}' is known, and --enforce-disagg is set; send the request again later"
                )));
            }
            PrefillPool::None => return Ok(None),
            PrefillPool::Active(prefill) if prefill.routable(self.fleet.now_ms()) > 0 => {
                return Split::of(set, Arc::clone(prefill), hints).map(Some);
            }
            PrefillPool::Active(_) => "no prefill worker takes requests now".to_owned(),
            PrefillPool::Pending(error) => format!("it is still activating: {error}"),
            PrefillPool::Unavailable(ambiguity) => format!("its namespace has {ambiguity}"),
        };
        if self.settings.prefill_fallback == PrefillFallback::Decode {
            return Ok(None);
        }
        Err(ApiError::unavailable(format!(
            "prefill routing for model {model} in namespace {} is not available: {problem}; send the request again later",
            set.key.namespace
        )))
    }
}

impl Split {
    fn of(decode: &SetView, prefill: Arc<SetView>, hints: &Hints) -> Result<Self, ApiError> {
        if prefill.config.mode == Mode::Direct && hints.prefill_pin.is_none() {
            return Err(ApiError::bad_field(
                "nvext.prefill_worker_id",
                "Prefill worker ID required in Direct routing mode but none found in request: set \
                 nvext.prefill_worker_id or the header x-dynamo-prefill-instance-id",
            ));
        }
        // `backend_instance_id` names one worker, which is in one of the two sets: it binds the hop that has it.
        let of_prefill = |pin: &Pin| pin.field == PinField::BackendInstanceId && has(&prefill, pin);
        let taken = hints.pin.filter(|pin| of_prefill(pin) && !has(decode, pin));
        let pin = if taken.is_some() { None } else { hints.pin };
        Ok(Self {
            prefill: Hop { phase: Phase::Prefill, pin: hints.prefill_pin.or(taken), session: hints.session },
            decode: Hop { phase: Phase::Decode, pin, session: hints.session },
            set: prefill,
        })
    }
}

/// Whether the worker that a pin names is in a set.
pub(super) fn has(set: &SetView, pin: &Pin) -> bool {
    set.members.iter().any(|member| member.worker.id == pin.worker)
}

/// How a prefill ended.
enum Prefilled {
    /// With its blocks ready to be taken over.
    HandedOver { params: String, by: Prefiller },
    /// With the whole answer: the model had nothing to say.
    Ended { answer: Bytes, by: Prefiller },
    /// Without either.
    Missing { by: Prefiller },
}

/// Why there is no prefill.
pub(super) enum Failure {
    /// The engine said so. Boxed, for its size.
    Answered(Box<(Answer, Placed)>),
    /// There was no answer, or no worker to ask.
    Refused(ApiError),
}

/// Serves a request in two hops.
pub(super) async fn serve(
    app: Arc<App>,
    in_flight: InFlight,
    head: Parts,
    mut asked: Asked,
    split: Split,
) -> Response {
    if let Err(error) = one_prompt(&asked.body).and_then(|()| decodable(&app, &mut asked, split.decode)) {
        return in_flight.refuse(error);
    }
    let in_flight = match bypass::serve(&app, in_flight, &head, &asked, &split).await {
        Tried::Answered(response) => return response,
        Tried::Split(in_flight, tries) => {
            asked.tries = tries;
            in_flight
        }
    };
    let mut set = Arc::clone(&split.set);
    let whole = Whole { prompt: &asked.prompt, hints: &asked.hints, decode: &asked.set };
    let no_tries = Tries::default();
    let placing = traces::placing(&head, place_prefill(&app, &whole, &mut set, split.prefill, &no_tries));
    let first = match in_flight.in_time(placing).await.flatten() {
        Ok(placed) if bootstrap::possible(&placed) => {
            return bootstrap::serve(app, in_flight, head, asked, split, placed).await;
        }
        first => first,
    };
    let prefilled = match in_flight.in_time(prefill(&app, &head, &asked, &split, first)).await {
        Ok(prefilled) => prefilled,
        Err(error) => return in_flight.refuse(error),
    };
    let (params, by) = match prefilled {
        Ok(Prefilled::HandedOver { params, by }) => (Some(params), by),
        Ok(Prefilled::Ended { answer, by }) if !asked.streams && one_answer(&asked.body) => {
            let told = asked.hints.metadata.worker_id.then(|| worker_id(by, None));
            in_flight.note(|facts| facts.prefilled(by.0, by.1));
            return in_flight.answer(answer, told);
        }
        Ok(Prefilled::Ended { by, .. } | Prefilled::Missing { by }) => (None, by),
        Err(failure) => {
            let send = asked.decoding(split.decode, None);
            return after_failure(app, in_flight, head, send, failure).await;
        }
    };
    let body = match decode_body(&asked.body, params.as_deref()) {
        Ok(body) => body,
        Err(error) => return in_flight.refuse(error),
    };
    let send = Send { body, ..asked.decoding(split.decode, Some(by)) };
    route::send(app, in_flight, head, send).await
}

/// Ends a request whose prefill failed, or has the decode worker go on alone with `send`, if that is allowed and may help.
pub(super) async fn after_failure(
    app: Arc<App>,
    in_flight: InFlight,
    head: Parts,
    send: Send,
    failure: Failure,
) -> Response {
    match failure {
        failure if app.settings.prefill_fallback == PrefillFallback::Decode && failure.is_the_worker_s() => {
            // What was booked for the prefill comes back now, not when the decode worker is through.
            drop(failure);
            let hop = Hop { phase: Phase::Aggregated, ..send.hop };
            route::send(app, in_flight, head, Send { hop, prefiller: None, ..send }).await
        }
        Failure::Answered(answered) => watch::relay_failure(*answered, in_flight),
        Failure::Refused(error) => in_flight.refuse(error),
    }
}

impl Failure {
    fn is_the_worker_s(&self) -> bool {
        match self {
            Self::Answered(answered) => {
                let status = answered.0.status();
                status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS
            }
            Self::Refused(error) => error.status.is_server_error(),
        }
    }
}

/// What `nvext.worker_id` says of a request in two hops.
pub(super) fn worker_id(prefill: Prefiller, decode: Option<Prefiller>) -> Value {
    let mut told = json!({ "prefill_worker_id": prefill.0, "prefill_dp_rank": prefill.1 });
    if let Some((worker, rank)) = decode {
        told["decode_worker_id"] = json!(worker);
        told["decode_dp_rank"] = json!(rank);
    }
    told
}

/// Whether a decode worker would take the request: one that none would take shall not cost a prefill. The fleet may have
/// changed while the prompt was turned into tokens, so a set in which nobody is left is looked up again.
fn decodable(app: &App, asked: &mut Asked, hop: Hop) -> Result<(), ApiError> {
    loop {
        let outcome = app.dry_run(&asked.set, &asked.prompt, hop, |outcome, _, _| outcome);
        let Err(refusal) = outcome else { return Ok(()) };
        match latest(app, &asked.set) {
            Some(set) if refusal.kind() == RefusalKind::Unavailable => asked.set = set,
            _ => return Err(refused(app, &asked.set, &refusal)),
        }
    }
}

/// The view of a set as it is now, if that is another than `known`.
fn latest(app: &App, known: &Arc<SetView>) -> Option<Arc<SetView>> {
    let view = app.fleet.view();
    view.sets.iter().find(|set| set.key == known.key && !Arc::ptr_eq(set, known)).cloned()
}

/// The request that a prefill hop is of.
pub(super) struct Whole<'a> {
    pub(super) prompt: &'a Prompt,
    pub(super) hints: &'a Hints,
    pub(super) decode: &'a Arc<SetView>,
}

/// Chooses a prefill worker and books the prompt there, in the set as it is by then: the decode set knows who they are. A
/// request that failed somewhere has waited before, and does not wait again.
pub(super) async fn place_prefill(
    app: &App,
    Whole { prompt, hints, decode }: &Whole<'_>,
    set: &mut Arc<SetView>,
    hop: Hop,
    tries: &Tries,
) -> Result<Placed, ApiError> {
    loop {
        let refusal = match app.place_in_turn(set, prompt, hop, hints, tries.avoid()).await {
            Ok(placed) => return Ok(placed),
            Err(NotPlaced::Refused(refusal)) => refusal,
            Err(NotPlaced::TurnedAway(reason)) => return Err(reason.error()),
        };
        // What the decode set knows of it now: a set that is paired no more has a configuration that nobody resolved.
        let now = latest(app, decode).unwrap_or_else(|| Arc::clone(decode));
        match &now.prefill {
            PrefillPool::Active(next)
                if refusal.kind() == RefusalKind::Unavailable && !Arc::ptr_eq(next, set) =>
            {
                *set = Arc::clone(next);
            }
            _ => {
                if !tries.answered() {
                    app.counters.refusal(refusal.kind());
                }
                return Err(refused(app, set, &refusal));
            }
        }
    }
}

/// Largest answer to a prefill that is read, in bytes.
const LIMIT: usize = 64 << 20;

/// Has the prompt computed by the worker that it was placed on, if it was.
async fn prefill(
    app: &App,
    head: &Parts,
    asked: &Asked,
    split: &Split,
    first: Result<Placed, ApiError>,
) -> Result<Prefilled, Failure> {
    let outcome = try_prefill(app, head, asked, split, first).await;
    app.counters.prefill(match &outcome {
        Ok(Prefilled::HandedOver { .. }) => Handover::HandedOver,
        Ok(Prefilled::Ended { .. }) => Handover::Ended,
        Ok(Prefilled::Missing { .. }) => Handover::Missing,
        Err(_) => Handover::Failed,
    });
    outcome
}

/// The head of the prefill hop: the client's rank is one of the decode worker's.
pub(super) fn prefill_head(head: &Parts) -> Parts {
    let mut head = head.clone();
    head.headers.remove("x-data-parallel-rank");
    head
}

async fn try_prefill(
    app: &App,
    head: &Parts,
    asked: &Asked,
    split: &Split,
    first: Result<Placed, ApiError>,
) -> Result<Prefilled, Failure> {
    let body = prefill_body(&asked.body).map_err(Failure::Refused)?;
    let head = prefill_head(head);
    app.retries.request();
    let mut tries = Tries::default();
    let mut set = Arc::clone(&split.set);
    let mut next = first;
    // What the last worker said, or that it was not reached, in case that nobody else takes the prompt.
    let (mut last, mut unreached) = (None, None);
    let (answer, placed) = loop {
        let mut placed = match next {
            Ok(placed) => placed,
            Err(error) => {
                tries.nobody(app);
                break last.ok_or(Failure::Refused(unreached.unwrap_or(error)))?;
            }
        };
        tries.placed(app);
        // With what was booked there.
        drop(last.take());
        let worker = Arc::clone(&placed.member.worker);
        match route::forward(app, &head, &mut placed, body.clone()).await {
            Ok(answer) => {
                route::note_answer(app, &answer, &worker);
                if !tries.after_answer(app, &answer, &worker, &head) {
                    break (answer, placed);
                }
                // It is over for this worker, however long the next one is looked for.
                placed.attempt = None;
                last = Some((answer, placed));
            }
            Err(error) if tries.after_error(app, &error, &worker, &head) => {
                unreached = Some(ApiError::upstream(&error));
            }
            Err(error) => {
                warn!(%error, request = request_id::named(&head.headers), "prefill failed");
                return Err(Failure::Refused(ApiError::upstream(&error)));
            }
        }
        let whole = Whole { prompt: &asked.prompt, hints: &asked.hints, decode: &asked.set };
        next = traces::placing(&head, place_prefill(app, &whole, &mut set, split.prefill, &tries)).await;
    };
    let by = (placed.choice.worker.0, placed.choice.rank.0);
    let answer = read_whole(app, answer, placed).await?;
    Ok(read_answer(app, answer, by))
}

/// Reads a prefill's answer to its end, at which what was booked goes back.
pub(super) async fn read_whole(app: &App, answer: Answer, placed: Placed) -> Result<Bytes, Failure> {
    if !answer.status().is_success() {
        warn!(worker = %placed.choice.worker, status = %answer.status(), "prefill failed");
        return Err(Failure::Answered(Box::new((answer, placed))));
    }
    let worker = placed.choice.worker;
    let Placed { booking, probe, session, first_token, ticket, member, predicted, attempt, .. } = placed;
    drop(probe);
    let status = answer.status();
    let counters = Arc::clone(&app.counters);
    let watch = Prefilling {
        booking,
        _session: session,
        attempt,
        first_token,
        ticket,
        status,
        member,
        predicted,
        counters,
    };
    let read = Limited::new(answer.relay(watch).into_body(), LIMIT).collect().await;
    read.map(http_body_util::Collected::to_bytes).map_err(|error| {
        warn!(%worker, %error, "prefill failed: its answer broke off");
        Failure::Refused(ApiError::bad_gateway("the prefill worker's answer broke off"))
    })
}

fn read_answer(app: &App, answer: Bytes, by: Prefiller) -> Prefilled {
    let Some((params, ended)) = handover(&answer) else {
        return missing(app, by);
    };
    match params {
        Some(params) => Prefilled::HandedOver { params, by },
        None if ended => Prefilled::Ended { answer, by },
        None => missing(app, by),
    }
}

/// Every prompt is computed twice then, which the first ones say, and after them fewer and fewer.
fn missing(app: &App, by: Prefiller) -> Prefilled {
    let so_far = app.counters.handovers(Handover::Missing) + 1;
    if so_far.is_power_of_two() {
        warn!(
            worker = by.0,
            so_far,
            "a prefill worker handed no blocks over: decode workers compute the prompts again; give its engine a KV \
             connector"
        );
    }
    Prefilled::Missing { by }
}

/// Watches a prefill's answer. Dropped when it is over or the client left, and with it the booking.
struct Prefilling {
    booking: Booking,
    _session: Option<SessionUse>,
    attempt: Option<Part>,
    first_token: FirstToken,
    ticket: Option<Ticket>,
    status: StatusCode,
    member: Arc<RankMember>,
    predicted: Option<Overlap>,
    counters: Arc<Counters>,
}

impl Observer for Prefilling {
    fn first_byte(&mut self) {
        self.first_token.came(&self.booking);
        if let Some(ticket) = &mut self.ticket {
            ticket.first_token();
        }
    }

    fn end(&mut self, end: End) {
        if let Some(attempt) = self.attempt.take() {
            attempt.over(end);
        }
        if let Some(ticket) = &mut self.ticket {
            ticket.end(self.status, watch::outcome(end, self.status));
        }
    }

    fn usage(&mut self, usage: Usage) {
        if let Some(ticket) = &mut self.ticket {
            ticket.usage(usage);
        }
        watch::note_usage(&self.counters, &self.member, self.predicted, Some(usage));
    }
}

impl InFlight {
    /// Ends it with an answer of an engine's that was read whole.
    fn answer(mut self, answer: Bytes, worker_id: Option<Value>) -> Response {
        self.complete();
        let told = worker_id.map(|told| format!("\"nvext\":{}", json!({ "worker_id": told })));
        let body = match Fields::parse(&answer) {
            Ok(fields) if told.is_some() => fields.replace(&["nvext"], told.as_deref()),
            _ => answer,
        };
        let mut response = Response::new(Body::from(body));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

impl Counters {
    pub(super) fn prefill(&self, handover: Handover) {
        self.prefills[handover as usize].fetch_add(1, Relaxed);
    }

    fn handovers(&self, handover: Handover) -> u64 {
        self.prefills[handover as usize].load(Relaxed)
    }
}
