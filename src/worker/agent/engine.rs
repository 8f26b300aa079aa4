//! What an engine says of itself when it is asked.

use std::{fmt::Display, str::FromStr};

use http::Uri;
use serde_json::Value;

use crate::{
    fleet::StreamDirection,
    proxy::Caller,
    worker::{
        backend::Backend,
        facts::{Facts, KvEvents, Stated},
    },
};

/// An engine, seen from beside it.
#[derive(Debug)]
pub(super) struct Engine {
    backend: Backend,
    pub(super) url: Uri,
    caller: Caller,
}

/// The engine does not answer, or says that it cannot serve; and why.
#[derive(Debug)]
pub(super) struct Unwell(pub(super) String);

/// What it told.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) facts: Facts,
    /// Every model it serves, adapters included; empty if it does not tell.
    pub(super) models: Vec<String>,
    /// The adapters among them.
    pub(super) adapters: Vec<String>,
    pub(super) max_model_len: Option<u64>,
    /// When its process was started, as it spells it.
    pub(super) started: Option<String>,
}

/// What tells an engine from the one that is started in its place, as far as it tells.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Identity {
    started: Option<String>,
    events: Option<KvEvents>,
    ranks: Option<u32>,
    block_size: Option<u32>,
}

impl Told {
    pub(super) fn identity(&self) -> Identity {
        fn value<T: Clone>(fact: Option<&Stated<T>>) -> Option<T> {
            fact.map(|fact| fact.value.clone())
        }
        Identity {
            started: self.started.clone(),
            events: value(self.facts.events.as_ref()),
            ranks: value(self.facts.ranks.as_ref()),
            block_size: value(self.facts.block_size.as_ref()),
        }
    }
}

impl Identity {
    /// What is another than before, in words; a question that is not answered says nothing.
    pub(super) fn change(&self, now: &Self) -> Option<String> {
        fn moved<T: PartialEq + Display>(what: &str, before: Option<&T>, now: Option<&T>) -> Option<String> {
            let (before, now) = before.zip(now).filter(|(before, now)| before != now)?;
            Some(format!("{what}: {now}, before {before}"))
        }
        moved("its KV events", self.events.as_ref(), now.events.as_ref())
            .or_else(|| moved("its ranks", self.ranks.as_ref(), now.ranks.as_ref()))
            .or_else(|| moved("its block size", self.block_size.as_ref(), now.block_size.as_ref()))
            .or_else(|| moved("its process's start", self.started.as_ref(), now.started.as_ref()))
    }
}

const MODELS: &str = "/v1/models";
const SOURCES: &str = "/kv_event_sources";
const METRICS: &str = "/metrics";
const SERVER: &str = "/server_info";

impl Engine {
    pub(super) fn new(backend: Backend, url: Uri, caller: Caller) -> Self {
        Self { backend, url, caller }
    }

    /// Whether it can serve.
    pub(super) async fn is_well(&self) -> Result<(), Unwell> {
        self.caller.is_well(&self.url).await.map_err(Unwell)
    }

    /// Asks it for all that it can tell.
    pub(super) async fn tell(&self) -> Result<Told, Unwell> {
        let mut told = Told::default();
        if let Some(models) = self.ask(MODELS).await? {
            read_models(&models, &mut told);
        }
        match self.backend {
            Backend::Vllm | Backend::Mock => {
                if let Some(sources) = self.ask(SOURCES).await? {
                    read_sources(&sources, &mut told.facts);
                }
                let page = self.caller.get(&self.url, METRICS).await.map_err(Unwell)?;
                let page = String::from_utf8_lossy(&page.body);
                told.facts.block_size = cache_config(&page, "block_size").map(|size| by(size, METRICS));
                told.facts.total_kv_blocks = cache_config(&page, "num_gpu_blocks")
                    .filter(|&blocks| blocks > 0)
                    .map(|blocks| by(blocks, METRICS));
                told.started = page
                    .lines()
                    .find_map(|line| line.strip_prefix("process_start_time_seconds "))
                    .map(str::to_owned);
            }
            Backend::Sglang => {
                if let Some(server) = self.ask(SERVER).await? {
                    read_server_info(&server, &mut told.facts);
                }
            }
            Backend::Trtllm => {}
        }
        Ok(told)
    }

