//! The face of the room: one model's tokenizer and chat templates, and the way through them.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::Value;

use super::content_format::ContentFormat;
use super::conversation::{self, Conversation, Media};
use super::draft::Draft;
use super::media::{self, Marks};
use super::model_files::ModelFiles;
use super::segment_cache::SegmentCache;
use super::template::{ChatTemplates, Traits, Variables};
use super::tokenizer::Tokenizer;

/// Turns requests for one model into tokens. Immutable; share it by reference.
pub struct Encoder {
    tokenizer: Tokenizer,
    templates: ChatTemplates,
}

/// A chat request, as far as it shapes the prompt.
#[derive(Clone, Copy, Debug)]
pub struct ChatInput<'a> {
    /// The request's `messages`: an array of objects with a string `role`.
    pub messages: &'a Value,
    /// The request's `tools`. An engine that drops tools for `tool_choice: "none"` is given `None`.
    pub tools: Option<&'a Value>,
    /// Documents for templates that quote them.
    pub documents: Option<&'a Value>,
    /// Further template variables, an object. They override everything but the messages.
    pub chat_template_kwargs: Option<&'a Value>,
    /// End with the opening of an assistant's turn.
    pub add_generation_prompt: bool,
    /// Leave the last message open, so that the model goes on with it.
    pub continue_final_message: bool,
    /// Let the tokenizer add its own special tokens around the rendered text.
    pub add_special_tokens: bool,
    /// What `strftime_now` prints, in UTC. Engines take their own clock at the time they render.
    pub now: SystemTime,
}

impl<'a> ChatInput<'a> {
    /// A request with nothing but messages, and the defaults of an OpenAI-compatible server: a
    /// generation prompt, no further special tokens, the system's time.
    pub fn new(messages: &'a Value) -> Self {
        Self {
            messages,
            tools: None,
            documents: None,
            chat_template_kwargs: None,
            add_generation_prompt: true,
            continue_final_message: false,
            add_special_tokens: false,
            now: SystemTime::now(),
        }
    }
}

/// The tokens of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Token ids, in order.
    pub tokens: Vec<u32>,
    /// False when the prompt has parts that are not text: the tokens are a prefix of the engine's,
    /// ending before the first such part.
    pub complete: bool,
}

impl Encoder {
    /// Loads a model. `tokenizer` is a `tokenizer.json` file or a model directory that holds one;
    /// `tokenizer_config.json`, `special_tokens_map.json`, `chat_template.jinja` and
    /// `chat_template.json` are read from beside it. `chat_template` replaces the model's own
    /// template. A model without a template loads; only [`Self::encode_chat`] needs one.
    ///
    /// # Errors
    /// [`LoadError`] names the file and what is accepted.
    pub fn load(tokenizer: &Path, chat_template: Option<&Path>) -> Result<Self, LoadError> {
        let files = ModelFiles::find(tokenizer, chat_template)?;
        Ok(Self {
            tokenizer: Tokenizer::from_file(&files.tokenizer)?,
            templates: ChatTemplates::compile(&files.templates, files.special_tokens)?,
        })
    }

    pub(super) fn from_parts(tokenizer: Tokenizer, templates: ChatTemplates) -> Self {
        Self { tokenizer, templates }
    }

    /// The tokens of a plain prompt. Servers add special tokens to it by default.
    ///
    /// # Errors
    /// [`PromptError::Tokenizer`] when the model cannot represent the text.
    pub fn encode_text(&self, text: &str, add_special_tokens: bool) -> Result<Encoded, PromptError> {
        Ok(Encoded { tokens: self.tokenizer.encode(text, add_special_tokens)?, complete: true })
    }

    /// The tokens of a chat. With parts that are not text they end before the first of them, see
    /// [`Encoded::complete`].
    ///
    /// # Errors
    /// Any [`PromptError`]; [`PromptError::is_request_fault`] tells whose fault it is.
    pub fn encode_chat(&self, input: &ChatInput<'_>) -> Result<Encoded, PromptError> {
        let Rendered { text, complete } = self.render_chat(input)?;
        self.tokenizer.encode_prompt(&text, input.add_special_tokens, complete)
    }

    /// A chat with the tokens of its segments that `cache` holds, to be [finished](Self::finish).
    ///
    /// # Errors
    /// As [`Self::encode_chat`], but for what tokenising may fail with.
    pub fn draft_chat(&self, input: &ChatInput<'_>, cache: &SegmentCache) -> Result<Draft, PromptError> {
        let Rendered { text, complete } = self.render_chat(input)?;
        Ok(Draft::new(&self.tokenizer, text, input.add_special_tokens, complete, cache))
    }

