//! From what was stated and what the engine told to the worker's description.

use thiserror::Error;
use tracing::{info, warn};

use super::{AgentSettings, engine::Told};
use crate::{
    fleet::{SpecError, WorkerSpec, WorkerType},
    worker::facts::{Facts, KvEvents, PublishKvEvents, Stated},
};

/// An engine that cannot be described, and the flag that would help.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum DescribeError {
    /// Nobody says what it serves.
    #[error("the engine at {0} does not tell its model (GET /v1/models): give --model-name NAME")]
    NoModel(String),
    /// It serves something else than was stated.
    #[error(
        "the engine at {engine} does not serve '{model}' ({by}); it serves {served}. Give --model-name with one of \
         these, or start the engine with that name"
    )]
    OtherModel {
        /// Where.
        engine: String,
        /// What was stated.
        model: String,
        /// By whom.
        by: String,
        /// What it says it serves.
        served: String,
    },
    /// Nobody says how large a block is, and no number fits all engines.
    #[error(
        "the block size of the engine at {0} is not known: give --engine-block-size TOKENS with the engine's own. With \
         any other number no prefix would ever match"
    )]
    NoBlockSize(String),
    /// It is announced as one that publishes events, and nobody says where.
    #[error(
        "--publish-kv-events: the engine at {0} does not say where it publishes KV events: give --kv-events-endpoint \
         tcp://HOST:PORT, or switch them on in the engine"
    )]
    NoEvents(String),
    /// The description is not one that a frontend takes.
    #[error("the worker at {engine} cannot be described: {error}")]
    Spec {
        /// Where.
        engine: String,
        /// What is wrong.
        error: SpecError,
    },
}

/// The worker's description. What each fact is, and who stated it, goes to the log.
pub(super) fn describe(settings: &AgentSettings, told: Told) -> Result<WorkerSpec, DescribeError> {
    let engine = settings.engine.to_string();
    warn_of_other_block_size(&settings.facts, &told.facts);
    let facts = settings.facts.clone().or(told.facts);
    let model = facts.model.clone().ok_or_else(|| DescribeError::NoModel(engine.clone()))?;
    if !told.models.is_empty() && !told.models.contains(&model.value) {
        let served = told.models.join(", ");
        return Err(DescribeError::OtherModel { engine, model: model.value, by: model.by, served });
    }
    let block_size = facts.block_size.clone().ok_or_else(|| DescribeError::NoBlockSize(engine.clone()))?;
    let events = events(settings.publish_kv_events, facts.events.as_ref());
    if events.is_none() && settings.publish_kv_events == PublishKvEvents::Yes {
        return Err(DescribeError::NoEvents(engine));
    }
    for (fact, value, by) in facts.list() {
        info!(fact, value, from = by, "engine fact");
    }
    if events.is_none() {
        info!(engine, "no KV events are announced: routers guess what the engine has cached");
    }
    let template = WorkerSpec {
        model: model.value,
        block_size: block_size.value,
        lora_adapters: told.adapters,
        max_model_len: told.max_model_len,
        ..settings.spec.clone()
    };
    let spec = fill(template, settings, &facts, events);
    spec.validate().map_err(|error| DescribeError::Spec { engine, error })?;
    Ok(spec)
}

impl AgentSettings {
    /// Whether what was stated can be part of a description, before an engine is there to ask.
    ///
    /// # Errors
    /// See [`DescribeError::Spec`].
    pub fn check(&self) -> Result<(), DescribeError> {
        let events = events(self.publish_kv_events, self.facts.events.as_ref());
        let block_size = self.facts.block_size.as_ref().map_or(self.spec.block_size, |size| size.value);
        let template = WorkerSpec { block_size, ..self.spec.clone() };
        let spec = fill(template, self, &self.facts, events);
        spec.validate().map_err(|error| DescribeError::Spec { engine: self.engine.to_string(), error })
    }
}

fn fill(
    mut spec: WorkerSpec,
    settings: &AgentSettings,
    facts: &Facts,
    events: Option<&KvEvents>,
) -> WorkerSpec {
    spec.url = settings.advertised.to_string().trim_end_matches('/').to_owned();
    spec.first_rank = facts.first_rank.as_ref().map_or(0, |first| first.value);
    spec.ranks = facts.ranks.as_ref().map_or(1, |ranks| ranks.value);
    spec.device = facts.device.as_ref().map_or(spec.device, |device| device.value);
    spec.worker_type = facts.worker_type.as_ref().map_or(spec.worker_type, |role| role.value);
    spec.model_type = facts.model_type.as_ref().map_or(spec.model_type, |known| known.value);
    spec.eagle = facts.eagle.as_ref().is_some_and(|eagle| eagle.value);
    spec.total_kv_blocks = facts.total_kv_blocks.as_ref().map(|blocks| blocks.value);
    // The operator's word on the role counts more than the engine's arguments.
    let met = facts.bootstrap_port.as_ref().filter(|_| spec.worker_type == WorkerType::Prefill);
    spec.bootstrap_port = met.map(|port| port.value);
    spec.max_num_batched_tokens = facts.max_num_batched_tokens.as_ref().map(|tokens| tokens.value);
    if let Some(KvEvents::Published { endpoint, replay, direction }) = events {
        spec.kv_events_endpoint = Some(endpoint.clone());
        spec.kv_replay_endpoint.clone_from(replay);
        spec.kv_events_direction = *direction;
    }
    spec
}

