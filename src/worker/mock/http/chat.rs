//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::{Sampling, parse};
use super::error::ApiError;
use super::generation::{Generation, finish_reason};
use super::{App, sse};
use crate::prompt::ChatInput;
use crate::worker::mock::scheduler::Produced;

#[derive(Deserialize)]
struct Body {
    #[serde(flatten)]
    chat: Chat,
    #[serde(flatten)]
    sampling: Sampling,
}

/// The part of a body that the chat template sees.
#[derive(Deserialize)]
pub(super) struct Chat {
    messages: Value,
    tools: Option<Value>,
    chat_template_kwargs: Option<Value>,
    add_generation_prompt: Option<bool>,
    #[serde(default)]
    continue_final_message: bool,
    #[serde(default)]
    add_special_tokens: bool,
}

impl Chat {
    pub(super) fn encode(&self, app: &App) -> Result<Vec<u32>, ApiError> {
        if self.messages.as_array().is_none_or(Vec::is_empty) {
            return Err(ApiError::bad_request(
                Some("messages"),
                "messages must be a list with at least one message",
            ));
        }
        let input = ChatInput {
            tools: self.tools.as_ref(),
            chat_template_kwargs: self.chat_template_kwargs.as_ref(),
            add_generation_prompt: self.add_generation_prompt.unwrap_or(true),
            continue_final_message: self.continue_final_message,
            add_special_tokens: self.add_special_tokens,
            ..ChatInput::new(&self.messages)
        };
        let encoded = app.settings.encoder.encode_chat(&input);
        let encoded = encoded.map_err(|error| ApiError::bad_request(Some("messages"), error.to_string()))?;
        Ok(encoded.tokens)
    }
}

pub(super) async fn serve(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    app.injected_failure()?;
    let Body { chat, sampling } = parse(&body)?;
    app.resolve(sampling.model.as_deref())?;
    let prompt = chat.encode(&app)?;
    let mut generation = Generation::start(&app, &headers, "chatcmpl", vec![prompt], &sampling, None)?;
    if sampling.stream == Some(true) {
        let shape = sse::Shape { opening: Some(opening), token, closing };
        let options = sampling.stream_options.unwrap_or_default();
        return Ok(sse::respond(generation, shape, options, app.faults.take_cut()));
    }
    generation.complete().await?;
    Ok(Json(whole(&generation)).into_response())
}

fn frame(generation: &Generation, object: &str, choices: Value) -> Value {
    let mut frame = json!({
        "id": generation.id,
        "object": object,
        "created": generation.created,
        "model": generation.model,
        "choices": null,
    });
    frame["choices"] = choices;
    frame
}

fn opening(generation: &Generation, choice: usize) -> Value {
    let delta = json!({"role": "assistant", "content": ""});
    let choices = json!([{"index": choice, "delta": delta, "logprobs": null, "finish_reason": null}]);
    let mut chunk = frame(generation, CHUNK, choices);
    chunk["prompt_token_ids"] = generation.ids(&generation.choices[choice].prompt);
    chunk
}

fn token(generation: &Generation, produced: &Produced, piece: &str) -> Value {
    let mut choice = json!({
        "index": produced.choice,
        "delta": {"content": piece},
        "logprobs": null,
        "finish_reason": finish_reason(produced.finish),
    });
    if produced.finish.is_some() {
        choice["stop_reason"] = Value::Null;
    }
    choice["token_ids"] = generation.ids(&[produced.token]);
    frame(generation, CHUNK, json!([choice]))
}

fn closing(generation: &Generation) -> Value {
    frame(generation, CHUNK, json!([]))
}

const CHUNK: &str = "chat.completion.chunk";

fn whole(generation: &Generation) -> Value {
    let choices = generation.choices.iter().enumerate().map(|(index, choice)| {
        json!({
            "index": index,
            "message": {
                "role": "assistant",
                "content": choice.text,
                "refusal": null,
                "annotations": null,
                "audio": null,
                "function_call": null,
                "tool_calls": [],
                "reasoning": null,
            },
            "logprobs": null,
            "finish_reason": finish_reason(choice.finish),
            "stop_reason": null,
            "token_ids": generation.ids(choice.output.tokens()),
        })
    });
    let mut whole = frame(generation, "chat.completion", choices.collect());
    whole["service_tier"] = Value::Null;
    whole["system_fingerprint"] = Value::Null;
    whole["usage"] = generation.usage();
    whole["prompt_logprobs"] = Value::Null;
    whole["prompt_token_ids"] =
        generation.choices.first().map_or(Value::Null, |choice| generation.ids(&choice.prompt));
    whole["kv_transfer_params"] = generation.kv_transfer_params();
    whole
}
