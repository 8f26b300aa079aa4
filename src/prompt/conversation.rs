//! The messages of a request, shaped as vLLM's chat server shapes them before templating.
//!
//! * A message keeps `role`, `content`, `name`, and by role `tool_calls`, `reasoning` (also as
//!   `reasoning_content`), `tool_call_id` or `tools`, in this order; other keys are dropped.
//! * `content` becomes one string or a list of parts, as the template expects ([`ContentFormat`]).
//!   In the first case text parts are joined with line breaks and null is the empty string.
//! * Arguments of tool calls, a JSON string on the wire, become the object they spell. Absent, null
//!   or empty arguments are `{}`; an empty list of tool calls counts as none.
//! * Tools are laid out as the server's typed form: `type`, `function` with `name`, `description`
//!   and `parameters` (null where absent), then further keys.
//! * Where the template does not know the role `developer`, those messages are system messages, and
//!   all system messages are joined into one at the start.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::content_format::ContentFormat;
use super::encoder::PromptError;

/// How parts that are not text are shown to the template.
#[derive(Clone, Copy)]
pub(super) enum Media<'a> {
    /// As the server does: `{"type": "image"}`, without the payload.
    Typed,
    /// As this text. With [`ContentFormat::Text`] it stands at the start of the content, because
    /// there servers put their placeholders before the text.
    Marked(&'a str),
}

/// Shaped messages: the request's own where they need no shaping, which spares a copy of most prompts.
pub(super) struct Conversation<'m> {
    pub(super) messages: Vec<Cow<'m, Value>>,
    /// Some part is not text.
    pub(super) has_media: bool,
}

/// Shapes `messages`, an array of objects that each have a string `role`.
pub(super) fn shape<'m>(
    messages: &'m Value,
    format: ContentFormat,
    media: Media<'_>,
) -> Result<Conversation<'m>, PromptError> {
    let messages = messages.as_array().ok_or(PromptError::Messages)?;
    let mut conversation = Conversation { messages: Vec::with_capacity(messages.len()), has_media: false };
    for (index, message) in messages.iter().enumerate() {
        let fields = message.as_object().ok_or(PromptError::Messages)?;
        if is_shaped(fields, format) {
            conversation.messages.push(Cow::Borrowed(message));
            continue;
        }
        let (shaped, has_media) = shape_message(fields, index, format, media)?;
        conversation.messages.push(Cow::Owned(shaped));
        conversation.has_media |= has_media;
    }
    Ok(conversation)
}

/// Whether [`shape_message`] would make the same of it.
fn is_shaped(message: &Map<String, Value>, format: ContentFormat) -> bool {
    let mut fields = message.iter();
    let (Some((role, Value::String(who))), Some((content, Value::String(_))), None) =
        (fields.next(), fields.next(), fields.next())
    else {
        return false;
    };
    role == "role" && content == "content" && who != "developer" && matches!(format, ContentFormat::Text)
}

fn shape_message(
    message: &Map<String, Value>,
    index: usize,
    format: ContentFormat,
    media: Media<'_>,
) -> Result<(Value, bool), PromptError> {
    let role = message.get("role").and_then(Value::as_str).ok_or(PromptError::Messages)?;
    let content = Content::read(message.get("content").unwrap_or(&Value::Null), index)?;
    let has_media = content.has_media();
    let mut shaped = Map::new();
    shaped.insert("role".into(), role.into());
    shaped.insert("content".into(), content.shape(format, media));
    match role {
        "assistant" => {
            if let Some(calls) = message.get("tool_calls").filter(|calls| !calls.is_null()) {
                let calls = tool_calls(calls, index)?;
                if calls.as_array().is_none_or(|calls| !calls.is_empty()) {
                    shaped.insert("tool_calls".into(), calls);
                }
            }
            let reasoning = ["reasoning", "reasoning_content"].into_iter().find_map(|key| message.get(key));
            if let Some(reasoning) = reasoning.filter(|reasoning| !reasoning.is_null()) {
                shaped.insert("reasoning".into(), reasoning.clone());
                shaped.insert("reasoning_content".into(), reasoning.clone());
            }
        }
        "tool" => {
            if let Some(id) = message.get("tool_call_id") {
                shaped.insert("tool_call_id".into(), id.clone());
            }
        }
        _ => {}
    }
    if let Some(name @ Value::String(_)) = message.get("name") {
        shaped.insert("name".into(), name.clone());
    }
    if role == "developer" {
        shaped.insert("tools".into(), message.get("tools").cloned().unwrap_or(Value::Null));
    }
    Ok((Value::Object(shaped), has_media))
}

/// Content as it came, read once.
struct Content<'m>(Vec<Part<'m>>);

