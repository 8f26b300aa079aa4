//! The flags of `kvroute doctor`, and the worker that they describe.

use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::{ArgAction, Args, value_parser};
use thiserror::Error;

use crate::{
    doctor::{Patience, Source, Subject, Told},
    fleet::{SpecError, StreamDirection, WorkerSpec},
    prompt::{Encoder, LoadError},
    proxy::PoolSettings,
};

/// Flags of `kvroute doctor`. What is not given, the engine is asked for, as `kvroute worker` does.
#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    /// Base URL of the engine's OpenAI-compatible server
    #[arg(long, env = "KVROUTE_ENGINE_URL", default_value = "http://127.0.0.1:8000", value_name = "URL")]
    pub engine_url: String,
    /// Name of the served model [default: what the engine says]
    #[arg(long, value_name = "NAME")]
    pub model_name: Option<String>,
    /// The tokenizer that the router uses for it, as a tokenizer.json or the model directory (--model DIR is the same)
    /// [default: the router asks the engine's /tokenize]
    #[arg(long, alias = "model", value_name = "PATH")]
    pub tokenizer: Option<PathBuf>,
    /// The chat template that the router uses for it [default: the one beside the tokenizer]
    #[arg(long, value_name = "FILE", requires = "tokenizer")]
    pub chat_template: Option<PathBuf>,
    /// Tokens per KV block, as announced to the router [default: what the engine says]
    #[arg(long, alias = "block-size", value_name = "TOKENS", value_parser = value_parser!(u32).range(1..))]
    pub engine_block_size: Option<u32>,
    /// Data-parallel ranks behind the URL, 1 to 1024 [default: what the engine says, else 1]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=1024))]
    pub engine_ranks: Option<u32>,
    /// ZMQ endpoint of the engine's KV events, of rank 0 (--events is the same) [default: what the engine says]
    #[arg(long, alias = "events", value_name = "ENDPOINT")]
    pub kv_events_endpoint: Option<String>,
    /// ZMQ endpoint of the engine's replay socket, of rank 0 [default: what the engine says]
    #[arg(long, value_name = "ENDPOINT")]
    pub kv_replay_endpoint: Option<String>,
    /// connect if the router connects to the engine's event socket, bind if the engine connects to the router's
    /// [default: by the endpoint that the engine says, else connect]
    #[arg(long, value_name = "DIRECTION", value_parser = direction)]
    pub kv_events_direction: Option<StreamDirection>,
    /// A LoRA adapter that is announced; repeat it for several [default: those that the engine serves]
    #[arg(long, value_name = "NAME")]
    pub lora_adapter: Vec<String>,
    /// The engine's blocks are announced to look one token ahead (EAGLE)
    #[arg(long, action = ArgAction::SetTrue)]
    pub eagle: bool,
    /// Seconds that each of the engine's answers may take, the canary's included
    #[arg(long, default_value_t = 20, value_name = "SECONDS", value_parser = value_parser!(u64).range(1..=600))]
    pub answer_timeout: u64,
    /// Seconds to wait for the canary's KV events
    #[arg(long, default_value_t = 3, value_name = "SECONDS", value_parser = value_parser!(u64).range(1..=600))]
    pub events_timeout: u64,
    /// Print JSON
    #[arg(long, action = ArgAction::SetTrue)]
    pub json: bool,
}

fn direction(text: &str) -> Result<StreamDirection, String> {
    match text {
        "connect" => Ok(StreamDirection::Connect),
        "bind" => Ok(StreamDirection::Bind),
        _ => Err("expected connect or bind".to_owned()),
    }
}

/// Flags that describe no worker.
#[derive(Debug, Error)]
pub enum DoctorConfigError {
    /// The tokenizer or the template.
    #[error("--tokenizer {path}: {error}")]
    Tokenizer {
        /// Where.
        path: PathBuf,
        /// What is wrong.
        error: LoadError,
    },
    /// A fact that is neither given nor told.
    #[error("the engine at {url} does not tell its {fact}: give {flag}")]
    Unknown {
        /// Where it is.
        url: String,
        /// What it does not tell.
        fact: &'static str,
        /// The flag that states it.
        flag: &'static str,
    },
    /// What was given is no worker.
    #[error("{0}")]
    Spec(#[from] SpecError),
}

impl DoctorArgs {
    /// How long each part may take.
    #[must_use]
    pub fn patience(&self) -> Patience {
        Patience {
            answer: Duration::from_secs(self.answer_timeout),
            events: Duration::from_secs(self.events_timeout),
            ..Patience::default()
        }
    }