    /// What it is now; `None` if it does not answer.
    pub(super) async fn identity(&self) -> Option<Identity> {
        self.tell().await.ok().map(|told| told.identity())
    }

    /// The adapters that it serves now; `None` if it does not tell.
    pub(super) async fn adapters(&self) -> Option<Vec<String>> {
        let models = self.ask(MODELS).await.ok()??;
        let mut told = Told::default();
        read_models(&models, &mut told);
        (!told.models.is_empty()).then_some(told.adapters)
    }

    /// The JSON behind a route, if it has it.
    async fn ask(&self, path: &str) -> Result<Option<Value>, Unwell> {
        let reply = self.caller.get(&self.url, path).await.map_err(Unwell)?;
        if reply.status.is_server_error() {
            return Err(Unwell(format!("GET {path} answers {}", reply.status)));
        }
        Ok(reply.status.is_success().then(|| reply.json()))
    }
}

fn by<T>(value: T, path: &str) -> Stated<T> {
    Stated::new(value, format!("GET {path}"))
}

/// The first that is no adapter is the model.
fn read_models(answer: &Value, told: &mut Told) {
    for model in answer["data"].as_array().into_iter().flatten() {
        let Some(id) = model["id"].as_str() else { continue };
        told.models.push(id.to_owned());
        if model["parent"].is_string() {
            told.adapters.push(id.to_owned());
        } else if told.facts.model.is_none() {
            told.facts.model = Some(by(id.to_owned(), MODELS));
            told.max_model_len = model["max_model_len"].as_u64().filter(|&tokens| tokens > 0);
        }
    }
}

/// vLLM: an object with an entry for each rank. Ports of ranks above the first follow from its own.
fn read_sources(answer: &Value, facts: &mut Facts) {
    let Some(sources) = answer.as_object() else { return };
    let ranks = sources.iter().filter_map(|(rank, source)| Some((rank.parse::<u32>().ok()?, source)));
    let Some((first, source)) = ranks.min_by_key(|(rank, _)| *rank) else {
        facts.events = Some(by(KvEvents::Silent, SOURCES));
        return;
    };
    let Some(endpoint) = source["endpoint"].as_str() else { return };
    // Ranks that are alone behind their URL tell their own endpoint, which a description has for rank 0.
    if first == 0 {
        let events = KvEvents::Published {
            endpoint: endpoint.to_owned(),
            replay: source["replay_endpoint"].as_str().map(str::to_owned),
            direction: StreamDirection::of_endpoint(endpoint),
        };
        facts.events = Some(by(events, SOURCES));
        facts.ranks = u32::try_from(sources.len()).ok().map(|ranks| by(ranks, SOURCES));
    }
}

/// SGLang: `kv_events` describes the publisher, and is null if there is none.
fn read_server_info(answer: &Value, facts: &mut Facts) {
    let small = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
    let described = &answer["kv_events"];
    let block_size = small(&described["block_size"]).or(small(&answer["page_size"]));
    facts.block_size = block_size.map(|size| by(size, SERVER));
    facts.ranks = small(&answer["dp_size"]).map(|ranks| by(ranks, SERVER));
    let Some(port) = described["endpoint_port_base"].as_u64() else {
        // Older ones have no such key, which says nothing.
        if answer.get("kv_events").is_some() {
            facts.events = Some(by(KvEvents::Silent, SERVER));
        }
        return;
    };
    let host = match described["endpoint_host"].as_str().unwrap_or("*") {
        "::" => "[::]",
        host => host,
    };
    let replay = described["replay_endpoint_port_base"].as_u64();
    let events = KvEvents::Published {
        endpoint: format!("tcp://{host}:{port}"),
        replay: replay.map(|port| format!("tcp://{host}:{port}")),
        // It is described for subscribers, who connect.
        direction: StreamDirection::Connect,
    };
    facts.events = Some(by(events, SERVER));
}

