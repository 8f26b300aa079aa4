//! The life of a request: read, tokenise, place, forward, watch, return what it held.

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    body::Body,
    extract::Request,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde_json::{Value, json};
use smallvec::SmallVec;
use tokio::time::timeout;
use tracing::warn;

use super::{
    access_log::Facts,
    app::{App, unix_secs},
    asked_model::AskedModel,
    asking::{Hop, Prompt},
    bypass,
    counters::{Outcome, Surface},
    error::{self, ApiError},
    handover,
    hints::{Hints, Metadata},
    openai::{Fields, FirstPrompt, PromptField},
    place::{Placed, refused},
    prompts::{Chat, PromptInput},
    request_id,
    retry::Tries,
    traces::{self, Step},
    two_hop::{self, Prefiller},
    watch::{InFlight, Watch},
};
use crate::{
    fleet::{SetView, WorkerInfo},
    proxy::{Answer, ProxyError, without_named},
};

/// What a client asked, ready to be placed.
pub(super) struct Asked {
    pub(super) model: AskedModel,
    pub(super) set: Arc<SetView>,
    pub(super) prompt: Prompt,
    pub(super) hints: Hints,
    /// The body for the engine.
    pub(super) body: Bytes,
    /// Whether the answer is to come piece by piece.
    pub(super) streams: bool,
    /// Where it failed so far, as a whole or at its decode worker.
    pub(super) tries: Tries,
}

impl Asked {
    /// All of it for one worker.
    pub(super) fn whole(self) -> Send {
        let hop = Hop::whole(&self.hints);
        self.decoding(hop, None)
    }

    /// What is left of it for the worker of `hop`, once `prefiller` has the prompt.
    pub(super) fn decoding(self, hop: Hop, prefiller: Option<Prefiller>) -> Send {
        let Self { model, set, prompt, hints, body, tries, .. } = self;
        Send { model, set, prompt, hints, body, hop, prefiller, tries }
    }
}

/// A request on its way to a worker.
pub(super) struct Send {
    pub(super) model: AskedModel,
    pub(super) set: Arc<SetView>,
    pub(super) prompt: Prompt,
    pub(super) hints: Hints,
    pub(super) body: Bytes,
    pub(super) hop: Hop,
    /// Who computed the prompt, if somebody else did.
    pub(super) prefiller: Option<Prefiller>,
    /// Where it failed so far.
    pub(super) tries: Tries,
}

/// Serves a chat or a completion.
pub(super) async fn serve(app: Arc<App>, surface: Surface, request: Request) -> Response {
    let (mut head, body) = request.into_parts();
    head.headers.remove(bypass::MARK);
    let recorded = app.decisions.recorded(&head.headers);
    answer(app, surface, head, body, recorded).await
}

/// Answers a chat or a completion, whose decisions are `recorded` under that name if it has one.
async fn answer(
    app: Arc<App>,
    surface: Surface,
    mut head: Parts,
    body: Body,
    recorded: Option<Arc<str>>,
) -> Response {
    let body = match read_body(&app, &head.headers, body).await {
        Ok(body) => body,
        Err(error) => return refuse(&app, surface, error),
    };
    let in_flight = InFlight::enter(&app.counters, surface).noted(&mut head, body.len());
    let in_flight = in_flight.within(app.settings.total_timeout);
    let reading = in_flight.step(Step::Tokenise);
    let asked = in_flight.in_time(ask(&app, surface, &head.headers, &body)).await.flatten();
    if let (Some(reading), Err(error)) = (reading, &asked) {
        reading.refused(error.status);
    }
    let asked = asked.map(|mut asked| {
        asked.prompt.recorded = recorded;
        in_flight.note(|facts| facts.asked(&asked.model.name));
        asked
    });
    match asked {
        Ok(asked) if asked.hints.query_only => in_flight.refuse(query_elsewhere()),
        Ok(asked) => match app.split(&asked.set, &asked.hints) {
            Ok(None) => send(app, in_flight, head, asked.whole()).await,
            // Boxed, since one that is not split should not carry the room for it.
            Ok(Some(split)) => Box::pin(two_hop::serve(app, in_flight, head, asked, split)).await,
            Err(error) => in_flight.refuse(error),
        },
        Err(error) => in_flight.refuse(error),
    }
}

/// Counts and returns an error of our own, for a request that did not arrive.
pub(super) fn refuse(app: &App, surface: Surface, error: ApiError) -> Response {
    app.counters.request(surface, Outcome::of_status(error.status));
    error.into_response()
}

pub(super) fn query_elsewhere() -> ApiError {
    ApiError::bad_field(
        "nvext.annotations",
        "query_instance_id is answered on the admin listener only (--admin-port), since it tells where prompts are \
         cached",
    )
}

