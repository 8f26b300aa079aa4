//! The flags that name workers and tokenizers: `--worker` and `--tokenizer`.

use std::path::PathBuf;

use super::{ConfigError, ModelEntry};
use crate::fleet::{WorkerSpec, check_name, without_user};

/// `[MODEL=]PATH`. A path that contains `=` has to begin with `/` or `.`, which no model's name does.
pub(super) fn parse_tokenizer(text: &str) -> Result<ModelEntry, ConfigError> {
    let (name, path) = match text.split_once('=') {
        Some((name, path)) if !name.starts_with(['/', '.']) => (name, path),
        _ => ("*", text),
    };
    check_name(name).map_err(|error| ConfigError::Tokenizer { text: text.to_owned(), error })?;
    Ok(ModelEntry { name: name.to_owned(), tokenizer: PathBuf::from(path), chat_template: None })
}

/// `key=value,key=value`, with the keys of `[[worker]]`.
pub(super) fn parse_worker(text: &str) -> Result<WorkerSpec, ConfigError> {
    let failed = |problem: String| ConfigError::Worker { text: without_user(text).into_owned(), problem };
    let mut table = toml::Table::new();
    for part in text.split(',').filter(|part| !part.trim().is_empty()) {
        let (key, value) =
            part.split_once('=').ok_or_else(|| failed(format!("'{part}' is not key=value")))?;
        let (key, value) = (key.trim().replace('-', "_"), value.trim());
        let value = worker_value(&key, value).map_err(failed)?;
        if table.insert(key.clone(), value).is_some() {
            return Err(failed(format!("{key} is given twice")));
        }
    }
    table.try_into().map_err(|error: toml::de::Error| failed(error.message().to_owned()))
}

/// The value of a key of `--worker`. A model may be called `7` or `true`, so the key decides, not the text.
fn worker_value(key: &str, text: &str) -> Result<toml::Value, String> {
    match key {
        "id"
        | "block_size"
        | "first_rank"
        | "ranks"
        | "max_model_len"
        | "registered_ms"
        | "total_kv_blocks"
        | "max_num_batched_tokens"
        | "bootstrap_port" => text
            .parse()
            .map(toml::Value::Integer)
            .map_err(|_| format!("{key} = '{text}' is not a whole number that fits")),
        "router_hold" => text
            .parse()
            .map(toml::Value::Float)
            .map_err(|_| format!("{key} = '{text}' is not a number of seconds")),
        "eagle" => text.parse().map(toml::Value::Boolean).map_err(|_| "eagle is true or false".to_owned()),
        "lora_adapters" | "router_config" | "device_weights" => {
            Err(format!("{key} fits a [[worker]] of a file only (--config)"))
        }
        _ => Ok(toml::Value::String(text.to_owned())),
    }
}
