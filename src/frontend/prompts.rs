//! Where the tokens of a prompt come from: the model's own tokenizer, the engine's `/tokenize`, or nowhere.
//!
//! With neither, a set is routed by load alone, and that is said: once in the log, in a gauge, and in
//! `/ready`.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::SystemTime,
};

use ahash::AHashMap;
use axum::body::Bytes;
use http::{HeaderValue, Request, header};
use http_body_util::{BodyExt as _, Limited};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::warn;

use super::{app::App, counters::Counters, error::ApiError, openai::Fields};
use crate::{
    fleet::SetView,
    prompt::{ChatInput, Encoder},
};

/// What a request asks the model to go on from.
#[derive(Clone, Debug)]
pub(super) enum PromptInput {
    /// A conversation, to be put through the chat template.
    Chat(Box<Chat>),
    /// A text.
    Text {
        /// The text.
        text: String,
        /// Whether the tokenizer's own special tokens come around it.
        add_special_tokens: bool,
    },
    /// Tokens.
    Tokens(Vec<u32>),
}

/// The fields of a chat request that its tokens depend on.
#[derive(Clone, Debug)]
pub(super) struct Chat {
    messages: Value,
    tools: Option<Value>,
    documents: Option<Value>,
    chat_template_kwargs: Option<Value>,
    add_generation_prompt: bool,
    continue_final_message: bool,
    add_special_tokens: bool,
    /// A template of the request's own, which only the engine knows whether to trust.
    own_template: Option<Value>,
}

impl Chat {
    /// Reads the fields of a chat request.
    ///
    /// # Errors
    /// 400 for fields that are missing or of the wrong type.
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        let messages: Value = fields.get("messages")?.ok_or_else(|| {
            ApiError::bad_field("messages", "'messages' is missing; send a list of {role, content} objects")
        })?;
        match messages.as_array() {
            Some(list) if list.is_empty() => {
                return Err(ApiError::bad_field(
                    "messages",
                    "'messages' is empty; send at least one message",
                ));
            }
            Some(list) if list.iter().all(Value::is_object) => {}
            _ => {
                return Err(ApiError::bad_field(
                    "messages",
                    "'messages' must be a list of {role, content} objects",
                ));
            }
        }
        Ok(Self {
            messages,
            tools: fields.get("tools")?,
            documents: fields.get("documents")?,
            chat_template_kwargs: fields.get("chat_template_kwargs")?,
            add_generation_prompt: fields.get("add_generation_prompt")?.unwrap_or(true),
            continue_final_message: fields.get("continue_final_message")?.unwrap_or(false),
            add_special_tokens: fields.get("add_special_tokens")?.unwrap_or(false),
            own_template: fields.get("chat_template")?,
        })
    }

    fn input(&self) -> ChatInput<'_> {
        ChatInput {
            now: SystemTime::now(),
            messages: &self.messages,
            tools: self.tools.as_ref(),
            documents: self.documents.as_ref(),
            chat_template_kwargs: self.chat_template_kwargs.as_ref(),
            add_generation_prompt: self.add_generation_prompt,
            continue_final_message: self.continue_final_message,
            add_special_tokens: self.add_special_tokens,
        }
    }
}

/// The tokens of a prompt, as far as they are known.
#[derive(Clone, Debug, Default)]
pub(super) struct Tokens {
    pub(super) ids: Vec<u32>,
    /// False if the prompt goes on beyond them: an image follows, or nobody could say.
    pub(super) complete: bool,
    pub(super) source: TokenSource,
    /// Why nobody could say.
    pub(super) problem: Option<String>,
}

impl Tokens {
    fn known(ids: Vec<u32>, source: TokenSource) -> Self {
        Self { ids, complete: true, source, problem: None }
    }
}

/// Who turned the prompt into tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum TokenSource {
    /// The client sent token ids.
    Client,
    /// The model's tokenizer, here.
    Tokenizer,
    /// The engine's `/tokenize`.
    Engine,
    /// Nobody: the request is routed by load alone.
    #[default]
    Nobody,
}

impl TokenSource {
    /// The name in explain and in `/ready`.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Tokenizer => "tokenizer",
            Self::Engine => "engine",
            Self::Nobody => "nobody",
        }
    }
}

impl fmt::Display for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The tokenizers of all models.
#[derive(Default)]
pub struct Prompts {
    encoders: AHashMap<String, Arc<Encoder>>,
    for_all: Option<Arc<Encoder>>,
    engines: Mutex<AHashMap<String, Arc<EngineTokenizer>>>,
}

/// What is known of an engine's `/tokenize`. A model whose engines refused it once is not asked again.
#[derive(Default)]
struct EngineTokenizer {
    refused: AtomicU32,
}

/// Refusals after which a model counts as having no `/tokenize`. More than one, so that a single engine that
/// is just starting does not turn prefix routing off for good.
const REFUSALS: u32 = 3;

/// Prompts longer than this many bytes are encoded on a blocking thread: encoding takes about a
/// millisecond per few kilobytes, in which the thread could serve others.
const INLINE_BYTES: usize = 4 << 10;

/// Largest `/tokenize` answer that is read, in bytes: a million tokens and their commas.
const TOKENIZE_LIMIT: usize = 16 << 20;

impl Prompts {
    /// No tokenizers: every model asks its engines.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Uses `encoder` for the model of that name; `*` is every model without one of its own.
    pub fn insert(&mut self, model: &str, encoder: Arc<Encoder>) {
        if model == "*" {
            self.for_all = Some(encoder);
        } else {
            self.encoders.insert(model.to_owned(), encoder);
        }
    }

