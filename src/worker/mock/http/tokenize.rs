//! `POST /tokenize` and `POST /detokenize`.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use super::App;
use super::body::{TextOrTokens, parse};
use super::chat::Chat;
use super::error::ApiError;

#[derive(Deserialize)]
#[serde(untagged)]
enum Input {
    Prompt { prompt: String, add_special_tokens: Option<bool> },
    Chat(Chat),
}

#[derive(Deserialize)]
struct Model {
    model: Option<String>,
}

pub(super) async fn tokenize(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<Value>, ApiError> {
    app.resolve(parse::<Model>(&body)?.model.as_deref())?;
    let tokens = match parse::<Input>(&body) {
        Ok(Input::Prompt { prompt, add_special_tokens }) => {
            app.encode_all(TextOrTokens::Text(prompt), add_special_tokens.unwrap_or(true))?.concat()
        }
        Ok(Input::Chat(chat)) => chat.encode(&app)?,
        Err(_) => {
            return Err(ApiError::bad_request(None, "give either prompt (a text) or messages (a list)"));
        }
    };
    Ok(Json(json!({
        "count": tokens.len(),
        "max_model_len": app.settings.max_model_len,
        "tokens": tokens,
        "token_strs": null,
    })))
}

#[derive(Deserialize)]
struct Tokens {
    model: Option<String>,
    tokens: Vec<u32>,
}

pub(super) async fn detokenize(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<Value>, ApiError> {
    let Tokens { model, tokens } = parse(&body)?;
    app.resolve(model.as_deref())?;
    Ok(Json(json!({ "prompt": app.settings.encoder.decode(&tokens) })))
}
