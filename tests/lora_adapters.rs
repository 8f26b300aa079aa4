//! LoRA adapters: requests go where they are loaded, and blocks are theirs alone.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod rig;

use std::time::Duration;

use http::Method;
use kvroute::{
    fleet::WorkerSpec,
    select::Mode,
    worker::{
        agent::{self, AgentSettings, Pace},
        backend::Backend,
        devices::DeviceSettings,
        facts::{Facts, PublishKvEvents},
        mock::{MockEngine, MockSettings},
    },
};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::rig::{
    MODEL, Rig, candidate, chat, credit, engine_settings, eventually, plan, pools::Pools, prose,
    registration, worker,
};

const CHAT: &str = "/v1/chat/completions";

fn named(adapters: &[&str]) -> Vec<String> {
    adapters.iter().map(|&name| name.to_owned()).collect()
}

fn with(adapters: &[&str]) -> MockSettings {
    MockSettings { loras: named(adapters), ..engine_settings() }
}

/// Engines with these adapters, each announced with its own.
async fn start(mode: Mode, adapters: &[&[&str]]) -> Rig {
    let mut pools = Pools::of(adapters.iter().map(|adapters| with(adapters)).collect()).await;
    for (worker, adapters) in pools.workers.iter_mut().zip(adapters) {
        worker.lora_adapters = named(adapters);
    }
    pools.behind(mode).await
}

fn asking(model: &str, seed: u64) -> Value {
    let mut body = chat(&prose(seed, 100), "hello");
    body["model"] = json!(model);
    body["nvext"] = json!({ "extra_fields": ["worker_id"] });
    body
}