    /// Who turns the prompts of `model` into tokens, as far as is known.
    pub(super) fn source(&self, model: &str) -> TokenSource {
        if self.encoder(model).is_some() {
            TokenSource::Tokenizer
        } else if self.engine(model).is_refused() {
            TokenSource::Nobody
        } else {
            TokenSource::Engine
        }
    }

    fn encoder(&self, model: &str) -> Option<&Arc<Encoder>> {
        self.encoders.get(model).or(self.for_all.as_ref())
    }

    fn engine(&self, model: &str) -> Arc<EngineTokenizer> {
        Arc::clone(self.engines.lock().entry(model.to_owned()).or_default())
    }
}

impl App {
    /// The tokens of a prompt for the set's model. Never fails a request: what cannot be tokenised here
    /// (a conversation that the template refuses, say) has no known tokens, and the engine judges it.
    pub(super) async fn tokenise(&self, set: &SetView, input: PromptInput, bytes: usize) -> Tokens {
        let input = match input {
            PromptInput::Tokens(ids) => return Tokens::known(ids, TokenSource::Client),
            PromptInput::Chat(chat) if chat.own_template.is_some() => {
                return self.ask_engine(set, &PromptInput::Chat(chat)).await;
            }
            other => other,
        };
        let Some(encoder) = self.prompts.encoder(&set.key.model) else {
            return self.ask_engine(set, &input).await;
        };
        let encoded = if bytes <= INLINE_BYTES {
            encode(encoder, &input)
        } else {
            let encoder = Arc::clone(encoder);
            tokio::task::spawn_blocking(move || encode(&encoder, &input))
                .await
                .unwrap_or_else(|error| Err(error.to_string()))
        };
        encoded.unwrap_or_else(|problem| self.counters.nobody(problem))
    }

    async fn ask_engine(&self, set: &SetView, input: &PromptInput) -> Tokens {
        let model = &set.key.model;
        let engine = self.prompts.engine(model);
        if engine.is_refused() {
            return self.counters.nobody("no tokenizer given, and no engine answers /tokenize".to_owned());
        }
        let body = tokenize_request(model, input);
        let now = self.fleet.now_ms();
        let candidates = set.members.iter().filter(|m| m.worker.exclusion(now).is_none()).take(2);
        for member in candidates {
            match self.tokenize_at(&member.worker.url, &body).await {
                Tokenized::Tokens(ids) => {
                    engine.works();
                    return Tokens::known(ids, TokenSource::Engine);
                }
                Tokenized::Refused(status) => {
                    if engine.refuse() {
                        warn!(
                            model,
                            status,
                            "no tokenizer given and the engine's /tokenize does not answer: requests are routed by \
                             load alone; give --tokenizer MODEL=PATH for prefix routing"
                        );
                    }
                }
                Tokenized::Failed => {}
                Tokenized::Unusable => break,
            }
        }
        self.counters.nobody("no tokenizer given, and no engine tokenised the prompt".to_owned())
    }

    async fn tokenize_at(&self, url: &http::Uri, body: &Bytes) -> Tokenized {
        #[derive(Deserialize)]
        struct Answer {
            tokens: Vec<u32>,
        }
        let request = Request::post("/tokenize")
            .header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let Ok(request) = request.body(()) else { return Tokenized::Unusable };
        let (head, ()) = request.into_parts();
        let Ok(answer) = self.pool.forward(url, &head, body.clone()).await else {
            return Tokenized::Failed;
        };
        let status = answer.status().as_u16();
        // 400 and 422 judge this prompt, not the route.
        if matches!(status, 400 | 422) {
            return Tokenized::Unusable;
        }
        // A worker that is starting, restarting or overloaded says nothing about the route.
        if status == 429 || (status >= 500 && status != 501) {
            return Tokenized::Failed;
        }
        let text = Limited::new(answer.relay(()).into_body(), TOKENIZE_LIMIT).collect().await;
        let text = text.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        match serde_json::from_slice::<Answer>(&text) {
            Ok(answer) if status == 200 => Tokenized::Tokens(answer.tokens),
            _ => Tokenized::Refused(status),
        }
    }
}

enum Tokenized {
    Tokens(Vec<u32>),
    /// The route is not there.
    Refused(u16),
    /// The worker could not be reached or has trouble of its own; another may answer.
    Failed,
    /// This prompt cannot be tokenised.
    Unusable,
}

impl Counters {
    fn nobody(&self, problem: String) -> Tokens {
        // Relaxed: a statistic.
        self.untokenised.fetch_add(1, Ordering::Relaxed);
        Tokens { problem: Some(problem), ..Tokens::default() }
    }
}

// The counter is a hint that saves round trips: Relaxed, since a request that reads it late only asks once more.
impl EngineTokenizer {
    fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed) >= REFUSALS
    }

    fn works(&self) {
        self.refused.store(0, Ordering::Relaxed);
    }

    /// Counts a refusal; true for the one that settles it.
    fn refuse(&self) -> bool {
        self.refused.fetch_add(1, Ordering::Relaxed) + 1 == REFUSALS
    }
}

fn encode(encoder: &Encoder, input: &PromptInput) -> Result<Tokens, String> {
    let encoded = match input {
        PromptInput::Chat(chat) => encoder.encode_chat(&chat.input()),
        PromptInput::Text { text, add_special_tokens } => encoder.encode_text(text, *add_special_tokens),
        PromptInput::Tokens(ids) => return Ok(Tokens::known(ids.clone(), TokenSource::Client)),
    };
    let encoded = encoded.map_err(|error| error.to_string())?;
    Ok(Tokens {
        ids: encoded.tokens,
        complete: encoded.complete,
        source: TokenSource::Tokenizer,
        problem: None,
    })
}

/// vLLM's `/tokenize` body: the fields of the request that tokens depend on.
fn tokenize_request(model: &str, input: &PromptInput) -> Bytes {
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