enum Part<'m> {
    Text(&'m str),
    /// A string that was not wrapped in an object.
    Bare(&'m str),
    /// Anything else, under the name that templates know it by.
    Media(&'m str),
}

impl<'m> Content<'m> {
    fn read(content: &'m Value, message: usize) -> Result<Self, PromptError> {
        let parts = match content {
            Value::Null => Vec::new(),
            Value::String(text) => vec![Part::Text(text)],
            Value::Array(parts) => {
                let mut read = Vec::with_capacity(parts.len());
                for (part, value) in parts.iter().enumerate() {
                    read.extend(Part::read(value).ok_or(PromptError::Part { message, part })?);
                }
                read
            }
            _ => return Err(PromptError::Content { message }),
        };
        Ok(Self(parts))
    }

    fn has_media(&self) -> bool {
        self.0.iter().any(|part| matches!(part, Part::Media(_)))
    }

    fn shape(&self, format: ContentFormat, media: Media<'_>) -> Value {
        match format {
            ContentFormat::Parts => self.0.iter().map(|part| part.shape(media)).collect(),
            ContentFormat::Text => {
                let marker = match media {
                    Media::Marked(marker) if self.has_media() => Some(marker),
                    _ => None,
                };
                let texts = self.0.iter().filter_map(|part| match part {
                    Part::Text(text) | Part::Bare(text) => Some(*text),
                    Part::Media(_) => None,
                });
                Value::String(marker.into_iter().chain(texts).collect::<Vec<_>>().join("\n"))
            }
        }
    }
}

impl<'m> Part<'m> {
    /// `None` for what is no part at all, `Some(None)` for a text part without text (skipped).
    fn read(value: &'m Value) -> Option<Option<Self>> {
        let part = match value {
            Value::String(text) => return Some(Some(Self::Bare(text))),
            Value::Object(part) => part,
            _ => return None,
        };
        let kind = match part.get("type") {
            Some(kind) => kind.as_str()?,
            // Some clients leave the type out; the payload's key tells it.
            None => ["text", "image_url", "audio_url", "input_audio", "video_url"]
                .into_iter()
                .find(|key| part.contains_key(*key))?,
        };
        let text_key = match kind {
            "text" | "input_text" | "output_text" => "text",
            "refusal" | "thinking" => kind,
            "image_url" | "input_image" | "image_pil" | "image_embeds" => {
                return Some(Some(Self::Media("image")));
            }
            "audio_url" | "input_audio" | "audio_embeds" => return Some(Some(Self::Media("audio"))),
            "video_url" => return Some(Some(Self::Media("video"))),
            other => return Some(Some(Self::Media(other))),
        };
        match part.get(text_key)? {
            Value::String(text) => Some(Some(Self::Text(text))),
            Value::Null => Some(None),
            _ => None,
        }
    }

    fn shape(&self, media: Media<'_>) -> Value {
        match (self, media) {
            (Self::Text(text), _) => json!({"type": "text", "text": text}),
            (Self::Bare(text), _) => json!(text),
            (Self::Media(kind), Media::Typed) => json!({"type": kind}),
            (Self::Media(_), Media::Marked(marker)) => json!({"type": "text", "text": marker}),
        }
    }
}

fn tool_calls(calls: &Value, message: usize) -> Result<Value, PromptError> {
    let mut calls = calls.clone();
    for (index, call) in calls.as_array_mut().into_iter().flatten().enumerate() {
        let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) else { continue };
        let arguments = match function.get("arguments") {
            None | Some(Value::Null) => json!({}),
            Some(Value::String(text)) if text.is_empty() => json!({}),
            Some(Value::String(text)) => serde_json::from_str(text)
                .map_err(|source| PromptError::Arguments { message, call: index, source })?,
            Some(_) => continue,
        };
        function.insert("arguments".into(), arguments);
    }
    Ok(calls)
}

/// Lays out the request's tools as the server's typed form does.
pub(super) fn shape_tools(tools: &Value) -> Value {
    let Some(tools) = tools.as_array() else { return tools.clone() };
    tools
        .iter()
        .map(|tool| {
            let Some(function) = tool.get("function").and_then(Value::as_object) else { return tool.clone() };
            let typed = in_order(&["name", "description", "parameters"], function);
            let mut tool = in_order(&["type", "function"], tool.as_object().unwrap_or(&Map::new()));
            if tool.get("type").is_some_and(Value::is_null) {
                tool.insert("type".into(), "function".into());
            }
            tool.insert("function".into(), Value::Object(typed));
            Value::Object(tool)
        })
        .collect()
}

/// `map` with `first` keys in front, null where absent.
fn in_order(first: &[&str], map: &Map<String, Value>) -> Map<String, Value> {
    let mut ordered: Map<String, Value> =
        first.iter().map(|key| ((*key).to_owned(), map.get(*key).cloned().unwrap_or(Value::Null))).collect();
    for (key, value) in map {
        if !first.contains(&key.as_str()) {
            ordered.insert(key.clone(), value.clone());
        }
    }
    ordered
}

/// Turns developer messages into system messages and joins all system messages at the start.
pub(super) fn developer_as_system(messages: &mut Vec<Cow<'_, Value>>) {
    if !messages.iter().any(|message| message["role"] == "developer") {
        return;
    }
    for message in messages.iter_mut().filter(|message| message["role"] == "developer") {
        if let Some(message) = message.to_mut().as_object_mut() {
            message.insert("role".into(), "system".into());
            message.shift_remove("tools");
        }
    }
    let is_system = |message: &Cow<'_, Value>| message["role"] == "system";
    if !messages.iter().skip(1).any(is_system) {
        return;
    }
    let texts: Vec<String> = messages
        .iter()
        .filter(|message| is_system(message))
        .map(|message| match &message["content"] {
            Value::Array(parts) => {
                let text = |part: &Value| part.as_str().or(part["text"].as_str()).map(str::to_owned);
                parts.iter().filter_map(text).collect::<Vec<_>>().join("\n")
            }
            content => content.as_str().unwrap_or_default().to_owned(),
        })
        .filter(|text| !text.is_empty())
        .collect();
    messages.retain(|message| !is_system(message));
    messages.insert(0, Cow::Owned(json!({"role": "system", "content": texts.join("\n\n")})));
}
