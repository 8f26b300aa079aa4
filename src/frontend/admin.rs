//! The admin listener: what operators and workers may ask.

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{Path, Request, State, rejection::PathRejection},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http::{HeaderMap, StatusCode, header};
use serde_json::{Value, json};

use super::{
    app::App,
    busy_threshold,
    counters::Surface,
    devices::devices_object,
    error::{ApiError, cut, quoted},
    explain, exposition, health_checks, index_snapshot,
    openai::Fields,
    overlaps::{self, Question},
    parity,
    recall::recall,
    route, routing_reload,
};
use crate::{
    fleet::{
        DeviceReport, DeviceWeights, Fence, Fleet, FleetView, PrefillPool, RankMember, RegistrationError,
        SetView, Standing, StreamState, StreamStatus, WorkerSpec, WorkerType, check_name,
    },
    metrics::CONTENT_TYPE,
    select::Exclusion,
    slot::WorkerId,
};

/// The admin routes.
pub(super) fn router(app: &Arc<App>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/health", get(health))
        .route("/v1/route/explain", post(explain))
        .route("/v1/route/decisions/{id}", get(recall_decisions))
        .route("/v1/route/overlaps", post(overlaps))
        .route("/v1/chat/completions", post(query_chat))
        .route("/v1/completions", post(query_completions))
        .route("/v1/workers", get(list_workers).post(register))
        .route("/v1/workers/{id}", get(show_worker).delete(leave))
        .route("/v1/workers/{id}/heartbeat", post(heartbeat))
        .route("/v1/workers/{id}/drain", post(drain))
        .route("/v1/workers/{id}/fence", post(fence))
        .route("/v1/worker-sets", get(list_sets))
        .route("/v1/config/reload", post(reload_config))
        .route(index_snapshot::PATH, get(index_snapshot::serve))
        .route("/busy_threshold", get(list_thresholds).post(set_threshold))
        .fallback(unknown)
        .method_not_allowed_fallback(other_method)
        .layer(middleware::from_fn_with_state(Arc::clone(app), require_token))
        .with_state(Arc::clone(app))
}

/// Asks for the token, if there is one. If there is none, whoever reaches the port is trusted, but for web pages: any
/// page in a browser on this machine could otherwise register a worker of its own and be sent prompts.
async fn require_token(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let error = match &app.settings.admin_token {
        Some(token) if !token.is_shown_in(request.headers()) => ApiError::unauthorized(
            "the admin listener asks for its token: send 'Authorization: Bearer TOKEN' with the content of \
             --admin-token-file",
        ),
        None if request.headers().contains_key(header::ORIGIN) => {
            ApiError::forbidden("the admin listener takes no requests from web pages unless it has a token")
        }
        _ => return next.run(request).await,
    };
    route::turn_away(request, error).await
}

async fn unknown(request: Request) -> Response {
    let error = ApiError::not_found(format!(
        "{} is not served on the admin listener; it has GET /metrics, POST /v1/route/explain, POST \
         /v1/route/overlaps, GET /v1/route/decisions/ID, /v1/workers, GET /v1/worker-sets, POST /v1/config/reload, GET \
         /v1/index/snapshot and /busy_threshold",
        quoted(request.uri().path())
    ));
    route::turn_away(request, error).await
}

/// The router adds the methods that the path does accept, in `allow`.
async fn other_method(request: Request) -> Response {
    let error = ApiError::method_not_allowed(request.method().as_str(), request.uri().path(), None);
    route::turn_away(request, error).await
}

async fn list_thresholds(State(app): State<Arc<App>>) -> Json<Value> {
    busy_threshold::list(&app)
}

async fn set_threshold(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let (_, body) = read(&app, request).await?;
    busy_threshold::set(&app, &body)
}

async fn reload_config(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    routing_reload::answer(&app).await.map(Json)
}

async fn health() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    match exposition::text(&app) {
        Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        Err(error) => ApiError::internal(format!("metrics: {error}")).into_response(),
    }
}

/// Which surface a body belongs to: only a chat has `messages`.
async fn explain(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let (headers, body) = read(&app, request).await?;
    let chat = Fields::parse(&body)?.raw("messages").is_some();
    let surface = if chat { Surface::Chat } else { Surface::Completions };
    explain::explain(&app, surface, &headers, &body).await.map(Json)
}

/// What was decided of a request, by the name that its answer carried.
async fn recall_decisions(
    State(app): State<Arc<App>>,
    request: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Ok(Path(request)) = request else {
        return Err(ApiError::bad_request("the path does not name a request: it is not UTF-8"));
    };
    recall(&app, &request).map(Json)
}

async fn overlaps(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let (_, body) = read(&app, request).await?;
    let answered = tokio::task::spawn_blocking(move || {
        let question = Question::read(&body)?;
        overlaps::answer(&app, &question)
    });
    answered.await.unwrap_or_else(|error| Err(ApiError::internal(error.to_string()))).map(Json)
}

