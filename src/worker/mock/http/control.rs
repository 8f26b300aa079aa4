//! The endpoints beside generation: health, models, metrics, cache control.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::App;
use super::error::ApiError;
use crate::worker::mock::engine::Command;
use crate::worker::mock::metrics;
use crate::worker::mock::sequence::Lora;
use crate::worker::mock::settings::{Attach, Endpoint};

pub(super) async fn health() {}

pub(super) async fn version(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({ "version": app.settings.version }))
}

pub(super) async fn load(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({ "server_load": app.stats.running.get() + app.stats.waiting.get() }))
}

pub(super) async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let settings = &app.settings;
    let card = |id: &str, parent: Option<&str>, max_model_len: Option<u32>| {
        json!({
            "id": id,
            "object": "model",
            "created": app.started.as_secs(),
            "owned_by": "vllm",
            "root": id,
            "parent": parent,
            "max_model_len": max_model_len,
            "permission": [{
                "id": format!("modelperm-{id}"),
                "object": "model_permission",
                "created": app.started.as_secs(),
                "allow_create_engine": false,
                "allow_sampling": true,
                "allow_logprobs": true,
                "allow_search_indices": false,
                "allow_view": true,
                "allow_fine_tuning": false,
                "organization": "*",
                "group": null,
                "is_blocking": false,
            }],
        })
    };
    let base = card(&settings.model, None, Some(settings.max_model_len));
    let loras = app.loras.read();
    let adapters = loras.iter().map(|lora| card(&lora.name, Some(&settings.model), None));
    let data: Value = std::iter::once(base).chain(adapters).collect();
    Json(json!({"object": "list", "data": data}))
}

#[derive(Deserialize)]
pub(super) struct Adapter {
    lora_name: String,
}

/// As vLLM has it where adapters may be changed while it runs; the weights would be at `lora_path`.
pub(super) async fn load_lora_adapter(
    State(app): State<Arc<App>>,
    Json(Adapter { lora_name }): Json<Adapter>,
) -> Result<String, ApiError> {
    let mut loras = app.loras.write();
    if loras.iter().any(|lora| lora.name == lora_name) {
        let text = format!("The lora adapter '{lora_name}' has already been loaded.");
        return Err(ApiError::bad_request(None, text));
    }
    let id = loras.iter().map(|lora| lora.id).max().unwrap_or(0) + 1;
    let text = format!("Success: LoRA adapter '{lora_name}' added successfully.");
    loras.push(Lora { id, name: lora_name });
    Ok(text)
}

/// The same the other way.
pub(super) async fn unload_lora_adapter(
    State(app): State<Arc<App>>,
    Json(Adapter { lora_name }): Json<Adapter>,
) -> Result<String, ApiError> {
    let mut loras = app.loras.write();
    let Some(at) = loras.iter().position(|lora| lora.name == lora_name) else {
        return Err(ApiError::no_such_model(&lora_name));
    };
    loras.remove(at);
    Ok(format!("Success: LoRA adapter '{lora_name}' removed successfully."))
}

pub(super) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let text = metrics::render(&app.settings, &app.stats, app.started.as_secs_f64());
    ([(CONTENT_TYPE, "text/plain; version=1.0.0; charset=utf-8")], text).into_response()
}

/// Where the KV events are, for discovery without configuration.
pub(super) async fn kv_event_sources(State(app): State<Arc<App>>) -> Json<Value> {
    let Some(publisher) = &app.publisher else { return Json(json!({})) };
    let Some(endpoint) = reported(app.settings.events.as_ref(), publisher.events_endpoint()) else {
        return Json(json!({}));
    };
    let source = json!({
        "endpoint": endpoint,
        "replay_endpoint": reported(app.settings.replay.as_ref(), publisher.replay_endpoint()),
        "topic": app.settings.topic,
        "buffer_steps": app.settings.buffer_steps,
        "hwm": 100_000,
        "max_queue_size": 100_000,
    });
    Json(json!({ app.settings.data_parallel_rank.to_string(): source }))
}

/// An address as engines write it: with a wildcard where they bind, which is how a reader tells that from connecting.
/// The port is the real one, where it was left open.
fn reported(configured: Option<&Endpoint>, real: Option<&str>) -> Option<String> {
    let configured = configured?;
    let port = real.and_then(|real| real.strip_prefix("tcp://")?.rsplit(':').next());
    match (configured.attach, port) {
        (Attach::Bind, Some(port)) => Some(format!("tcp://*:{port}")),
        _ => Some(configured.address.clone()),
    }
}

#[derive(Deserialize)]
pub(super) struct Reset {
    #[serde(default)]
    reset_running_requests: bool,
}

/// The event leaves with the next step that the engine takes; an idle engine stays silent until then.
pub(super) async fn reset_prefix_cache(
    State(app): State<Arc<App>>,
    Query(reset): Query<Reset>,
) -> Result<Json<Value>, ApiError> {
    let (done, answer) = oneshot::channel();
    let command = Command::Reset { preempt_running: reset.reset_running_requests, done };
    app.commands.send(command).map_err(|_| ApiError::engine_gone())?;
    let success = answer.await.map_err(|_| ApiError::engine_gone())?;
    Ok(Json(json!({ "success": success })))
}
