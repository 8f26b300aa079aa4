//! SGLang, as of 0.5.23.

use super::{
    ArgumentError, EngineArguments, Options,
    options::{embeds, error, source},
};
use crate::{
    fleet::{DeviceKind, WorkerType},
    worker::facts::{Facts, Stated},
};

pub(super) fn read(options: &Options<'_>) -> Result<EngineArguments, ArgumentError> {
    let model = options.text(&["--served-model-name"])?.or(options.text(&["--model-path", "--model"])?);
    let worker_type = worker_type(options)?;
    Ok(EngineArguments {
        host: options.text(&["--host"])?.map(|host| host.value),
        port: options.number(&["--port"])?.map(|port| port.value),
        facts: Facts {
            model,
            block_size: options.number(&["--page-size"])?,
            ranks: options.number(&["--dp-size", "--data-parallel-size"])?,
            device: options.text(&["--device"])?.map(|device| {
                let kind = if device.value == "cpu" { DeviceKind::Cpu } else { DeviceKind::Cuda };
                Stated::new(kind, device.by)
            }),
            bootstrap_port: bootstrap_port(options, worker_type.as_ref())?,
            worker_type,
            model_type: embeds(options.has("--is-embedding")),
            eagle: eagle(options)?,
            events: options.kv_events(|config| config["publisher"] == "zmq")?,
            ..Facts::default()
        },
    })
}

fn worker_type(options: &Options<'_>) -> Result<Option<Stated<WorkerType>>, ArgumentError> {
    let Some(mode) = options.text(&["--disaggregation-mode"])? else { return Ok(None) };
    let role = match mode.value.as_str() {
        "null" => WorkerType::Aggregated,
        "prefill" => WorkerType::Prefill,
        "decode" => WorkerType::Decode,
        other => {
            let problem = format!("'{other}' is not a role; accepted are null, prefill and decode");
            return Err(error("--disaggregation-mode", problem));
        }
    };
    Ok(Some(Stated::new(role, mode.by)))
}

/// A prefill engine can always be met.
fn bootstrap_port(
    options: &Options<'_>,
    role: Option<&Stated<WorkerType>>,
) -> Result<Option<Stated<u16>>, ArgumentError> {
    let given = options.number(&["--disaggregation-bootstrap-port"])?;
    let role = role.filter(|role| role.value == WorkerType::Prefill);
    Ok(role.map(|role| given.unwrap_or_else(|| Stated::new(DEFAULT_BOOTSTRAP_PORT, role.by.clone()))))
}

const DEFAULT_BOOTSTRAP_PORT: u16 = 8998;

/// With EAGLE the radix cache is keyed by pairs of tokens.
fn eagle(options: &Options<'_>) -> Result<Option<Stated<bool>>, ArgumentError> {
    let algorithm = options.text(&["--speculative-algorithm"])?;
    Ok(algorithm
        .filter(|name| name.value.to_ascii_uppercase().starts_with("EAGLE"))
        .map(|_| Stated::new(true, source("--speculative-algorithm"))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fleet::StreamDirection,
        worker::{backend::options::words, facts::KvEvents},
    };

    #[test]
    fn the_card_s_facts_are_found() {
        let line = r#"--model-path a/b --page-size 64 --dp-size 2 --port 31000 --disaggregation-mode decode --device cpu --speculative-algorithm EAGLE3 --kv-events-config {"publisher":"zmq","endpoint":"tcp://127.0.0.1:5","bind":true}"#;
        let read = read(&Options::parse(&words(line))).unwrap();
        assert_eq!((read.host, read.port), (None, Some(31_000)));
        let facts = read.facts;
        assert_eq!(facts.model.unwrap().value, "a/b");
        assert_eq!((facts.block_size.unwrap().value, facts.ranks.unwrap().value), (64, 2));
        assert_eq!(facts.worker_type.unwrap().value, WorkerType::Decode);
        assert_eq!(facts.device.unwrap().value, DeviceKind::Cpu);
        assert!(facts.eagle.unwrap().value);
        assert_eq!(facts.model_type, None);
        let KvEvents::Published { direction, replay, .. } = facts.events.unwrap().value else { panic!() };
        assert_eq!((direction, replay), (StreamDirection::Connect, None));
    }

    #[test]
    fn an_embedding_model_embeds() {
        let facts = read(&Options::parse(&words("--is-embedding --port 1"))).unwrap().facts;
        assert_eq!(facts.model_type.unwrap().value.to_string(), "embedding");
    }

    #[test]
    fn a_prefill_engine_can_be_met_where_it_says_or_at_the_default() {
        let port = |line: &str| {
            let facts = read(&Options::parse(&words(line))).unwrap().facts;
            facts.bootstrap_port.map(|port| (port.value, port.by))
        };
        let given = "--disaggregation-mode prefill --disaggregation-bootstrap-port 9001";
        assert_eq!(port(given), Some((9001, source("--disaggregation-bootstrap-port"))));
        let default = Some((8998, source("--disaggregation-mode")));
        assert_eq!(port("--disaggregation-mode prefill"), default);
        assert_eq!(port("--disaggregation-mode decode --disaggregation-bootstrap-port 9001"), None);
        assert_eq!(port("--port 1"), None);
    }

    #[test]
    fn a_publisher_that_is_not_named_is_none() {
        let arguments = words(r#"--kv-events-config {"endpoint":"tcp://*:5557"}"#);
        let facts = read(&Options::parse(&arguments)).unwrap().facts;
        assert_eq!(facts.events.unwrap().value, KvEvents::Silent);
    }
}