async fn query_chat(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    query(&app, Surface::Chat, request).await
}

async fn query_completions(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    query(&app, Surface::Completions, request).await
}

async fn query(app: &App, surface: Surface, request: Request) -> Result<Json<Value>, ApiError> {
    let (headers, body) = read(app, request).await?;
    route::query_instance(app, surface, &headers, &body).await.map(Json)
}

async fn read(app: &App, request: Request) -> Result<(HeaderMap, Bytes), ApiError> {
    let (head, body) = request.into_parts();
    let body = route::read_body(app, &head.headers, body).await?;
    Ok((head.headers, body))
}

/// How long a worker stays without a heartbeat if its registration says nothing (`lease_secs`).
const DEFAULT_LEASE_SECS: f64 = 10.0;

async fn register(State(app): State<Arc<App>>, request: Request) -> Response {
    let body = match read(&app, request).await {
        Ok((_, body)) => body,
        Err(error) => return error.into_response(),
    };
    let fleet = Arc::clone(&app.fleet);
    let (spec, lease) = match read_registration(&body) {
        Ok(read) => read,
        Err(error) => {
            // It changes the view, which waits for other changes: not on a thread that serves requests.
            let _ = tokio::task::spawn_blocking(move || note_unreadable(&fleet, &body)).await;
            return error.into_response();
        }
    };
    if let Some(refusal) = parity::refusal(&app, &spec).await {
        return ApiError::bad_request(refusal).into_response();
    }
    // Opening streams starts threads: not on a thread that serves requests.
    let registered = tokio::task::spawn_blocking(move || fleet.register(spec, Some(lease))).await;
    match registered {
        Ok(Ok(id)) => {
            let mut body = json!({ "id": id.0, "lease_secs": lease.as_secs_f64() });
            disagreement(&app.fleet.view(), id, &mut body);
            (StatusCode::CREATED, Json(body)).into_response()
        }
        Ok(Err(error @ RegistrationError::IdTaken { .. })) => {
            ApiError::conflict(error.to_string()).into_response()
        }
        Ok(Err(error @ RegistrationError::OtherNamespace { .. })) => {
            ApiError::bad_field("namespace", error.to_string()).into_response()
        }
        Ok(Err(error @ RegistrationError::Index(_))) => {
            ApiError::unavailable(error.to_string()).into_response()
        }
        Ok(Err(error)) => ApiError::bad_request(error.to_string()).into_response(),
        Err(error) => ApiError::internal(error.to_string()).into_response(),
    }
}

/// Tells a worker that it is taken in but not admitted, and what it differs in.
fn disagreement(view: &FleetView, id: WorkerId, body: &mut Value) {
    let Some((set, member)) = view.ranks_of(id).next() else { return };
    if set.admitted != Some(member.cohort.fingerprint) {
        body["excluded"] = json!(Exclusion::ConflictingConfiguration.name());
        body["differing_fields"] = json!(set.differing_fields());
    }
}

fn read_registration(body: &[u8]) -> Result<(WorkerSpec, Duration), ApiError> {
    let fields = Fields::parse(body)?;
    let lease_secs: Option<f64> = fields.get("lease_secs")?;
    let lease_secs = lease_secs.unwrap_or(DEFAULT_LEASE_SECS);
    if !(1.0..=3600.0).contains(&lease_secs) {
        return Err(ApiError::bad_field("lease_secs", "lease_secs must be between 1 and 3600"));
    }
    let spec = serde_json::from_slice(&fields.rewrite(&["lease_secs"], None))
        .map_err(|error| not_a_worker(&fields, &error))?;
    Ok((spec, Duration::from_secs_f64(lease_secs)))
}

/// Remembers a prefill worker whose registration cannot be read: it is there, and its decode workers must not go on
/// as if it were not.
fn note_unreadable(fleet: &Fleet, body: &[u8]) {
    let Ok(fields) = Fields::parse(body) else { return };
    let text = |name| fields.get::<String>(name).ok().flatten();
    if text("worker_type").as_deref() != Some(WorkerType::Prefill.name()) {
        return;
    }
    let (Some(model), Some(url)) = (text("model"), text("url")) else { return };
    let namespace = text("namespace").unwrap_or_else(|| WorkerSpec::new(&url, &model).namespace);
    // Nobody has such a name: no card that can be read would.
    if check_name(&model).is_err() || check_name(&namespace).is_err() {
        return;
    }
    let lease = Duration::from_secs_f64(DEFAULT_LEASE_SECS);
    fleet.note_unreadable_prefill(&model, &namespace, &url, lease);
}

/// Characters of what serde says that are repeated: more than its longest list of keys, and not the whole body.
const REASON: usize = 1000;

