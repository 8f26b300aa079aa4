//! Finds and reads the files of a model directory that shape prompts.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::encoder::LoadError;

/// What a model directory says about prompts.
pub(super) struct ModelFiles {
    pub(super) tokenizer: PathBuf,
    pub(super) templates: Templates,
    /// Variables such as `bos_token`.
    pub(super) special_tokens: Vec<(String, Value)>,
}

/// Sources of the chat templates, with the file each comes from.
#[derive(Default)]
pub(super) struct Templates {
    pub(super) default: Option<Source>,
    /// Used when a request brings tools.
    pub(super) tool_use: Option<Source>,
}

pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) text: String,
}

impl ModelFiles {
    /// `tokenizer` is a `tokenizer.json` or the directory that holds one. The other files are
    /// looked for beside it. The template is `chat_template` if given, else `chat_template.jinja`,
    /// else the one in `chat_template.json`, else the one in `tokenizer_config.json`.
    pub(super) fn find(tokenizer: &Path, chat_template: Option<&Path>) -> Result<Self, LoadError> {
        let directory = if tokenizer.is_dir() {
            tokenizer
        } else if tokenizer.exists() {
            tokenizer.parent().unwrap_or(Path::new("."))
        } else {
            return Err(LoadError::NotFound { path: tokenizer.to_owned() });
        };
        let tokenizer =
            if tokenizer.is_dir() { tokenizer.join("tokenizer.json") } else { tokenizer.to_owned() };
        if !tokenizer.exists() {
            return Err(LoadError::NoTokenizerFile { directory: directory.to_owned() });
        }
        let config_path = directory.join("tokenizer_config.json");
        let config = read_json(&config_path)?.unwrap_or(Value::Null);
        let mut special_tokens = special_tokens(&config);
        if let Some(map) = read_json(&directory.join("special_tokens_map.json"))? {
            for (name, token) in self::special_tokens(&map) {
                if special_tokens.iter().all(|(known, _)| *known != name) {
                    special_tokens.push((name, token));
                }
            }
        }
        let templates = match chat_template {
            Some(path) => {
                let text = read(path)?.ok_or_else(|| LoadError::NoTemplateFile { path: path.to_owned() })?;
                Templates { default: Some(Source { path: path.to_owned(), text }), tool_use: None }
            }
            None => Templates::find(directory, config_path, &config)?,
        };
        Ok(Self { tokenizer, templates, special_tokens })
    }
}

impl Templates {
    fn find(directory: &Path, config_path: PathBuf, config: &Value) -> Result<Self, LoadError> {
        let path = directory.join("chat_template.jinja");
        if let Some(text) = read(&path)? {
            let tool_path = directory.join("additional_chat_templates").join("tool_use.jinja");
            let tool_use = read(&tool_path)?.map(|text| Source { path: tool_path, text });
            return Ok(Self { default: Some(Source { path, text }), tool_use });
        }
        let path = directory.join("chat_template.json");
        if let Some(json) = read_json(&path)? {
            return Self::from_json(path, &json);
        }
        Self::from_json(config_path, config)
    }

    /// The key `chat_template` of a JSON file: a string, or a list of `{name, template}`.
    pub(super) fn from_json(path: PathBuf, json: &Value) -> Result<Self, LoadError> {
        let source =
            |text: &Value| text.as_str().map(|text| Source { path: path.clone(), text: text.to_owned() });
        match &json["chat_template"] {
            Value::Null => Ok(Self::default()),
            text @ Value::String(_) => Ok(Self { default: source(text), tool_use: None }),
            Value::Array(list) => {
                let named = |name: &str| {
                    let entry = list.iter().find(|entry| entry["name"] == name);
                    entry.and_then(|entry| source(&entry["template"]))
                };
                Ok(Self { default: named("default"), tool_use: named("tool_use") })
            }
            _ => Err(LoadError::File {
                path,
                reason: "`chat_template` must be a string or a list of {name, template}".to_owned(),
            }),
        }
    }
}

/// Special tokens that templates may print: every `*_token`, the extra ones, and the list
/// `additional_special_tokens`. A token is a string or an object with `content`.
pub(super) fn special_tokens(config: &Value) -> Vec<(String, Value)> {
    let text = |token: &Value| match token {
        Value::String(_) => Some(token.clone()),
        Value::Object(token) => token.get("content").filter(|content| content.is_string()).cloned(),
        _ => None,
    };
    let extra = config["extra_special_tokens"].as_object();
    let mut tokens: Vec<(String, Value)> = config
        .as_object()
        .into_iter()
        .chain(extra)
        .flatten()
        .filter(|(name, _)| name.ends_with("_token"))
        .filter_map(|(name, token)| Some((name.clone(), text(token)?)))
        .collect();
    if let Some(list) = config["additional_special_tokens"].as_array() {
        let list = list.iter().filter_map(text).collect();
        tokens.push(("additional_special_tokens".to_owned(), Value::Array(list)));
    }
    tokens
}

/// The file's text, `None` where there is no such file.
fn read(path: &Path) -> Result<Option<String>, LoadError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(LoadError::Read { path: path.to_owned(), source }),
    }
}

fn read_json(path: &Path) -> Result<Option<Value>, LoadError> {
    let Some(text) = read(path)? else { return Ok(None) };
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|error| LoadError::File { path: path.to_owned(), reason: error.to_string() })
}