/// What is announced of the events that are known of.
fn events(publish: PublishKvEvents, known: Option<&Stated<KvEvents>>) -> Option<&KvEvents> {
    let known = known.map(|known| &known.value).filter(|known| **known != KvEvents::Silent);
    known.filter(|_| publish != PublishKvEvents::No)
}

/// Hybrid caches have blocks of several sizes, so this may be right; with others it is a mistake that nothing else tells.
fn warn_of_other_block_size(given: &Facts, told: &Facts) {
    let (Some(given), Some(told)) = (&given.block_size, &told.block_size) else { return };
    if given.value != told.value {
        warn!(
            given = given.value,
            by = given.by,
            engine = told.value,
            told_by = told.by,
            "the engine tells another block size than the one given; if its KV events have that one, no prefix matches"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::{agent::Pace, backend::Backend, devices::DeviceSettings};
    use std::time::Duration;

    fn settings(facts: Facts, publish_kv_events: PublishKvEvents) -> AgentSettings {
        AgentSettings {
            backend: Backend::Vllm,
            engine: "http://127.0.0.1:8000".parse().unwrap(),
            advertised: "http://gpu-1:8000".parse().unwrap(),
            frontends: Vec::new(),
            authorization: None,
            lease: Duration::from_secs(10),
            facts,
            publish_kv_events,
            spec: WorkerSpec::new("http://gpu-1:8000", "?"),
            devices: DeviceSettings::default(),
            pace: Pace::default(),
        }
    }

    fn told(model: &str, block_size: Option<u32>, endpoint: Option<&str>) -> Told {
        let events = endpoint.map(|endpoint| KvEvents::Published {
            endpoint: endpoint.to_owned(),
            replay: None,
            direction: crate::fleet::StreamDirection::Connect,
        });
        let facts = Facts {
            model: Some(Stated::new(model.to_owned(), "told")),
            block_size: block_size.map(|size| Stated::new(size, "told")),
            events: events.map(|events| Stated::new(events, "told")),
            ..Facts::default()
        };
        Told { facts, models: vec![model.to_owned()], ..Told::default() }
    }

    #[test]
    fn what_is_given_wins_over_what_is_told() {
        let given = Facts { block_size: Some(Stated::new(32, "flag")), ..Facts::default() };
        let settings = settings(given, PublishKvEvents::default());
        let spec = describe(&settings, told("m", Some(16), Some("tcp://*:5557"))).unwrap();
        assert_eq!((spec.model.as_str(), spec.block_size, spec.url.as_str()), ("m", 32, "http://gpu-1:8000"));
        assert_eq!(spec.kv_events_endpoint.as_deref(), Some("tcp://*:5557"));
    }

    #[test]
    fn what_nobody_knows_is_refused_with_the_flag_that_states_it() {
        let plain = settings(Facts::default(), PublishKvEvents::default());
        let flag = |settings: &AgentSettings, told| describe(settings, told).unwrap_err().to_string();
        assert!(flag(&plain, Told::default()).contains("--model-name"));
        assert!(flag(&plain, told("m", None, None)).contains("--engine-block-size"));
        let publishing = settings(Facts::default(), PublishKvEvents::Yes);
        assert!(flag(&publishing, told("m", Some(16), None)).contains("--kv-events-endpoint"));
        let given =
            Facts { model: Some(Stated::new("other".to_owned(), "--model-name")), ..Facts::default() };
        let other = settings(given, PublishKvEvents::default());
        let error = flag(&other, told("m", Some(16), None));
        assert!(error.contains("'other' (--model-name)") && error.contains("serves m"), "{error}");
    }

    #[test]
    fn events_are_not_announced_against_the_operator_s_word() {
        let settings = settings(Facts::default(), PublishKvEvents::No);
        let spec = describe(&settings, told("m", Some(16), Some("tcp://*:5557"))).unwrap();
        assert_eq!(spec.kv_events_endpoint, None);
    }

    #[test]
    fn an_endpoint_that_is_none_is_refused_before_the_engine_is_there() {
        let given = told("m", Some(16), Some("5557")).facts;
        let error = settings(given, PublishKvEvents::default()).check().unwrap_err().to_string();
        assert!(error.contains("kv_events_endpoint: '5557'"), "{error}");
    }
}
