//! Where the tokens of a prompt come from: the model's own tokenizer, the engine's `/tokenize`, or nowhere.
//!
//! With neither, a set is routed by load alone, and that is said: once in the log, in a gauge, and in
//! `/ready`.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::SystemTime,
};

use ahash::AHashMap;
use parking_lot::Mutex;
use serde_json::Value;

use super::{counters::Counters, engine_tokenizer::EngineTokenizer, error::ApiError, openai::Fields};
use crate::prompt::{ChatInput, Encoder};

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
    pub(super) messages: Value,
    pub(super) tools: Option<Value>,
    documents: Option<Value>,
    pub(super) chat_template_kwargs: Option<Value>,
    pub(super) add_generation_prompt: bool,
    pub(super) continue_final_message: bool,
    pub(super) add_special_tokens: bool,
    /// A template of the request's own, which only the engine knows whether to trust.
    pub(super) own_template: Option<Value>,
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

    pub(super) fn input(&self) -> ChatInput<'_> {
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
    pub(super) fn known(ids: Vec<u32>, source: TokenSource) -> Self {
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
        } else if self.engine(model).is_lost() {
            TokenSource::Nobody
        } else {
            TokenSource::Engine
        }
    }

    pub(super) fn encoder(&self, model: &str) -> Option<&Arc<Encoder>> {
        self.encoders.get(model).or(self.for_all.as_ref())
    }

    pub(super) fn engine(&self, model: &str) -> Arc<EngineTokenizer> {
        Arc::clone(self.engines.lock().entry(model.to_owned()).or_default())
    }
}

impl Counters {
    /// Counts a prompt whose tokens nobody knows.
    pub(super) fn nobody(&self, problem: String) -> Tokens {
        // Relaxed: a statistic.
        self.untokenised.fetch_add(1, Ordering::Relaxed);
        Tokens { problem: Some(problem), ..Tokens::default() }
    }
}
