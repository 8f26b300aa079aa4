//! The HTTP surface: OpenAI's endpoints and vLLM's own.

mod body;
mod chat;
mod completions;
mod control;
mod embeddings;
mod error;
mod faults;
mod generation;
mod server;
mod sse;
mod tokenize;
mod transfer;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::{HeaderValue, StatusCode};
use parking_lot::RwLock;
use serde_json::json;
use tokio::sync::mpsc::UnboundedSender;

pub(super) use faults::HttpFaults;
pub(super) use server::{listen, serve};

use self::error::ApiError;
use super::engine::Command;
use super::publisher::Publisher;
use super::sequence::Lora;
use super::settings::MockSettings;
use super::stats::Stats;

/// What the handlers share.
pub(super) struct App {
    pub(super) settings: MockSettings,
    pub(super) commands: UnboundedSender<Command>,
    pub(super) stats: Arc<Stats>,
    pub(super) publisher: Option<Arc<Publisher>>,
    pub(super) faults: Arc<HttpFaults>,
    /// The adapters that are loaded.
    pub(super) loras: RwLock<Vec<Lora>>,
    /// Since the epoch.
    pub(super) started: Duration,
}

impl App {
    pub(super) fn new(
        settings: MockSettings,
        commands: UnboundedSender<Command>,
        stats: Arc<Stats>,
        publisher: Option<Arc<Publisher>>,
    ) -> Self {
        Self {
            loras: RwLock::new(
                (1..).zip(&settings.loras).map(|(id, name)| Lora { id, name: name.clone() }).collect(),
            ),
            settings,
            commands,
            stats,
            publisher,
            faults: Arc::default(),
            started: generation::since_the_epoch(),
        }
    }

    /// The adapter that a model name selects, `None` for the base model, which also serves requests without a
    /// name.
    fn resolve(&self, model: Option<&str>) -> Result<Option<Lora>, ApiError> {
        let Some(model) = model.filter(|model| *model != self.settings.model) else { return Ok(None) };
        let loras = self.loras.read();
        let found = loras.iter().find(|lora| lora.name == model);
        found.cloned().map(Some).ok_or_else(|| ApiError::no_such_model(model))
    }

    fn injected_failure(&self) -> Result<(), ApiError> {
        self.faults.take_failure().map_or(Ok(()), |status| Err(ApiError::injected(status)))
    }
}

/// Prompts of a million tokens fit; more is no test of anything.
const LARGEST_BODY: usize = 64 << 20;

pub(super) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat::serve))
        .route("/v1/completions", post(completions::serve))
        .route("/v1/embeddings", post(embeddings::serve))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), report_load))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/v1/models", get(control::models))
        .route("/v1/load_lora_adapter", post(control::load_lora_adapter))
        .route("/v1/unload_lora_adapter", post(control::unload_lora_adapter))
        .route("/health", get(control::health))
        .route("/ping", get(control::health).post(control::health))
        .route("/version", get(control::version))
        .route("/load", get(control::load))
        .route("/metrics", get(control::metrics))
        .route("/reset_prefix_cache", post(control::reset_prefix_cache))
        .route("/kv_event_sources", get(control::kv_event_sources))
        .fallback(|| async { detail(StatusCode::NOT_FOUND, "Not Found") })
        .method_not_allowed_fallback(|| async {
            detail(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed")
        })
        .layer(DefaultBodyLimit::max(LARGEST_BODY))
        .with_state(app)
}

/// What the framework under vLLM answers by itself; it does not have the API's error shape.
fn detail(status: StatusCode, detail: &str) -> Response {
    (status, Json(json!({ "detail": detail }))).into_response()
}

/// A client that sends `endpoint-load-metrics-format: JSON` gets the engine's load in a header of the answer.
async fn report_load(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let asked = body::header(request.headers(), LOAD_FORMAT)
        .is_some_and(|format| format.eq_ignore_ascii_case("json"));
    let mut response = next.run(request).await;
    if asked {
        let usage = super::metrics::cache_usage(&app.settings, &app.stats);
        let waiting = app.stats.waiting.get() as f64;
        let load = json!({"named_metrics": {"num_requests_waiting": waiting, "kv_cache_usage_perc": usage}});
        if let Ok(value) = HeaderValue::try_from(format!("JSON {load}")) {
            response.headers_mut().insert("endpoint-load-metrics", value);
        }
    }
    response
}

const LOAD_FORMAT: &str = "endpoint-load-metrics-format";
