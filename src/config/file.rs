//! The configuration file.
//!
//! ```toml
//! [frontend]
//! port = 8080
//!
//! [router]
//! router_mode = "kv"
//!
//! [[model]]
//! name = "llama"
//! tokenizer = "/models/llama"
//!
//! [[worker]]
//! url = "http://10.0.0.5:8000"
//! model = "llama"
//! kv_events_endpoint = "tcp://*:5557"
//! kv_replay_endpoint = "tcp://*:5558"
//! ```

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::Args;
use serde::{Deserialize, de::DeserializeOwned};
use thiserror::Error;

use super::{
    ConfigError,
    flags::RouterSection,
    frontend::{FrontendArgs, WORKERS},
};
use crate::fleet::{WorkerSpec, check_name};

/// Where the file is.
#[derive(Args, Clone, Debug)]
pub struct FileArgs {
    /// TOML file with the same settings, and with models and workers; flags and environment win over it
    #[arg(long, help_heading = WORKERS, env = "KVROUTE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// A file as it stands. Unknown keys are refused.
#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct ConfigFile {
    /// Where it was read, to name it as the source of what it says.
    #[serde(skip)]
    pub path: PathBuf,
    /// All of it but `[router]`, as it stands.
    #[serde(skip)]
    pub beside_router: toml::Table,
    /// The flags of `kvroute frontend`, by their names with underscores.
    pub frontend: FrontendArgs,
    /// The router flags, by their names with underscores.
    pub router: RouterSection,
    /// Models and how their prompts become tokens.
    pub model: Vec<ModelEntry>,
    /// Workers that are there from the start.
    pub worker: Vec<WorkerSpec>,
}

/// How the prompts of one model become tokens.
#[derive(Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct ModelEntry {
    /// The model's name.
    pub name: String,
    /// Its `tokenizer.json`, or the model directory that holds it.
    pub tokenizer: PathBuf,
    /// A chat template that replaces the model's own.
    #[serde(default)]
    pub chat_template: Option<PathBuf>,
}

impl ModelEntry {
    /// Whether there can be a model of this name.
    ///
    /// # Errors
    /// [`ConfigError::Model`].
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        check_name(&self.name).map_err(|error| ConfigError::Model { name: self.name.clone(), error })
    }
}

/// A file that cannot be used.
#[derive(Debug, Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read the configuration file {path}: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// It is not what it should be; the message has line, column and key.
    #[error("{path}: {error}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        error: Box<toml::de::Error>,
    },
}

impl ConfigFile {
    /// Reads a file.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let text = read_text(path)?;
        let file: Self = parse(path, &text)?;
        let mut beside_router: toml::Table = parse(path, &text)?;
        beside_router.remove("router");
        Ok(Self { path: path.to_owned(), beside_router, ..file })
    }

    /// The router flags and where they are from.
    #[must_use]
    pub fn router_section(&self) -> (&Path, &RouterSection) {
        (&self.path, &self.router)
    }
}

/// A file's text as what its keys make.
pub(super) fn read_toml<T: DeserializeOwned>(path: &Path) -> Result<T, FileError> {
    parse(path, &read_text(path)?)
}

fn read_text(path: &Path) -> Result<String, FileError> {
    fs::read_to_string(path).map_err(|error| FileError::Read { path: path.to_owned(), error })
}

fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, FileError> {
    toml::from_str(text).map_err(|error| FileError::Parse { path: path.to_owned(), error: Box::new(error) })
}

/// The example in the docs of a source file.
#[cfg(test)]
pub(super) fn example(source: &str) -> String {
    let lines = source.lines().map_while(|line| line.strip_prefix("//!"));
    let lines: Vec<_> = lines.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
    lines.split(|line| line.starts_with("```")).nth(1).unwrap().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::flags::{Field, Value};

    #[test]
    fn the_example_above_reads() {
        let file: ConfigFile = toml::from_str(&example(include_str!("file.rs"))).unwrap();
        assert_eq!(file.router.get(Field::RouterMode), Some(&Value::Text("kv".to_owned())));
        assert_eq!((file.model.len(), file.worker.len()), (1, 1));
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line() {
        let error = toml::from_str::<ConfigFile>("[frontend]\nport = 1\nrouter_mode = 'kv'").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("router_mode") && text.contains("line 3"), "{text}");
    }
}
