//! The engine's `/tokenize`: where tokens come from if the model has no tokenizer here.
//!
//! It costs a round trip a request. A model whose engines do not answer is asked again only now and then, and
//! routed by load alone meanwhile.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Collected, Limited};
use serde::Deserialize;
use serde_json::json;
use tracing::{info, warn};

use super::{
    app::App,
    prompts::{PromptInput, TokenSource, Tokens},
};
use crate::fleet::SetView;

/// How the engines of one model fared with `/tokenize`.
///
/// Relaxed throughout: the fields are hints that save round trips, and a request that reads one late asks once more.
#[derive(Debug, Default)]
pub(super) struct EngineTokenizer {
    /// That it is asked at all was logged.
    announced: AtomicBool,
    /// Failures since the last success.
    failures: AtomicU32,
    /// When to ask again after too many, on the fleet's clock.
    ask_again_ms: AtomicU64,
}

/// Failures in a row after which a model is not asked for a while. More than one, so that a single engine that is
/// just starting does not turn prefix routing off.
const FAILURES: u32 = 3;

/// For how long, in milliseconds.
const PAUSE_MS: u64 = 10_000;

/// How long an answer is waited for. Tokenising takes an engine milliseconds; one that takes longer than this is too
/// busy, and its delay would be the request's.
const PATIENCE: Duration = Duration::from_secs(2);

/// Largest answer that is read, in bytes: a million tokens and their commas.
const LIMIT: usize = 16 << 20;

impl EngineTokenizer {
    /// Whether nobody can tell this model's tokens, as far as is known.
    pub(super) fn is_lost(&self) -> bool {
        self.failures.load(Relaxed) >= FAILURES
    }

    fn pauses(&self, now_ms: u64) -> bool {
        self.is_lost() && now_ms < self.ask_again_ms.load(Relaxed)
    }

    /// Notes a success; true if the model was lost.
    fn succeeded(&self) -> bool {
        self.failures.swap(0, Relaxed) >= FAILURES
    }

    /// Notes a failure; true for the one with which the model is lost.
    fn failed(&self, now_ms: u64) -> bool {
        let failures = self.failures.fetch_add(1, Relaxed).saturating_add(1);
        if failures >= FAILURES {
            self.ask_again_ms.store(now_ms.saturating_add(PAUSE_MS), Relaxed);
        }
        failures == FAILURES
    }
}

enum Answer {
    Tokens(Vec<u32>),
    /// This prompt cannot be tokenised; the engine will say so to the client too.
    Unusable,
    /// There is no such route, or no answer in time.
    Failed(String),
    /// The worker could not be reached or has trouble of its own, which says nothing of the route.
    Troubled,
}

impl App {
    /// The tokens of a prompt by the word of an engine of the set.
    pub(super) async fn ask_engine(&self, set: &SetView, input: &PromptInput) -> Tokens {
        let model = &set.key.model;
        let engine = self.prompts.engine(model);
        let now = self.fleet.now_ms();
        if engine.pauses(now) {
            return self.counters.nobody("no tokenizer given, and no engine answers /tokenize".to_owned());
        }
        if !engine.announced.swap(true, Relaxed) {
            info!(
                model,
                "no tokenizer given: the engine's /tokenize is asked, which delays every request by a round trip"
            );
        }
        let body = request_body(model, input);
        for member in set.members.iter().filter(|m| m.worker.exclusion(now).is_none()).take(2) {
            match self.tokenize_at(&member.worker.url, &body).await {
                Answer::Tokens(ids) => {
                    if engine.succeeded() {
                        info!(model, "the engine's /tokenize answers again: requests are routed by prefix");
                    }
                    return Tokens::known(ids, TokenSource::Engine);
                }
                Answer::Unusable => break,
                Answer::Troubled => {}
                Answer::Failed(reason) => {
                    if engine.failed(now) {
                        warn!(
                            model,
                            reason,
                            "no tokenizer given and the engine's /tokenize does not answer: requests are routed by \
                             load alone; give --tokenizer MODEL=PATH for prefix routing"
                        );
                    }
                }
            }
        }
        self.counters.nobody("no tokenizer given, and no engine tokenised the prompt".to_owned())
    }

    async fn tokenize_at(&self, url: &Uri, body: &Bytes) -> Answer {
        match tokio::time::timeout(PATIENCE, self.tokenize_unhurried(url, body)).await {
            Ok(answer) => answer,
            Err(_) => Answer::Failed(format!("no answer within {} s", PATIENCE.as_secs())),
        }
    }

    async fn tokenize_unhurried(&self, url: &Uri, body: &Bytes) -> Answer {
        #[derive(Deserialize)]
        struct Wire {
            tokens: Vec<u32>,
        }
        let request = Request::post("/tokenize")
            .header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let (head, ()) = match request.body(()) {
            Ok(request) => request.into_parts(),
            Err(error) => return Answer::Failed(error.to_string()),
        };
        let Ok(answer) = self.pool.forward(url, &head, body.clone()).await else {
            return Answer::Troubled;
        };
        let status = answer.status();
        // These judge the prompt, not the route.
        if matches!(status.as_u16(), 400 | 422) {
            return Answer::Unusable;
        }
        if status == StatusCode::TOO_MANY_REQUESTS
            || (status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED)
        {
            return Answer::Troubled;
        }
        if status != StatusCode::OK {
            return Answer::Failed(format!("status {status}"));
        }
        let text = Limited::new(answer.relay(()).into_body(), LIMIT).collect().await;
        let wire = text.map(Collected::to_bytes).map(|text| serde_json::from_slice::<Wire>(&text));
        match wire {
            Ok(Ok(wire)) => Answer::Tokens(wire.tokens),
            Ok(Err(_)) => Answer::Failed("the answer has no list of tokens".to_owned()),
            Err(error) => Answer::Failed(error.to_string()),
        }
    }
}

/// vLLM's `/tokenize` body: the fields of the request that tokens depend on.
fn request_body(model: &str, input: &PromptInput) -> Bytes {
    let mut body = json!({ "model": model });
    match input {
        PromptInput::Text { text, add_special_tokens } => {
            body["prompt"] = json!(text);
            body["add_special_tokens"] = json!(add_special_tokens);
        }
        PromptInput::Chat(chat) => {
            body["messages"] = chat.messages.clone();
            body["add_generation_prompt"] = json!(chat.add_generation_prompt);
            body["continue_final_message"] = json!(chat.continue_final_message);
            body["add_special_tokens"] = json!(chat.add_special_tokens);
            for (name, value) in [
                ("tools", &chat.tools),
                ("chat_template_kwargs", &chat.chat_template_kwargs),
                ("chat_template", &chat.own_template),
            ] {
                if let Some(value) = value {
                    body[name] = value.clone();
                }
            }
        }
        PromptInput::Tokens(_) => {}
    }
    Bytes::from(body.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_asked_again_after_a_pause_and_found_again_by_one_answer() {
        let engine = EngineTokenizer::default();
        assert!(!engine.failed(0) && !engine.failed(0) && !engine.pauses(0));
        assert!(engine.failed(5), "the third failure is the one to log");
        assert!(engine.is_lost() && engine.pauses(5) && !engine.pauses(5 + PAUSE_MS));
        assert!(!engine.failed(5 + PAUSE_MS) && engine.pauses(6 + PAUSE_MS));
        assert!(engine.succeeded() && !engine.is_lost() && !engine.pauses(6 + PAUSE_MS));
        assert!(!engine.succeeded());
    }
}