async fn served_by(rig: &Rig, body: &Value) -> u64 {
    let answer = rig.post(CHAT, body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.worker()
}

async fn models(rig: &Rig) -> Vec<String> {
    let listed = rig.client.get(&format!("{}/v1/models", rig.public())).await.json;
    let names =
        listed["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned());
    names.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_for_an_adapter_goes_where_it_is_loaded_in_every_mode() {
    for mode in [Mode::Kv, Mode::RoundRobin, Mode::Random, Mode::LeastLoaded, Mode::PowerOfTwo] {
        let rig = start(mode, &[&["sql"], &[], &["sql", "poet"]]).await;
        assert_eq!(models(&rig).await, [MODEL, "poet", "sql"]);
        let mut sql = Vec::new();
        for seed in 0..8 {
            assert_eq!(served_by(&rig, &asking("poet", seed)).await, 3, "{mode}");
            sql.push(served_by(&rig, &asking("sql", seed)).await);
        }
        assert!(sql.iter().all(|worker| [1, 3].contains(worker)), "{mode}: {sql:?}");
        let told = rig.explain(&asking("poet", 1)).await;
        for (worker, excluded) in
            [(1, json!("adapter_not_loaded")), (2, json!("adapter_not_loaded")), (3, Value::Null)]
        {
            assert_eq!(candidate(&told, worker)["excluded"], excluded, "{mode}");
        }
        assert!(rig.metric("kvroute_exclusions_total", "reason=\"adapter_not_loaded\"").await > 0.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adapter_that_nobody_serves_is_unknown_and_one_whose_workers_drain_is_unavailable() {
    let rig = start(Mode::Kv, &[&["sql"], &[]]).await;
    let answer = rig.post(CHAT, &asking("poet", 1)).await;
    assert_eq!((answer.status.as_u16(), &answer.json["error"]["code"]), (404, &json!("model_not_found")));
    assert!(answer.text.contains("sql"), "it says which there are: {}", answer.text);
    let one = rig.client.get(&format!("{}/v1/models/sql", rig.public())).await.json;
    assert_eq!((&one["id"], &one["parent"]), (&json!("sql"), &json!(MODEL)));

    assert_eq!(rig.ask("/v1/workers/1/drain", &json!({})).await.status, 200);
    let answer = rig.post(CHAT, &asking("sql", 1)).await;
    assert_eq!(answer.status, 503, "{}", answer.text);
    assert!(answer.text.contains("1 draining, 1 without the adapter"), "{}", answer.text);
    assert_eq!(served_by(&rig, &asking(MODEL, 1)).await, 2);

    rig.remove(1).await;
    assert_eq!(rig.post(CHAT, &asking("sql", 1)).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adapter_s_blocks_are_its_own() {
    let rig = start(Mode::Kv, &[&["sql", "poet"]]).await;
    for (first, others) in [("sql", ["poet", MODEL]), (MODEL, ["poet", "poet"])] {
        let seed = first.len() as u64;
        served_by(&rig, &asking(first, seed)).await;
        rig.wait_for_events().await;
        assert!(credit(&rig.explain(&asking(first, seed)).await, 1) > 0);
        for other in others {
            assert_eq!(credit(&rig.explain(&asking(other, seed)).await, 1), 0, "{first}, {other}");
        }
        let answer = rig.post(CHAT, &asking(first, seed)).await;
        assert!(answer.cached_tokens() > 0, "the engine agrees");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn adapters_come_and_go_with_a_registration_under_the_same_id() {
    let rig = start(Mode::Kv, &[&["sql"]]).await;
    served_by(&rig, &asking(MODEL, 1)).await;
    rig.wait_for_events().await;
    let lora_adapters = vec!["poet".to_owned()];
    let other = WorkerSpec { lora_adapters, ..worker(1, &rig.engines[0]) };
    let answer = rig.register(&other, None).await;
    assert_eq!((answer.status.as_u16(), &answer.json["id"]), (201, &json!(1)), "{}", answer.text);
    assert_eq!(models(&rig).await, [MODEL, "poet"]);
    assert_eq!(rig.workers().await[0]["lora_adapters"], json!(["poet"]));
    assert!(credit(&rig.explain(&asking(MODEL, 1)).await, 1) > 0, "what is known of its cache stays");
    assert_eq!(rig.post(CHAT, &asking("sql", 1)).await.status, 404);
}

/// An agent that looks often, beside the engine at `url`.
fn beside(url: &str, rig: &Rig, lease: Duration) -> AgentSettings {
    AgentSettings {
        backend: Backend::Vllm,
        advertised: url.parse().unwrap(),
        engine: url.parse().unwrap(),
        frontends: vec![rig.admin().parse().unwrap()],
        authorization: None,
        lease,
        facts: Facts::default(),
        publish_kv_events: PublishKvEvents::default(),
        spec: WorkerSpec::new("", "model"),
        devices: DeviceSettings { enabled: false, ..DeviceSettings::default() },
        pace: Pace { health_interval: Duration::from_millis(50), ..Pace::default() },
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_engine_loads_is_announced_and_what_it_unloads_is_taken_back() {
    let rig = Rig::start_plan(plan(Mode::Kv, Vec::new()), Vec::new()).await;
    let engine = MockEngine::start(with(&[])).await.unwrap();
    let url = format!("http://{}", engine.http_addr());
    let (stop, stopped) = oneshot::channel::<()>();
    let settings = beside(&url, &rig, Duration::from_secs(3600));
    let agent = tokio::spawn(agent::run(settings, async {
        let _ = stopped.await;
    }));
    eventually("the worker is registered", async || models(&rig).await == [MODEL]).await;
    rig.wait_for_streams("live").await;
    let id = rig.workers().await[0]["id"].as_u64().unwrap();
    served_by(&rig, &asking(MODEL, 1)).await;
    eventually("its blocks are known", async || credit(&rig.explain(&asking(MODEL, 1)).await, id) > 0).await;

    let sql = json!({ "lora_name": "sql", "lora_path": "/nowhere" });
    assert_eq!(rig.client.post(&format!("{url}/v1/load_lora_adapter"), &sql).await.status, 200);
    eventually("the adapter is announced", async || models(&rig).await == [MODEL, "sql"]).await;
    assert_eq!(served_by(&rig, &asking("sql", 2)).await, id, "it is the same worker");
    assert!(credit(&rig.explain(&asking(MODEL, 1)).await, id) > 0, "and its cache is known");

    assert_eq!(rig.client.post(&format!("{url}/v1/unload_lora_adapter"), &sql).await.status, 200);
    eventually("it is taken back", async || models(&rig).await == [MODEL]).await;
    assert_eq!(rig.post(CHAT, &asking("sql", 2)).await.status, 404);
    assert_eq!(rig.workers().await[0]["id"], id);
    stop.send(()).unwrap();
    agent.await.unwrap().unwrap();
    assert!(rig.workers().await.is_empty());
}

/// The name of its adapter is another's, which is no reason to take the engine's own model out.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_whose_new_adapter_is_refused_stays_registered_without_it() {
    let rig = Rig::start_plan(plan(Mode::Kv, Vec::new()), Vec::new()).await;
    let engine = MockEngine::start(with(&[])).await.unwrap();
    let url = format!("http://{}", engine.http_addr());
    let (stop, stopped) = oneshot::channel::<()>();
    let lease = Duration::from_secs(2);
    let agent = tokio::spawn(agent::run(beside(&url, &rig, lease), async {
        let _ = stopped.await;
    }));
    eventually("the worker is registered", async || models(&rig).await == [MODEL]).await;
    let id = rig.workers().await[0]["id"].as_u64().unwrap();
    let workers = format!("{}/v1/workers", rig.admin());
    let other = WorkerSpec { id: Some(99), ..WorkerSpec::new("http://127.0.0.1:9", "other") };
    assert_eq!(rig.client.post(&workers, &registration(&other, Some(3600.0))).await.status, 201);

    for name in ["other", "sql"] {
        let adapter = json!({ "lora_name": name, "lora_path": "/nowhere" });
        assert_eq!(rig.client.post(&format!("{url}/v1/load_lora_adapter"), &adapter).await.status, 200);
    }
    for _ in 0..8 {
        tokio::time::sleep(lease / 5).await;
        assert_eq!(models(&rig).await, [MODEL, "other"], "what it was registered as stands");
    }
    assert_eq!(served_by(&rig, &asking(MODEL, 1)).await, id);

    rig.client.request(Method::DELETE, &format!("{workers}/99"), &[], &json!({})).await;
    eventually("the name is free for it", async || models(&rig).await == [MODEL, "other", "sql"]).await;
    assert_eq!(served_by(&rig, &asking("other", 2)).await, id, "it is the same worker");
    stop.send(()).unwrap();
    agent.await.unwrap().unwrap();
    assert!(rig.workers().await.is_empty());
}