/// Why a registration is refused. serde names unknown and missing fields itself, but not the field whose value it
/// could not use; that is the one that is refused on its own, too.
fn not_a_worker(fields: &Fields<'_>, error: &serde_json::Error) -> ApiError {
    let mut others = fields.names().filter(|&name| name != "lease_secs");
    let at_fault = others.find_map(|name| {
        let mut alone = json!({ "url": "", "model": "" });
        alone[name] = serde_json::from_str(fields.raw(name).unwrap_or("null")).ok()?;
        serde_json::from_value::<WorkerSpec>(alone).err().map(|error| (name, error))
    });
    match at_fault {
        Some((name, error)) => {
            let (quoted, error) = (quoted(name), error.to_string());
            ApiError::bad_field(name, format!("not a worker: '{quoted}': {}", cut(&error, REASON)))
        }
        None => ApiError::bad_request(format!("not a worker: {}", cut(&error.to_string(), REASON))),
    }
}

/// The worker that a path names.
fn worker_id(id: &str) -> Result<WorkerId, ApiError> {
    let id = id.parse().map(WorkerId);
    id.map_err(|_| {
        ApiError::bad_request("the path does not name a worker: ids are numbers, see GET /v1/workers")
    })
}

/// A heartbeat may bring news of devices. Whatever becomes of them, the worker was heard of.
async fn heartbeat(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let id = worker_id(&id)?;
    let mut answer = found(id, app.fleet.heartbeat(id))?;
    let (_, body) = read(&app, request).await?;
    if let Err(problem) = take_devices(&app.fleet, id, &body) {
        answer["devices_problem"] = json!(problem);
    }
    Ok(answer)
}

fn take_devices(fleet: &Fleet, id: WorkerId, body: &[u8]) -> Result<(), String> {
    if body.is_empty() {
        return Ok(());
    }
    let fields = Fields::parse(body).map_err(|error| error.message)?;
    let Some(report) = fields.get::<DeviceReport>("devices").map_err(|error| error.message)? else {
        return Ok(());
    };
    fleet.report_devices(id, report).map(drop).map_err(|error| error.to_string())
}

async fn fence(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let id = worker_id(&id)?;
    let (_, body) = read(&app, request).await?;
    let fence: Option<Fence> = Fields::parse(&body)?.get("fence")?;
    let Some(fence) = fence else {
        return Err(ApiError::bad_field("fence", "fence is needed: auto, on or off"));
    };
    found(id, app.fleet.set_fence(id, fence))
}

async fn drain(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let id = worker_id(&id)?;
    let fleet = Arc::clone(&app.fleet);
    let known = tokio::task::spawn_blocking(move || fleet.drain(id)).await;
    found(id, known.unwrap_or(false))
}

async fn leave(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let id = worker_id(&id)?;
    let fleet = Arc::clone(&app.fleet);
    let known = tokio::task::spawn_blocking(move || fleet.remove(id)).await;
    found(id, known.unwrap_or(false))
}

fn found(id: WorkerId, known: bool) -> Result<Json<Value>, ApiError> {
    if known {
        Ok(Json(json!({ "id": id.0, "status": "ok" })))
    } else {
        Err(ApiError::not_found(format!("there is no worker {id}; it has to register (POST /v1/workers)")))
    }
}

async fn list_workers(State(app): State<Arc<App>>) -> Json<Value> {
    let view = app.fleet.view();
    let workers: Vec<_> = view.members().map(|(set, member)| rank_object(&app, set, member)).collect();
    Json(json!({ "generation": view.generation, "workers": workers }))
}

async fn show_worker(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let id = worker_id(&id)?;
    let view = app.fleet.view();
    let ranks: Vec<_> = view.ranks_of(id).map(|(set, member)| rank_object(&app, set, member)).collect();
    if ranks.is_empty() { found(id, false) } else { Ok(Json(json!({ "ranks": ranks }))) }
}

