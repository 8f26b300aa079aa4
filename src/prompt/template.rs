//! Chat templates: messages to prompt text, as jinja2 with Hugging Face's settings renders them.
//!
//! The settings: `trim_blocks`, `lstrip_blocks`, `break` and `continue`, no escaping, undefined
//! values that print as nothing, Python's methods and way of printing, [`super::python::to_json`]
//! as `tojson`, and the functions `raise_exception` and `strftime_now`.
//!
//! Templates are the operator's own files, but what they do with a message is not foreseen, so a
//! rendering is bounded: [`MAX_OUTPUT`] bytes of output, the engine's recursion limit, and ranges
//! of at most 100,000 steps. Not bounded is the time of nested loops that print nothing.
//!
//! Known differences from jinja2: `~` writes `true`, `false` and `none` in lower case, and the
//! filters `truncate`, `wordwrap`, `center` and `pprint` are unknown.

use std::borrow::Cow;
use std::io;
use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, Value};

use super::content_format::{self, ContentFormat};
use super::encoder::{LoadError, PromptError};
use super::model_files::{Source, Templates};
use super::{python, time_format};

/// Bytes that one rendering may print. The longest contexts in use are some 10 MB of text.
pub(super) const MAX_OUTPUT: usize = 64 << 20;

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

/// The compiled templates of one model.
pub(super) struct ChatTemplates {
    environment: Environment<'static>,
    default: Option<Traits>,
    tool_use: Option<Traits>,
    special_tokens: Vec<(String, Value)>,
}

/// What a template's source says about the messages it wants.
#[derive(Clone, Copy)]
pub(super) struct Traits {
    name: &'static str,
    pub(super) content: ContentFormat,
    /// It names the role `developer`.
    pub(super) knows_developer: bool,
}

/// Variables of one rendering.
pub(super) struct Variables<'a> {
    pub(super) messages: &'a [Cow<'a, serde_json::Value>],
    pub(super) tools: Option<&'a serde_json::Value>,
    pub(super) documents: Option<&'a serde_json::Value>,
    pub(super) kwargs: Option<&'a serde_json::Value>,
    pub(super) add_generation_prompt: bool,
    pub(super) now: SystemTime,
}

impl ChatTemplates {
    /// Compiles what a model directory offers.
    pub(super) fn compile(
        templates: &Templates,
        special_tokens: Vec<(String, serde_json::Value)>,
    ) -> Result<Self, LoadError> {
        let mut environment = environment();
        let mut compile = |name: &'static str, source: Option<&Source>| {
            source.map(|source| add(&mut environment, name, source)).transpose()
        };
        let default = compile(DEFAULT, templates.default.as_ref())?;
        let tool_use = compile(TOOL_USE, templates.tool_use.as_ref())?;
        let special_tokens =
            special_tokens.into_iter().map(|(name, token)| (name, python::from_json(&token))).collect();
        Ok(Self { environment, default, tool_use, special_tokens })
    }

    /// The template for a request with or without tools.
    pub(super) fn choose(&self, has_tools: bool) -> Result<Traits, PromptError> {
        let tool_use = if has_tools { self.tool_use } else { None };
        tool_use.or(self.default).ok_or(PromptError::NoTemplate)
    }

    /// Renders the chosen template.
    pub(super) fn render(&self, template: Traits, variables: &Variables<'_>) -> Result<String, PromptError> {
        let template = self.environment.get_template(template.name).map_err(|error| failed(&error))?;
        let mut out = Bounded(Vec::with_capacity(likely_bytes(variables.messages)));
        template.render_captured_to(self.context(variables), &mut out).map_err(|error| failed(&error))?;
        String::from_utf8(out.0).map_err(|error| PromptError::Template(error.to_string()))
    }

    fn context(&self, variables: &Variables<'_>) -> Value {
        let or_none = |json: Option<&serde_json::Value>| Value::from(json.map(python::from_json));
        let now = variables.now;
        let strftime_now = Value::from_function(move |format: &str| time_format::strftime(now, format));
        let fixed = [
            ("tools".to_owned(), or_none(variables.tools)),
            ("documents".to_owned(), or_none(variables.documents)),
            ("add_generation_prompt".to_owned(), Value::from(variables.add_generation_prompt)),
            ("strftime_now".to_owned(), strftime_now),
        ];
        // Later entries win: a request may override anything but its own messages.
        let kwargs = variables.kwargs.and_then(serde_json::Value::as_object).into_iter().flatten();
        let messages: Vec<Value> =
            variables.messages.iter().map(|message| python::from_json(message)).collect();
        Value::from_pairs(
            self.special_tokens
                .iter()
                .cloned()
                .chain(fixed)
                .chain(kwargs.map(|(name, value)| (name.clone(), python::from_json(value))))
                .chain([("messages".to_owned(), Value::from(messages))]),
        )
    }
}