    /// The same of a plain prompt.
    pub fn draft_text(&self, text: String, add_special_tokens: bool, cache: &SegmentCache) -> Draft {
        Draft::new(&self.tokenizer, text, add_special_tokens, true, cache)
    }

    /// Tokenises what `draft`, which this encoder made, leaves open, and keeps it in `cache`. The tokens are those of
    /// [`Self::encode_chat`] or [`Self::encode_text`]. Between segments `given_up` is asked, and once it says true there is
    /// no result.
    ///
    /// # Errors
    /// [`PromptError::Tokenizer`] when the model cannot represent the text.
    pub fn finish(
        &self,
        draft: Draft,
        cache: &SegmentCache,
        given_up: &dyn Fn() -> bool,
    ) -> Result<Option<Encoded>, PromptError> {
        draft.finish(&self.tokenizer, cache, given_up)
    }

    /// The prompt text of a chat, before it becomes tokens; to show why a prompt is what it is.
    ///
    /// # Errors
    /// As [`Self::encode_chat`].
    pub fn render_chat(&self, input: &ChatInput<'_>) -> Result<Rendered, PromptError> {
        if input.continue_final_message && input.add_generation_prompt {
            return Err(PromptError::ContinueAndGenerate);
        }
        let rendering = Rendering::prepare(&self.templates, input)?;
        let shown = rendering.shape(Media::Typed)?;
        if shown.has_media {
            rendering.certain_text().map(|text| Rendered { text, complete: false })
        } else if input.continue_final_message {
            rendering.open_ended(shown).map(|text| Rendered { text, complete: true })
        } else {
            rendering.render(&shown.messages).map(|text| Rendered { text, complete: true })
        }
    }

    /// The text of `tokens`, special tokens included.
    pub fn decode(&self, tokens: &[u32]) -> String {
        self.tokenizer.decode(tokens)
    }

    /// Number of distinct tokens.
    pub fn count_vocab(&self) -> usize {
        self.tokenizer.count_vocab()
    }

    /// Ids of all tokens that are not special, ascending.
    pub fn ordinary_tokens(&self) -> &[u32] {
        self.tokenizer.ordinary_tokens()
    }
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoder").field("tokenizer", &self.tokenizer).finish_non_exhaustive()
    }
}

/// The prompt text of a chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The text, cut before the first part that is not text.
    pub text: String,
    /// Nothing was cut.
    pub complete: bool,
}

/// One request and the template it goes through.
struct Rendering<'a> {
    templates: &'a ChatTemplates,
    template: Traits,
    input: &'a ChatInput<'a>,
    tools: Option<Value>,
}

impl<'a> Rendering<'a> {
    fn prepare(templates: &'a ChatTemplates, input: &'a ChatInput<'a>) -> Result<Self, PromptError> {
        let tools = input.tools.filter(|tools| !tools.is_null());
        let template = templates.choose(tools.is_some())?;
        Ok(Self { templates, template, input, tools: tools.map(conversation::shape_tools) })
    }

