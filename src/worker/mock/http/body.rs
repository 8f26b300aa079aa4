//! Request bodies: what chat and completions have in common. Unknown fields are accepted and ignored.

use http::HeaderMap;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::ApiError;

/// The fields that both generating endpoints read.
#[derive(Debug, Deserialize)]
pub(super) struct Sampling {
    pub(super) model: Option<String>,
    pub(super) max_tokens: Option<i64>,
    pub(super) max_completion_tokens: Option<i64>,
    #[serde(default)]
    pub(super) min_tokens: usize,
    pub(super) n: Option<i64>,
    pub(super) seed: Option<i64>,
    #[serde(default)]
    pub(super) ignore_eos: bool,
    pub(super) stop_token_ids: Option<Vec<u32>>,
    pub(super) stream: Option<bool>,
    pub(super) stream_options: Option<StreamOptions>,
    pub(super) return_token_ids: Option<bool>,
    pub(super) cache_salt: Option<String>,
    pub(super) vllm_xargs: Option<Value>,
    pub(super) kv_transfer_params: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct StreamOptions {
    #[serde(default)]
    pub(super) include_usage: bool,
    #[serde(default)]
    pub(super) continuous_usage_stats: bool,
}

impl Sampling {
    /// Choices per prompt.
    pub(super) fn choices(&self) -> Result<usize, ApiError> {
        match usize::try_from(self.n.unwrap_or(1)) {
            Ok(n @ 1..=MAX_CHOICES) => Ok(n),
            _ => Err(ApiError::bad_request(Some("n"), format!("n must be between 1 and {MAX_CHOICES}"))),
        }
    }

    pub(super) fn validate(&self) -> Result<(), ApiError> {
        if self.stream_options.is_some() && self.stream != Some(true) {
            let message = "Stream options can only be defined when `stream=True`.";
            return Err(ApiError::bad_request(Some("stream_options"), message));
        }
        if self.cache_salt.as_deref() == Some("") {
            let message = "cache_salt must be a non-empty string when it is given";
            return Err(ApiError::bad_request(Some("cache_salt"), message));
        }
        Ok(())
    }

    pub(super) fn reports_reused(&self) -> bool {
        let mode = self.vllm_xargs.as_ref().and_then(|extra| extra.get("kv_cache_report_mode"));
        mode.and_then(Value::as_str) == Some("full")
    }
}

const MAX_CHOICES: usize = 128;

/// A text or a list of token ids, one or several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum TextOrTokens {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
}

/// Parses a body, whatever its content type says.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body)
        .map_err(|error| ApiError::bad_request(None, format!("invalid request body: {error}")))
}

/// A header's value where it is readable text.
pub(super) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}