/// What a rendering of `messages` will probably print: room for it at once spares copying it as it grows.
fn likely_bytes(messages: &[Cow<'_, serde_json::Value>]) -> usize {
    const FRAME: usize = 64;
    let text = |message: &serde_json::Value| message["content"].as_str().map_or(0, str::len);
    messages.iter().map(|message| text(message) + FRAME).sum::<usize>() + 4 * FRAME
}

fn add(
    environment: &mut Environment<'static>,
    name: &'static str,
    source: &Source,
) -> Result<Traits, LoadError> {
    let prepared = content_format::prepare(&source.text);
    environment.add_template_owned(name, prepared).map_err(|error| LoadError::File {
        path: source.path.clone(),
        reason: format!("chat template `{name}`: {}", describe(&error)),
    })?;
    Ok(Traits {
        name,
        content: content_format::detect(&source.text),
        knows_developer: ["\"developer\"", "'developer'"].iter().any(|role| source.text.contains(role)),
    })
}

/// An environment with Hugging Face's settings.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_debug(false); // would copy prompts into errors
    environment.set_unknown_method_callback(python::method);
    environment.set_formatter(format_value);
    environment.add_filter("tojson", python::to_json);
    environment.add_filter("string", |value: &Value| {
        let mut text = String::new();
        python::write_str(value, &mut text).map(|()| text)
    });
    // Python's strings and dictionaries have a length and can be indexed, so jinja2 calls them
    // sequences; templates that ask mean exactly this.
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map)
    });
    environment
        .add_test("iterable", |value: &Value| value.kind() == ValueKind::String || value.try_iter().is_ok());
    environment.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        let refusal = Refusal(message.to_string());
        Err(Error::new(ErrorKind::InvalidOperation, "the template refused the messages").with_source(refusal))
    });
    environment
}

/// Prints a value as Python does, and counts what is printed: text that the template captures in a
/// variable never reaches [`Bounded`].
fn format_value(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    #[derive(Default)]
    struct Printed(usize);

    let mut converted = String::new();
    let text = match value.as_str() {
        Some(text) => text,
        None => {
            python::write_str(value, &mut converted)?;
            &converted
        }
    };
    let printed = state.get_or_insert_extension(Printed::default());
    // One more per value, so that printing nothing for ever ends too.
    printed.0 += text.len() + 1;
    if printed.0 > MAX_OUTPUT {
        return Err(Error::new(ErrorKind::WriteFailure, "too much output"));
    }
    out.write_str(text).map_err(|error| Error::new(ErrorKind::WriteFailure, error.to_string()))
}

/// Output that refuses to grow beyond [`MAX_OUTPUT`].
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_OUTPUT {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "too much output"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a template passed to `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

fn failed(error: &Error) -> PromptError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(Refusal(message)) = current.downcast_ref() {
            return PromptError::Refused(message.clone());
        }
        cause = current.source();
    }
    if error.kind() == ErrorKind::WriteFailure {
        return PromptError::TooLong { limit: MAX_OUTPUT };
    }
    PromptError::Template(describe(error))
}

fn describe(error: &Error) -> String {
    let line = error.line().map(|line| format!(" (line {line})")).unwrap_or_default();
    match error.detail() {
        Some(detail) => format!("{}: {detail}{line}", error.kind()),
        None => format!("{}{line}", error.kind()),
    }
}