    /// The worker as far as it can be described before the engine was asked.
    ///
    /// # Errors
    /// [`DoctorConfigError::Spec`].
    pub fn outline(&self) -> Result<WorkerSpec, DoctorConfigError> {
        let spec = WorkerSpec::new(&self.engine_url, self.model_name.as_deref().unwrap_or("?"));
        spec.validate()?;
        Ok(spec)
    }

    /// The worker that would be registered with these flags in front of an engine that says this of itself.
    ///
    /// # Errors
    /// See [`DoctorConfigError`].
    pub fn subject(&self, told: &Told) -> Result<Subject, DoctorConfigError> {
        let unknown = |fact, flag| {
            let url = self.engine_url.clone();
            move || DoctorConfigError::Unknown { url, fact, flag }
        };
        let base = || told.models.iter().find(|model| !model.is_adapter).map(|model| model.id.clone());
        let model =
            self.model_name.clone().or_else(base).ok_or_else(unknown("model", "--model-name NAME"))?;
        let block_size = self.engine_block_size.or(told.block_size);
        let block_size = block_size.ok_or_else(unknown("block size", "--engine-block-size TOKENS"))?;
        let source = told.sources.iter().flatten().next();
        let endpoint = source.map(|source| source.endpoint.clone());
        let by_endpoint = || source.map(Source::direction);
        let served =
            || told.models.iter().filter(|model| model.is_adapter).map(|model| model.id.clone()).collect();
        let events = self.kv_events_endpoint.clone().or(endpoint);
        let replay = self.kv_replay_endpoint.clone().or_else(|| source?.replay.clone());
        let spec = WorkerSpec {
            block_size,
            kv_replay_endpoint: replay.filter(|_| events.is_some()),
            kv_events_endpoint: events,
            kv_events_direction: self.kv_events_direction.or_else(by_endpoint).unwrap_or_default(),
            ranks: self.engine_ranks.or(told.ranks()).unwrap_or(1),
            lora_adapters: if self.lora_adapter.is_empty() { served() } else { self.lora_adapter.clone() },
            eagle: self.eagle,
            max_model_len: told.max_model_len,
            ..WorkerSpec::new(&self.engine_url, &model)
        };
        spec.validate()?;
        Ok(Subject { spec, encoder: self.encoder()?, upstream: PoolSettings::default() })
    }

    fn encoder(&self) -> Result<Option<Arc<Encoder>>, DoctorConfigError> {
        let Some(path) = &self.tokenizer else { return Ok(None) };
        let encoder = Encoder::load(path, self.chat_template.as_deref());
        let encoder = encoder.map_err(|error| DoctorConfigError::Tokenizer { path: path.clone(), error })?;
        Ok(Some(Arc::new(encoder)))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::doctor::Served;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        doctor: DoctorArgs,
    }

    fn args(flags: &[&str]) -> DoctorArgs {
        Line::parse_from([&["doctor"], flags].concat()).doctor
    }

    fn told() -> Told {
        let served = |id: &str, is_adapter| Served { id: id.to_owned(), is_adapter, root: None };
        let replay = Some("tcp://*:5558".to_owned());
        Told {
            models: vec![served("ad", true), served("m", false)],
            block_size: Some(32),
            sources: Some(vec![Source { rank: 0, endpoint: "tcp://*:5557".to_owned(), replay }]),
            ..Told::default()
        }
    }

    #[test]
    fn what_is_not_given_is_what_the_engine_says() {
        let spec = args(&[]).subject(&told()).unwrap().spec;
        assert_eq!((spec.model.as_str(), spec.block_size, spec.ranks), ("m", 32, 1));
        assert_eq!(spec.lora_adapters, ["ad"]);
        assert_eq!(spec.kv_events_endpoint.as_deref(), Some("tcp://*:5557"));
        let flags =
            ["--events", "tcp://*:1", "--block-size", "16", "--model-name", "x", "--engine-ranks", "2"];
        let spec = args(&flags).subject(&told()).unwrap().spec;
        assert_eq!((spec.model.as_str(), spec.block_size, spec.ranks), ("x", 16, 2));
        assert_eq!(spec.kv_events_endpoint.as_deref(), Some("tcp://*:1"));
    }

    #[test]
    fn what_nobody_says_is_asked_for_by_its_flag() {
        let error = args(&[]).subject(&Told::default()).unwrap_err().to_string();
        assert!(error.contains("--model-name"), "{error}");
        let error = args(&["--model-name", "m"]).subject(&Told::default()).unwrap_err().to_string();
        assert!(error.contains("--engine-block-size"), "{error}");
    }
}