/// vLLM: a label of an otherwise uninteresting gauge.
fn cache_config<T: FromStr>(page: &str, label: &str) -> Option<T> {
    let line = page.lines().find_map(|line| line.strip_prefix("vllm:cache_config_info{"))?;
    let value = line
        .split_once(&format!("{label}=\""))
        .filter(|(before, _)| before.is_empty() || before.ends_with(','));
    value?.1.split('"').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn adapters_are_told_from_the_model() {
        let mut told = Told::default();
        let answer = json!({"data": [
            {"id": "a", "parent": "m"},
            {"id": "m", "parent": null, "max_model_len": 77},
            {"id": "second name", "parent": null},
        ]});
        read_models(&answer, &mut told);
        assert_eq!(told.facts.model, Some(by("m".to_owned(), MODELS)));
        assert_eq!((told.adapters.as_slice(), told.max_model_len), (&["a".to_owned()][..], Some(77)));
        assert_eq!(told.models, ["a", "m", "second name"]);
        let mut told = Told::default();
        read_models(&json!({"data": [{"id": "m", "max_model_len": 0}]}), &mut told);
        assert_eq!(told.max_model_len, None, "a card with a length of nothing would be refused");
    }

    #[test]
    fn block_size_and_number_of_blocks_are_labels() {
        let block_size = |page| cache_config::<u32>(page, "block_size");
        let page =
            "# HELP x\nvllm:cache_config_info{engine=\"0\",block_size=\"32\",num_gpu_blocks=\"99\"} 1.0\n";
        assert_eq!((block_size(page), cache_config(page, "num_gpu_blocks")), (Some(32), Some(99_u64)));
        assert_eq!(block_size("vllm:cache_config_info{block_size=\"8\"} 1"), Some(8));
        assert_eq!(block_size("vllm:cache_config_info{mamba_block_size=\"8\"} 1"), None);
        assert_eq!(block_size("vllm:cache_config_info{block_size=\"None\"} 1"), None);
    }

    #[test]
    fn vllm_tells_ranks_and_endpoints_and_silence() {
        let mut facts = Facts::default();
        let source = |endpoint: &str| json!({"endpoint": endpoint, "replay_endpoint": null});
        read_sources(&json!({"1": source("tcp://*:5558"), "0": source("tcp://*:5557")}), &mut facts);
        let events = KvEvents::Published {
            endpoint: "tcp://*:5557".to_owned(),
            replay: None,
            direction: StreamDirection::Connect,
        };
        assert_eq!((facts.events, facts.ranks), (Some(by(events, SOURCES)), Some(by(2, SOURCES))));
        let mut silent = Facts::default();
        read_sources(&json!({}), &mut silent);
        assert_eq!(silent.events, Some(by(KvEvents::Silent, SOURCES)));
    }

    #[test]
    fn another_engine_is_told_by_what_it_says_and_not_by_what_it_leaves_out() {
        let identity = |started: Option<&str>, block_size| Identity {
            started: started.map(str::to_owned),
            block_size,
            ..Identity::default()
        };
        let known = identity(Some("1.5e9"), Some(16));
        assert_eq!(known.change(&known), None);
        assert_eq!(known.change(&identity(None, None)), None);
        assert_eq!(identity(None, None).change(&known), None);
        assert_eq!(
            known.change(&identity(Some("1.6e9"), Some(16))).unwrap(),
            "its process's start: 1.6e9, before 1.5e9"
        );
        assert_eq!(
            known.change(&identity(Some("1.6e9"), Some(32))).unwrap(),
            "its block size: 32, before 16"
        );
    }

    #[test]
    fn sglang_describes_its_publisher() {
        let mut facts = Facts::default();
        let server = json!({"page_size": 1, "dp_size": 2, "kv_events": {
            "publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "block_size": 64,
            "replay_endpoint_port_base": 6557,
        }});
        read_server_info(&server, &mut facts);
        assert_eq!(facts.block_size, Some(by(64, SERVER)));
        assert_eq!(facts.events.unwrap().value.to_string(), "tcp://*:5557, replay tcp://*:6557");
        let mut silent = Facts::default();
        read_server_info(&json!({"page_size": 16, "kv_events": null}), &mut silent);
        assert_eq!(
            (silent.block_size, silent.events),
            (Some(by(16, SERVER)), Some(by(KvEvents::Silent, SERVER)))
        );
    }
}