    fn shape(&self, media: Media<'_>) -> Result<Conversation<'a>, PromptError> {
        let mut shaped = conversation::shape(self.input.messages, self.template.content, media)?;
        if !self.template.knows_developer {
            conversation::developer_as_system(&mut shaped.messages);
        }
        Ok(shaped)
    }

    fn render(&self, messages: &[Cow<'_, Value>]) -> Result<String, PromptError> {
        self.templates.render(
            self.template,
            &Variables {
                messages,
                tools: self.tools.as_ref(),
                documents: self.input.documents,
                kwargs: self.input.chat_template_kwargs,
                add_generation_prompt: self.input.add_generation_prompt,
                now: self.input.now,
            },
        )
    }

    /// The text before the first part that is not text, as far as it is certain.
    fn certain_text(&self) -> Result<String, PromptError> {
        let marks = Marks::for_request(self.input.messages);
        let shown = match self.template.content {
            ContentFormat::Parts => Media::Typed,
            ContentFormat::Text => Media::Marked(&marks.first),
        };
        let shown = self.render(&self.shape(shown)?.messages)?;
        let marked = self.render(&self.shape(Media::Marked(&marks.second))?.messages)?;
        Ok(media::certain(&shown, &marked, &marks.second).to_owned())
    }

    /// The text up to the end of the last message's content, without what closes its turn.
    ///
    /// The content is rendered with a mark and a space after it. If the template keeps the space,
    /// it keeps the content's own trailing space too; if it trims, so must the prompt.
    fn open_ended(&self, mut shaped: Conversation<'_>) -> Result<String, PromptError> {
        let mark = Marks::for_request(self.input.messages).first;
        let last = shaped.messages.last_mut().ok_or(PromptError::NothingToContinue)?;
        let text = match &mut last.to_mut()["content"] {
            Value::Array(parts) => parts.iter_mut().rev().find_map(|part| part.get_mut("text")),
            text => Some(text),
        };
        let Some(Value::String(text)) = text else { return Err(PromptError::NothingToContinue) };
        text.push_str(&mark);
        text.push(' ');
        let mut rendered = self.render(&shaped.messages)?;
        let end = rendered.rfind(&mark).ok_or(PromptError::NothingToContinue)?;
        let keeps_space = rendered[end + mark.len()..].starts_with(' ');
        rendered.truncate(end);
        if !keeps_space {
            rendered.truncate(rendered.trim_end().len());
        }
        Ok(rendered)
    }
}

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Nothing lies at the path.
    #[error("no tokenizer at {}: give a tokenizer.json file, or a model directory that holds one", path.display())]
    NotFound {
        /// As given.
        path: PathBuf,
    },
    /// The directory has no tokenizer of the accepted kind.
    #[error(
        "{} holds no tokenizer.json: give a model directory in Hugging Face's layout with a \
         fast tokenizer, or the tokenizer.json file itself",
        directory.display()
    )]
    NoTokenizerFile {
        /// As given.
        directory: PathBuf,
    },
    /// The template file that was asked for does not exist.
    #[error("no chat template at {}: give a file with a jinja chat template", path.display())]
    NoTemplateFile {
        /// As given.
        path: PathBuf,
    },
    /// A file exists but cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file is no usable tokenizer.
    #[error(
        "{} is not a usable tokenizer.json ({reason}); accepted is the JSON that Hugging Face's \
         tokenizers library writes, not a sentencepiece or tiktoken model",
        path.display()
    )]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What the parser says.
        reason: String,
    },
    /// Another file of the model directory is not what it should be.
    #[error("cannot use {}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// Why a request could not become tokens. Messages never quote the prompt.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The model directory has no chat template and none was given.
    #[error(
        "the model has no chat template, so chat requests cannot be encoded: add chat_template.jinja \
         to the model directory, or name a template file"
    )]
    NoTemplate,
    /// `messages` has the wrong shape.
    #[error("`messages` must be an array of objects, each with a string `role`")]
    Messages,
    /// A message's content has the wrong shape.
    #[error("`messages[{message}].content` must be a string, null, or an array of parts")]
    Content {
        /// Position in `messages`.
        message: usize,
    },
    /// A part of a message's content has the wrong shape.
    #[error(
        "`messages[{message}].content[{part}]` must be a string, or an object with a `type` and the \
         payload that the type names"
    )]
    Part {
        /// Position in `messages`.
        message: usize,
        /// Position in `content`.
        part: usize,
    },
    /// A tool call's arguments are not JSON.
    #[error("`messages[{message}].tool_calls[{call}].function.arguments` is not JSON: {source}")]
    Arguments {
        /// Position in `messages`.
        message: usize,
        /// Position in `tool_calls`.
        call: usize,
        /// What the parser says.
        source: serde_json::Error,
    },
    /// `continue_final_message` and `add_generation_prompt` exclude each other.
    #[error("`continue_final_message` needs `add_generation_prompt` to be false")]
    ContinueAndGenerate,
    /// `continue_final_message` without a last message whose text the template prints.
    #[error("`continue_final_message` needs a last message with text that the chat template keeps")]
    NothingToContinue,
    /// The template raised an exception, usually about the order of roles.
    #[error("the chat template refuses these messages: {0}")]
    Refused(String),
    /// The template failed.
    #[error("the chat template failed: {0}")]
    Template(String),
    /// The prompt is longer than any context.
    #[error("the chat template printed more than {limit} bytes")]
    TooLong {
        /// Bytes allowed.
        limit: usize,
    },
    /// The tokenizer failed.
    #[error("the tokenizer failed: {0}")]
    Tokenizer(String),
}

impl PromptError {
    /// True when another request to the same model may succeed: the client should hear of it. False
    /// when the model's files are at fault.
    pub fn is_request_fault(&self) -> bool {
        !matches!(self, Self::NoTemplate | Self::Template(_) | Self::Tokenizer(_))
    }
}
