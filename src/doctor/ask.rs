//! Questions to one engine over HTTP.

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Uri, header};
use serde_json::Value;

use super::{
    evidence::Told,
    told::{read_metrics, read_models, read_sources},
};
use crate::proxy::{Caller, Usage};

/// One engine, and the rank of it that is asked.
pub(super) struct Engine<'a> {
    pub(super) url: &'a Uri,
    pub(super) caller: Caller,
    pub(super) rank: u32,
}

impl Engine<'_> {
    /// What it says of itself.
    ///
    /// # Errors
    /// Why it does not answer at all.
    pub(super) async fn tell(&self) -> Result<Told, String> {
        self.caller.is_well(self.url).await?;
        let mut told = Told::default();
        if let Some(models) = self.json("/v1/models").await {
            read_models(&models, &mut told);
        }
        if let Some(version) = self.json("/version").await {
            told.version = version["version"].as_str().map(str::to_owned);
        }
        told.sources = self.json("/kv_event_sources").await.as_ref().and_then(read_sources);
        if let Ok(page) = self.caller.get(self.url, "/metrics").await {
            read_metrics(&String::from_utf8_lossy(&page.body), &mut told);
        }
        Ok(told)
    }

    /// The tokens that it makes of `body`; the error says why there are none.
    pub(super) async fn tokenise(&self, body: &Value) -> Result<Vec<u32>, String> {
        let answer = self.post("/tokenize", body).await?;
        let tokens = answer["tokens"].as_array().ok_or("POST /tokenize answers without a list of tokens")?;
        let token = |token: &Value| token.as_u64().and_then(|token| u32::try_from(token).ok());
        let tokens: Option<Vec<_>> = tokens.iter().map(token).collect();
        tokens.ok_or_else(|| "POST /tokenize answers with what is no token".to_owned())
    }

    /// Has it complete `body`; the error says why it did not.
    pub(super) async fn complete(&self, body: &Value) -> Result<Usage, String> {
        let answer = self.post("/v1/completions", body).await?;
        let usage = &answer["usage"];
        let prompt_tokens = usage["prompt_tokens"].as_u64().ok_or("the answer has no usage")?;
        Ok(Usage {
            prompt_tokens,
            completion_tokens: usage["completion_tokens"].as_u64().unwrap_or(0),
            cached_tokens: usage["prompt_tokens_details"]["cached_tokens"].as_u64(),
        })
    }

    async fn json(&self, path: &str) -> Option<Value> {
        let reply = self.caller.get(self.url, path).await.ok()?;
        reply.status.is_success().then(|| reply.json())
    }

    /// Asks the rank, as the router's own requests do.
    async fn post(&self, path: &str, body: &Value) -> Result<Value, String> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .header("x-data-parallel-rank", HeaderValue::from(self.rank));
        let (head, ()) = request.body(()).map_err(|error| error.to_string())?.into_parts();
        let reply = self.caller.exchange(self.url, &head, Bytes::from(body.to_string())).await?;
        if reply.status.is_success() {
            return Ok(reply.json());
        }
        let answer = reply.json();
        let said =
            answer["error"]["message"].as_str().or(answer["message"].as_str()).or(answer["detail"].as_str());
        Err(match said {
            Some(said) => format!("POST {path} answers {}: {said}", reply.status),
            None => format!("POST {path} answers {}", reply.status),
        })
    }
}
