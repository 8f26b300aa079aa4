//! `POST /v1/embeddings`: a small vector that depends on the input's tokens and on nothing else.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

use super::App;
use super::body::{TextOrTokens, header, parse};
use super::error::ApiError;
use super::generation::unix_seconds;

#[derive(Deserialize)]
struct Body {
    model: Option<String>,
    input: TextOrTokens,
    encoding_format: Option<String>,
}

const DIMENSIONS: usize = 16;

pub(super) async fn serve(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    app.injected_failure()?;
    let Body { model, input, encoding_format } = parse(&body)?;
    app.resolve(model.as_deref())?;
    let base64 = match encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => {
            return Err(ApiError::bad_request(Some("encoding_format"), "encoding_format is float or base64"));
        }
    };
    let inputs = app.encode_all(input, true)?;
    let prompt_tokens: usize = inputs.iter().map(Vec::len).sum();
    let data = inputs.iter().enumerate().map(|(index, tokens)| {
        let vector = embed(tokens);
        let embedding = if base64 { json!(encode_base64(&vector)) } else { json!(vector) };
        json!({"index": index, "object": "embedding", "embedding": embedding})
    });
    let data: Value = data.collect();
    let id = header(&headers, "x-request-id")
        .map_or_else(|| format!("{:032x}", fastrand::u128(..)), str::to_owned);
    let usage = json!({
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": null,
    });
    Ok(Json(json!({
        "id": format!("embd-{id}"),
        "object": "list",
        "created": unix_seconds(),
        "model": model.as_deref().unwrap_or(&app.settings.model),
        "data": data,
        "usage": usage,
    })))
}

/// A unit vector.
fn embed(tokens: &[u32]) -> [f32; DIMENSIONS] {
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    let mut draws = fastrand::Rng::with_seed(xxh3_64(&bytes));
    let mut vector = [(); DIMENSIONS].map(|()| draws.f32() - 0.5);
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
    vector.iter_mut().for_each(|x| *x /= length);
    vector
}

/// Little-endian floats in base64, which OpenAI's own client asks for.
fn encode_base64(vector: &[f32]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits =
            (0..3).fold(0_u32, |bits, index| bits << 8 | u32::from(group.get(index).copied().unwrap_or(0)));
        for digit in 0..4 {
            let value = (bits >> (18 - 6 * digit)) & 63;
            text.push(if digit <= group.len() { char::from(DIGITS[value as usize]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::encode_base64;

    #[test]
    fn base64_pads_to_groups_of_four() {
        assert_eq!(encode_base64(&[1.0]), "AACAPw==");
        assert_eq!(encode_base64(&[1.0, -2.5]), "AACAPwAAIMA=");
    }
}
