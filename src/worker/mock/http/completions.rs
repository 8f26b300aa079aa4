//! `POST /v1/completions`.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::{Sampling, TextOrTokens, parse};
use super::error::ApiError;
use super::generation::{Generation, finish_reason};
use super::{App, sse};
use crate::worker::mock::scheduler::Produced;

#[derive(Deserialize)]
struct Body {
    prompt: TextOrTokens,
    add_special_tokens: Option<bool>,
    #[serde(flatten)]
    sampling: Sampling,
}

/// As vLLM, for a request that names no limit.
const DEFAULT_MAX_TOKENS: usize = 16;

pub(super) async fn serve(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    app.injected_failure()?;
    let Body { prompt, add_special_tokens, sampling } = parse(&body)?;
    app.resolve(sampling.model.as_deref())?;
    let prompts = app.encode_all(prompt, add_special_tokens.unwrap_or(true))?;
    let mut generation =
        Generation::start(&app, &headers, "cmpl", prompts, &sampling, Some(DEFAULT_MAX_TOKENS))?;
    if sampling.stream == Some(true) {
        let shape = sse::Shape { opening: None, token, closing };
        let options = sampling.stream_options.unwrap_or_default();
        return Ok(sse::respond(generation, shape, options, app.faults.take_cut()));
    }
    generation.complete().await?;
    Ok(Json(whole(&generation)).into_response())
}

impl App {
    /// The tokens of every prompt.
    pub(super) fn encode_all(&self, prompts: TextOrTokens, special: bool) -> Result<Vec<Vec<u32>>, ApiError> {
        let encode = |text: &String| {
            let encoded = self.settings.encoder.encode_text(text, special);
            let encoded =
                encoded.map_err(|error| ApiError::bad_request(Some("prompt"), error.to_string()))?;
            Ok(encoded.tokens)
        };
        match prompts {
            TextOrTokens::Text(text) => Ok(vec![encode(&text)?]),
            TextOrTokens::Tokens(tokens) => Ok(vec![tokens]),
            TextOrTokens::Texts(texts) => texts.iter().map(encode).collect(),
            TextOrTokens::TokenLists(lists) => Ok(lists),
        }
    }
}

fn frame(generation: &Generation, choices: Value) -> Value {
    let mut frame = json!({
        "id": generation.id,
        "object": "text_completion",
        "created": generation.created,
        "model": generation.model,
        "choices": null,
    });
    frame["choices"] = choices;
    frame
}

fn token(generation: &Generation, produced: &Produced, piece: &str) -> Value {
    let choice = &generation.choices[produced.choice];
    let first = choice.output.tokens().len() == 1;
    let prompt = if first { generation.ids(&choice.prompt) } else { Value::Null };
    let choice = json!({
        "index": produced.choice,
        "text": piece,
        "logprobs": null,
        "finish_reason": finish_reason(produced.finish),
        "stop_reason": null,
        "prompt_token_ids": prompt,
        "token_ids": generation.ids(&[produced.token]),
    });
    frame(generation, json!([choice]))
}

fn closing(generation: &Generation) -> Value {
    frame(generation, json!([]))
}

fn whole(generation: &Generation) -> Value {
    let choices = generation.choices.iter().enumerate().map(|(index, choice)| {
        json!({
            "index": index,
            "text": choice.text,
            "logprobs": null,
            "finish_reason": finish_reason(choice.finish),
            "stop_reason": null,
            "token_ids": generation.ids(choice.output.tokens()),
            "prompt_logprobs": null,
            "prompt_token_ids": generation.ids(&choice.prompt),
        })
    });
    let mut whole = frame(generation, choices.collect());
    whole["service_tier"] = Value::Null;
    whole["system_fingerprint"] = Value::Null;
    whole["usage"] = generation.usage();
    whole["kv_transfer_params"] = generation.kv_transfer_params();
    whole
}