/// One rank: who it is, how it stands, how busy it is, and how far its event stream got.
fn rank_object(app: &App, set: &SetView, member: &RankMember) -> Value {
    let load = set.selector.loads().get(member.slot);
    let totals = member.status.totals();
    let blocks = member.cohort.index.blocks(member.slot);
    json!({
        "id": member.worker.id.0,
        "rank": member.rank.0,
        "url": member.worker.url.to_string(),
        "worker_set": set.key.to_string(),
        "model": set.key.model,
        "fingerprint": member.cohort.fingerprint.to_string(),
        "lora_adapters": *member.worker.adapters(),
        "registered_ms": member.worker.registered_ms,
        "excluded": set.exclusion(member, app.fleet.now_ms()).map(Exclusion::name),
        "health": health_checks::object(member, app.fleet.now_ms()),
        "fence": member.worker.fence().name(),
        "parity": parity::object(member),
        "devices": devices_object(member, app.fleet.now_ms()),
        "stream": {
            "state": member.status.state().name(),
            "cursor": member.status.cursor(),
            "endpoint": member.worker.spec.kv_events_endpoint,
            "batches": totals.batches,
            "gaps": totals.gaps,
            "replays": totals.replays,
            "restarts": totals.restarts,
            "reconnects": totals.reconnects,
            "rejected_batches": totals.unreadable_batches,
            "overloads": totals.overloads,
            "transitions": transitions(&member.status),
            "overloaded": member.status.overloaded(),
            "growth_stopped": member.status.growth_stopped(),
            "replay_waits": member.status.replay_waits(),
            "index_from": member.status.origin().name(),
            "lag_ms": totals.lag_ms,
        },
        "cached_blocks": { "gpu": blocks[0], "host": blocks[1], "disk": blocks[2], "external": blocks[3] },
        "load": {
            "requests": load.requests,
            "prefill_tokens": load.prefill_tokens,
            "decode_blocks": load.decode_blocks,
        },
    })
}

/// Times that a stream came to each state; those that it never was in are left out.
fn transitions(status: &StreamStatus) -> Value {
    let counts = StreamState::ALL.into_iter().zip(status.transitions());
    counts.filter(|&(_, count)| count > 0).map(|(state, count)| (state.name(), count)).collect()
}

async fn list_sets(State(app): State<Arc<App>>) -> Json<Value> {
    let view = app.fleet.view();
    let sets: Vec<_> = view.sets.iter().map(|set| set_object(&app, set)).collect();
    Json(json!({
        "generation": view.generation,
        "config_generation": view.frontend.generation,
        "worker_sets": sets,
    }))
}

/// One worker set: what its effective configuration is and where it came from, or why it has none.
fn set_object(app: &App, set: &SetView) -> Value {
    let cohorts: Vec<_> = set.cohorts.iter().map(|standing| cohort_object(set, standing)).collect();
    let effective = set.admitted.is_some();
    json!({
        "worker_set": set.key.to_string(),
        "model": set.key.model,
        "model_type": set.key.model_type.to_string(),
        "worker_type": set.key.worker_type.name(),
        "state": set.state().name(),
        "block_size": set.block_size.get(),
        "workers": set.worker_count(),
        "ranks": set.members.len(),
        "router_config": effective.then_some(&*set.config),
        "router_config_from": effective.then_some(set.source.name()),
        "device_weights": effective.then_some(DeviceWeights(set.config.tuning.device_weights)),
        "device_weights_from": effective.then_some(set.device_weights_source().name()),
        "router_cost_model": effective.then_some(set.config.tuning.cost_model.name()),
        "router_cost_model_from": effective.then_some(set.cost_model_source().name()),
        "router_hold": effective.then(|| set.config.tuning.hold_seconds()),
        "router_hold_from": effective.then_some(set.hold_source().name()),
        "differing_fields": set.differing_fields(),
        "cohorts": cohorts,
        "prefill": prefill_object(set),
        "tokens_from": app.prompts.source(&set.key.model).name(),
    })
}

/// The members that agree with each other.
fn cohort_object(set: &SetView, standing: &Standing) -> Value {
    let cohort = &standing.cohort;
    let members = set.members.iter().filter(|member| member.cohort.fingerprint == cohort.fingerprint);
    let mut ids: Vec<_> = members.map(|member| member.worker.id.0).collect();
    ids.sort_unstable();
    ids.dedup();
    json!({
        "fingerprint": cohort.fingerprint.to_string(),
        "admitted": set.admitted == Some(cohort.fingerprint),
        "workers": ids,
        "registered_ms": standing.registered_ms,
        "block_size": cohort.block_size.get(),
        "eagle": cohort.eagle,
        "max_model_len": cohort.max_model_len,
        "router_config": &*cohort.config,
        "device_weights": DeviceWeights(cohort.config.tuning.device_weights),
        "router_cost_model": cohort.config.tuning.cost_model.name(),
        "router_hold": cohort.config.tuning.hold_seconds(),
    })
}

/// What a decode set knows of its prefill workers; null for other sets.
pub(super) fn prefill_object(set: &SetView) -> Value {
    if set.key.worker_type != WorkerType::Decode {
        return Value::Null;
    }
    let (prefill, problem) = match &set.prefill {
        PrefillPool::None => (None, None),
        PrefillPool::Pending(error) => (None, Some(error.to_string())),
        PrefillPool::Active(prefill) => (Some(prefill.key.to_string()), None),
        PrefillPool::Unavailable(ambiguity) => (None, Some(ambiguity.to_string())),
    };
    json!({ "state": set.prefill.name(), "worker_set": prefill, "problem": problem })
}
