//! The public listener: what clients may ask.

use std::sync::Arc;

use axum::{
    Extension, Json, Router,
    extract::{Path, Request, State, rejection::PathRejection},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::{
    app::{App, unix_secs},
    counters::Surface,
    error::{ApiError, quoted},
    gate::Stranger,
    passthrough, route,
};
use crate::fleet::{FleetView, WorkerType};

/// The public routes.
pub(super) fn router(app: &Arc<App>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat).fallback(only_post))
        .route("/v1/completions", post(completions).fallback(only_post))
        .route("/v1/models", get(models).fallback(only_get))
        .route("/v1/models/{*model}", get(model).fallback(only_get))
        .route("/health", get(health).fallback(only_get))
        .route("/ready", get(ready).fallback(only_get))
        .fallback(other)
        .with_state(Arc::clone(app))
}

async fn chat(State(app): State<Arc<App>>, request: Request) -> Response {
    route::serve(app, Surface::Chat, request).await
}

async fn completions(State(app): State<Arc<App>>, request: Request) -> Response {
    route::serve(app, Surface::Completions, request).await
}

/// Every other POST that names a model goes to a worker of that model; anything else is unknown here.
async fn other(State(app): State<Arc<App>>, request: Request) -> Response {
    let path = request.uri().path();
    if request.method() == Method::POST && passthrough::is_forwarded(path) {
        return passthrough::serve(app, request).await;
    }
    let error = ApiError::not_found(format!(
        "{} is not served here; clients use POST /v1/chat/completions, /v1/completions and other POST /v1/ \
         routes, GET /v1/models, /health and /ready",
        quoted(path)
    ));
    route::turn_away(request, error).await
}

async fn only_post(request: Request) -> Response {
    other_method(request, "POST").await
}

async fn only_get(request: Request) -> Response {
    other_method(request, "GET, HEAD").await
}

async fn other_method(request: Request, accepted: &'static str) -> Response {
    let error = ApiError::method_not_allowed(request.method().as_str(), request.uri().path(), Some(accepted));
    route::turn_away(request, error).await
}

/// Whether the process is up. Says nothing of workers: an orchestrator that restarts on this must not
/// restart a frontend for the sake of its engines.
async fn health() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// Whether requests can be served, and per model how well; the latter not for those who have no key where keys are in
/// force.
async fn ready(State(app): State<Arc<App>>, stranger: Option<Extension<Stranger>>) -> Response {
    let view = app.fleet.view();
    let now = app.fleet.now_ms();
    let models: Vec<Value> = view
        .sets
        .iter()
        .map(|set| {
            let routable = set.routable(now);
            let source = app.prompts.source(&set.key.model);
            json!({
                "model": set.key.model,
                "worker_type": set.key.worker_type.name(),
                "ranks": set.members.len(),
                "routable_ranks": routable,
                "router_mode": set.config.mode.name(),
                "tokens_from": source.name(),
            })
        })
        .collect();
    // A prefill set alone serves nobody.
    let mut serving = view.sets.iter().filter(|set| set.key.worker_type != WorkerType::Prefill);
    let routable = serving.any(|set| set.routable(now) != 0);
    let (status, text) = match (app.draining(), routable) {
        (true, _) => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        (false, false) => (StatusCode::SERVICE_UNAVAILABLE, "no routable worker"),
        (false, true) => (StatusCode::OK, "ready"),
    };
    let body = match stranger {
        Some(_) => json!({ "status": text }),
        None => json!({ "status": text, "models": models }),
    };
    (status, Json(body)).into_response()
}

async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let view = app.fleet.view();
    let data: Vec<_> = view.models().iter().map(|name| model_object(&view, name)).collect();
    Json(json!({ "object": "list", "data": data }))
}

async fn model(State(app): State<Arc<App>>, name: Result<Path<String>, PathRejection>) -> Response {
    let Ok(Path(name)) = name else {
        return ApiError::bad_request("the path does not name a model: it is not UTF-8").into_response();
    };
    let view = app.fleet.view();
    if view.route(&name).is_some() {
        Json(model_object(&view, &name)).into_response()
    } else {
        ApiError::model_not_found(&name, &view.models()).into_response()
    }
}

fn model_object(view: &FleetView, name: &str) -> Value {
    let route = view.route(name);
    let set = route.and_then(|route| view.sets.get(*route.sets.first()?));
    let mut object = json!({
        "id": name,
        "object": "model",
        "created": unix_secs(),
        "owned_by": "kvroute",
    });
    if let Some(set) = set.filter(|_| route.is_some_and(|route| route.lora.is_some())) {
        object["parent"] = json!(set.key.model);
    }
    if let Some(limit) = set.and_then(|set| set.max_model_len) {
        object["max_model_len"] = json!(limit);
    }
    object
}