/// Reads a body, up to the limit.
///
/// # Errors
/// 413 beyond the limit, 408 for one that takes too long, 415 for a compressed body, 400 for one that breaks off.
pub(super) async fn read_body(app: &App, headers: &HeaderMap, mut body: Body) -> Result<Bytes, ApiError> {
    let limit = app.settings.max_body_bytes;
    let declared = http_body::Body::size_hint(&body).lower();
    if usize::try_from(declared).is_ok_and(|declared| declared <= limit) {
        let collected = Limited::new(&mut body, limit).collect();
        let collected = match app.settings.read_timeout {
            Duration::ZERO => collected.await,
            limit => timeout(limit, collected).await.map_err(|_| ApiError::too_slow(limit))?,
        };
        match collected {
            Ok(body) => return plain(headers, body.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => {}
            Err(_) => return Err(ApiError::bad_request("the request body did not arrive whole")),
        }
    } else if headers.contains_key(header::EXPECT) {
        // The client waits for a word before it sends: there is nothing to read, and it need not send.
        return Err(ApiError::too_large(limit));
    }
    discard(body).await;
    Err(ApiError::too_large(limit))
}

/// Whether a body says it is JSON, or nothing of what it is.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else { return true };
    let essence = kind.as_bytes().split(|&byte| byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(b"application/json")
}

/// A body that we can read as it came.
fn plain(headers: &HeaderMap, body: Bytes) -> Result<Bytes, ApiError> {
    let encoding = headers.get(header::CONTENT_ENCODING);
    if encoding.is_none_or(|encoding| encoding == "identity") { Ok(body) } else { Err(ApiError::encoded()) }
}

/// Refuses a request of which nothing is read yet.
pub(super) async fn turn_away<B>(request: http::Request<B>, error: ApiError) -> Response
where
    B: http_body::Body<Data = Bytes> + Unpin,
{
    // Who waits for a word before the body hears this one instead.
    if !request.headers().contains_key(header::EXPECT) {
        discard(request.into_body()).await;
    }
    error.into_response()
}

/// How much of a body that is too large is read on, and for how long.
const DISCARDED_BYTES: usize = 64 << 20;
const DISCARDING_TIME: Duration = Duration::from_secs(5);

/// Reads on without keeping anything. A connection that closes over unread bytes is reset, and the reset may
/// overtake the answer that says why: the client would see a broken connection instead of a 413.
pub(super) async fn discard(mut body: impl http_body::Body<Data = Bytes> + Unpin) {
    let reading = async {
        let mut left = DISCARDED_BYTES;
        while left > 0
            && let Some(Ok(frame)) = body.frame().await
        {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
        }
    };
    // A client that is slower than that has had its chance.
    let _ = timeout(DISCARDING_TIME, reading).await;
}

/// The model that a body names.
pub(super) fn model(fields: &Fields<'_>) -> Result<String, ApiError> {
    let model: Option<String> = fields.get("model")?;
    model.filter(|model| !model.is_empty()).ok_or_else(|| {
        ApiError::bad_field("model", "'model' is missing; name one of those that GET /v1/models lists")
    })
}

/// Reads a request and turns its prompt into tokens.
///
/// # Errors
/// 400, 404, 429 or 503, each saying what is accepted.
pub(super) async fn ask(
    app: &App,
    surface: Surface,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<Asked, ApiError> {
    let fields = Fields::parse(body)?;
    let model = AskedModel::at(surface, model(&fields)?);
    // The engine checks this too; here it decides how the answer is read.
    let streams = fields.get("stream")?.unwrap_or(false);
    let hints = Hints::read(headers, &fields)?;
    app.note_unknown_hints(&hints.unknown_keys);
    let input = prompt_input(surface, &fields)?;
    let (set, lora) = app.set_for(&model, &hints)?;
    let (salt, forwarded) = for_engine(&set, &hints, &fields, body)?;
    let asked = Instant::now();
    let tokens = app.tokenise(&set, input, body.len()).await?;
    app.counters.tokenise.observe(asked.elapsed());
    if let Some(limit) = set.max_model_len.filter(|&limit| tokens.ids.len() as u64 > limit) {
        let param = if surface == Surface::Chat { "messages" } else { "prompt" };
        return Err(ApiError::context_length(
            param,
            format!(
                "this model's maximum context length is {limit} tokens, and the prompt alone has {}; shorten it",
                tokens.ids.len()
            ),
        ));
    }
    Ok(Asked {
        model,
        set,
        prompt: Prompt { tokens, lora, salt, streams, recorded: None },
        hints,
        body: forwarded,
        streams,
        tries: Tries::default(),
    })
}

/// Under which salt a request's blocks are cached, and its body for the engine: the client's own, without what is not the engine's
/// to see.
///
/// A salt from a header or from `nvext` has to reach the engine as its own field. Router and engine would name the same blocks
/// differently otherwise, and tenants would share what is to be kept apart.
///
/// # Errors
/// 400 for a salt that is no string.
pub(super) fn for_engine(
    set: &SetView,
    hints: &Hints,
    fields: &Fields<'_>,
    body: &Bytes,
) -> Result<(Option<String>, Bytes), ApiError> {
    let own_salt: Option<String> = fields.get("cache_salt")?;
    let salt = hints.tenant.clone().or_else(|| own_salt.clone()).or_else(|| hints.cache_salt.clone());
    let new_salt = salt.as_deref().filter(|&salt| own_salt.as_deref() != Some(salt));
    let mut dropped: SmallVec<[&str; 6]> = handover::not_for(set.key.worker_type, fields).collect();
    dropped.extend(hints.has_nvext.then_some("nvext"));
    dropped.extend(new_salt.map(|_| "cache_salt"));
    let forwarded = match new_salt {
        None if dropped.is_empty() => body.clone(),
        salt => fields.rewrite(&dropped, salt.map(|salt| ("cache_salt", salt))),
    };
    Ok((salt, forwarded))
}

fn prompt_input(surface: Surface, fields: &Fields<'_>) -> Result<PromptInput, ApiError> {
    if surface == Surface::Chat {
        return Ok(PromptInput::Chat(Box::new(Chat::read(fields)?)));
    }
    let prompt: Option<PromptField> = fields.get("prompt")?;
    let (is_missing, first) = (prompt.is_none(), prompt.and_then(PromptField::into_first));
    match first {
        Some(FirstPrompt::Tokens(ids)) => Ok(PromptInput::Tokens(ids)),
        Some(FirstPrompt::Text(text)) => Ok(PromptInput::Text {
            text,
            add_special_tokens: fields.get("add_special_tokens")?.unwrap_or(true),
        }),
        // What embeddings are the tokens of, nobody here can tell.
        None if fields.raw("prompt_embeds").is_some() => Ok(PromptInput::Tokens(Vec::new())),
        None if is_missing => {
            Err(ApiError::bad_field("prompt", "'prompt' is missing; send a string or a list of token ids"))
        }
        None => Err(ApiError::bad_field("prompt", "'prompt' is empty; send at least one token")),
    }
}

/// Places a request, forwards it and relays the answer.
pub(super) async fn send(app: Arc<App>, in_flight: InFlight, head: Parts, mut send: Send) -> Response {
    match in_flight.in_time(reach(&app, &head, &mut send)).await.flatten() {
        Ok((answer, placed)) => respond(answer, in_flight, placed, send.hints.metadata, send.prefiller),
        Err(error) => in_flight.refuse(error),
    }
}

/// Places a request and forwards it, to another worker if one fails before it answers, up to the first byte of an answer.
///
/// # Errors
/// That no worker would take it, or why there is no answer.
pub(super) async fn reach(app: &App, head: &Parts, send: &mut Send) -> Result<(Answer, Placed), ApiError> {
    app.retries.request();
    // What the last worker said, or that it was not reached, in case that nobody else takes the request.
    let (mut last, mut unreached) = (None, None);
    loop {
        let mut placed = match traces::placing(head, app.place_in_time(send)).await {
            Ok(placed) => placed,
            Err(error) => {
                send.tries.nobody(app);
                return last.ok_or(unreached.unwrap_or(error));
            }
        };
        send.tries.placed(app);
        // With what was booked there.
        drop(last.take());
        let worker = Arc::clone(&placed.member.worker);
        match forward(app, head, &mut placed, send.body.clone()).await {
            Ok(answer) => {
                note_answer(app, &answer, &worker);
                if !send.tries.after_answer(app, &answer, &worker, head) {
                    return Ok((answer, placed));
                }
                // It is over for this worker, however long the next one is looked for.
                placed.attempt = None;
                last = Some((answer, placed));
            }
            Err(error) if send.tries.after_error(app, &error, &worker, head) => {
                unreached = Some(ApiError::upstream(&error));
            }
            Err(error) => {
                warn!(%error, request = request_id::named(&head.headers), "request failed");
                return Err(ApiError::upstream(&error));
            }
        }
    }
}

/// Notes what a worker's answer says of the worker. One that says it is not available gets no requests for a while; what else
/// fails, as with a 500, may well be the request's doing, and its next copy shall not cost another worker.
pub(super) fn note_answer(app: &App, answer: &Answer, worker: &WorkerInfo) {
    match answer.status() {
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
            app.fleet.note_failure(worker, &format_args!("it answered {}", answer.status()));
        }
        status if status.is_server_error() => {}
        _ => app.fleet.note_answer(worker),
    }
}

/// Sends a request to the worker that it was placed on, and waits for the first byte of an answer. A worker with several ranks is told
/// which one was chosen, and one whose request is traced of the span below which its own belong.
///
/// # Errors
/// That there is no answer.
pub(super) async fn forward(
    app: &App,
    head: &Parts,
    placed: &mut Placed,
    body: Bytes,
) -> Result<Answer, ProxyError> {
    let mut sent = Cow::Borrowed(head);
    // Before those of ours are added: a client that names them would keep them from the worker.
    if let Some(headers) = without_named(&head.headers, &[request_id::HEADER, bypass::MARK]) {
        sent.to_mut().headers = headers;
    }
    if placed.member.worker.spec.ranks > 1 {
        let rank = HeaderValue::from(placed.member.rank.0);
        sent.to_mut().headers.insert("x-data-parallel-rank", rank);
    }
    placed.attempt = Facts::of(head).and_then(|facts| facts.attempt(placed, head));
    if let Some(attempt) = &placed.attempt {
        attempt.carry(&mut sent.to_mut().headers);
    }
    let outcome = app.pool.forward(&placed.member.worker.url, &sent, body).await;
    match &outcome {
        Ok(answer) => {
            if let Some(attempt) = &mut placed.attempt {
                attempt.answered(answer.status());
            }
        }
        Err(error) => {
            if let Some(attempt) = placed.attempt.take() {
                attempt.failed(error);
            }
        }
    }
    outcome
}

/// Relays an answer, with what the client wants to be told of its way.
pub(super) fn respond(
    answer: Answer,
    in_flight: InFlight,
    placed: Placed,
    metadata: Metadata,
    prefiller: Option<Prefiller>,
) -> Response {
    if let Some((worker, rank)) = prefiller {
        in_flight.note(|facts| facts.prefilled(worker, rank));
    }
    let answer = answer.within(in_flight.time());
    let watch = Watch::new(&answer, in_flight, &placed, prefiller.is_some());
    let annotator = metadata.any().then(|| watch.annotator(metadata, &placed, prefiller));
    let mut response = answer.relay(watch.holding(placed));
    error::tell_of_answer(response.status(), response.headers_mut());
    match annotator {
        Some(annotator) => crate::proxy::annotate(response, annotator).map(Body::new),
        None => response.map(Body::new),
    }
}

/// Answers `query_instance_id`: where the request would go, as one completed chunk of Dynamo's shape.
///
/// # Errors
/// What [`ask`] refuses, and the refusal of the choice itself.
pub(super) async fn query_instance(
    app: &App,
    surface: Surface,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<Value, ApiError> {
    let asked = ask(app, surface, headers, body).await?;
    if !asked.hints.query_only {
        return Err(ApiError::bad_field(
            "nvext.annotations",
            "the admin listener serves no requests; add the annotation 'query_instance_id:' to ask where this one \
             would go, or send it to the public listener",
        ));
    }
    let choose = |set: &SetView, hop| {
        let choice = app.dry_run(set, &asked.prompt, hop, |outcome, _, _| outcome);
        let choice = choice.map_err(|refusal| refused(app, set, &refusal));
        choice.map(|choice| (choice.worker.0, choice.rank.0))
    };
    // A request that only asks is answered while prefill workers are activating, too.
    let (prefill, decode) = match app.split(&asked.set, &asked.hints) {
        Ok(Some(split)) => (Some(choose(&split.set, split.prefill)?), choose(&asked.set, split.decode)?),
        _ => (None, choose(&asked.set, Hop::whole(&asked.hints))?),
    };
    let object = match surface {
        Surface::Chat => "chat.completion",
        Surface::Completions | Surface::Other => "text_completion",
    };
    Ok(json!({
        "object": object,
        "created": unix_secs(),
        "model": asked.set.key.model,
        "choices": [],
        "nvext": {
            "worker_id": two_hop::worker_id(prefill.unwrap_or(decode), Some(decode)),
            "token_ids": asked.prompt.tokens.ids,
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_told_by_its_essence() {
        let is =
            |kind| is_json(&HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(kind))]));
        assert!(is_json(&HeaderMap::new()));
        assert!(is("application/json") && is("Application/JSON; charset=utf-8") && is("application/json ;x"));
        assert!(!is("application/jsonlines") && !is("text/plain") && !is(""));
    }
}
