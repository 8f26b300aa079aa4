//! Two models with two strategies beside each other, behind one frontend.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod rig;

use std::{fs, path::PathBuf};

use kvroute::{
    config::{
        ConfigFile, FrontendArgs,
        flags::{Environment, Frontend, RouterFlags, build_router_config},
    },
    fleet::WorkerSpec,
    select::Mode,
    worker::mock::{MockEngine, MockSettings},
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::rig::{
    Answer, MODEL, Rig, TINY, chat, engine_settings, plan, prose,
    upstream::{Upstream, plain},
    worker,
};

const CACHED: &str = "cached";
const SPREAD: &str = "spread";

async fn engines() -> Vec<MockEngine> {
    let mut engines = Vec::new();
    for model in [CACHED, CACHED, SPREAD, SPREAD] {
        let settings = MockSettings { model: model.to_owned(), ..engine_settings() };
        engines.push(MockEngine::start(settings).await.unwrap());
    }
    engines
}

/// A file for the engines: the first model's workers advertise kv, the second's advertise nothing.
fn file(engines: &[MockEngine]) -> String {
    let mut text = format!(
        "[frontend]\nhost = \"127.0.0.1\"\nport = 0\nadmin_port = 0\n\n[router]\nrouter_mode = \"round-robin\"\n\n\
         [[model]]\nname = \"*\"\ntokenizer = \"{TINY}\"\n"
    );
    for (position, engine) in engines.iter().enumerate() {
        let model = if position < 2 { CACHED } else { SPREAD };
        text += &format!(
            "\n[[worker]]\nid = {}\nurl = \"http://{}\"\nmodel = \"{model}\"\nkv_events_endpoint = \"{}\"\n\
             kv_replay_endpoint = \"{}\"\n",
            position + 1,
            engine.http_addr(),
            engine.events_endpoint().unwrap(),
            engine.replay_endpoint().unwrap(),
        );
        if model == CACHED {
            text += "[worker.router_config]\nrouter_mode = \"kv\"\n\
                     kv_router_config = { overlap_score_credit = 2.0 }\n";
        }
    }
    text
}

fn write(text: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kvroute.toml");
    fs::write(&path, text).unwrap();
    (folder, path)
}

async fn rig() -> Rig {
    let engines = engines().await;
    let (_folder, path) = write(&file(&engines));
    let file = ConfigFile::read(&path).unwrap();
    let given = RouterFlags::<Frontend>::none();
    let given = given.resolve(&Environment::empty(), Some((&path, &file.router))).unwrap();
    let router = build_router_config(&given).unwrap().config;
    let plan = FrontendArgs::default().plan(router, &[], Some(file)).unwrap();
    let rig = Rig::assemble(plan, engines).await;
    rig.wait_for_streams("live").await;
    rig
}

async fn ask(rig: &Rig, model: &str, number: u64) -> Answer {
    let mut body = chat(&prose(1, 80), &prose(100 + number, 5));
    body["model"] = json!(model);
    body["nvext"] = json!({ "extra_fields": ["worker_id"] });
    let answer = rig.post("/v1/chat/completions", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn each_set_routes_by_its_own_configuration() {
    let rig = rig().await;
    let first = ask(&rig, CACHED, 0).await;
    let shared = first.prompt_tokens() / 16 * 16 - 64;
    for number in 1..7 {
        rig.wait_for_events().await;
        let answer = ask(&rig, CACHED, number).await;
        assert_eq!(answer.worker(), first.worker(), "the prefix was not kept together");
        assert!(answer.cached_tokens() >= shared, "{}", answer.text);
    }
    let mut turns = Vec::new();
    for number in 0..6 {
        turns.push(ask(&rig, SPREAD, number).await.worker());
    }
    let alternates =
        turns.windows(2).all(|pair| pair[0] != pair[1] && pair.iter().all(|id| [3, 4].contains(id)));
    assert!(alternates, "{turns:?}");
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_listener_shows_each_set_s_mode_and_where_it_comes_from() {
    let rig = rig().await;
    let sets = rig.client.get(&format!("{}/v1/worker-sets", rig.admin())).await.json;
    let set = |model: &str| -> Value {
        let sets = sets["worker_sets"].as_array().unwrap();
        assert_eq!(sets.len(), 2, "{sets:?}");
        sets.iter().find(|set| set["model"] == model).unwrap().clone()
    };
    for (model, mode, credit, source) in
        [(CACHED, "k_v", 2.0, "card"), (SPREAD, "round_robin", 1.0, "frontend")]
    {
        let set = set(model);
        assert_eq!(set["router_config"]["router_mode"], mode, "{set}");
        assert_eq!(set["router_config"]["kv_router_config"]["overlap_score_credit"], credit, "{set}");
        assert_eq!((&set["router_config_from"], &set["workers"]), (&json!(source), &json!(2)), "{set}");
        assert_eq!(set["tokens_from"], "tokenizer");
    }
    let metrics = rig.client.get(&format!("{}/metrics", rig.admin())).await.text;
    for (model, mode, source) in [(CACHED, "kv", "card"), (SPREAD, "round-robin", "frontend")] {
        let labels = [("model", model), ("router_mode", mode), ("router_config_from", source)];
        let labels = labels.map(|(name, value)| format!("{name}=\"{value}\""));
        let mut infos = metrics.lines().filter(|line| line.starts_with("kvroute_worker_set_info{"));
        let shown = infos.any(|line| labels.iter().all(|label| line.contains(label)) && line.ends_with(" 1"));
        assert!(shown, "no {labels:?} in {metrics}");
    }
    // Explain says the same, request by request.
    let mut body = chat("a", "b");
    for (model, mode, source) in [(CACHED, "kv", "card"), (SPREAD, "round-robin", "frontend")] {
        body["model"] = json!(model);
        let explain = rig.ask("/v1/route/explain", &body).await.json;
        assert_eq!((&explain["router_mode"], &explain["router_config_from"]), (&json!(mode), &json!(source)));
        assert_eq!(explain["candidates"].as_array().unwrap().len(), 2);
    }
}

/// What both models know under the same tokens stays apart.
#[tokio::test(flavor = "multi_thread")]
async fn models_share_no_blocks() {
    let rig = rig().await;
    ask(&rig, SPREAD, 0).await;
    ask(&rig, SPREAD, 1).await;
    rig.wait_for_events().await;
    let mut body = chat(&prose(1, 80), &prose(100, 5));
    body["model"] = json!(CACHED);
    let explain = rig.ask("/v1/route/explain", &body).await.json;
    assert_eq!(explain["choice"]["overlap_blocks"], 0, "{explain}");
    assert!(rig.metric("kvroute_index_places", &format!("model=\"{SPREAD}\"")).await > 0.0);
    assert_eq!(rig.metric("kvroute_index_places", &format!("model=\"{CACHED}\"")).await, 0.0);
}

/// One model in two sets that hash differently: each is found by a pin, and neither is lost from the gauges.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_may_have_two_sets() {
    let mut workers = Vec::new();
    let mut engines = Vec::new();
    for (id, block_size, component) in [(1, 16, "backend"), (2, 32, "canary")] {
        let settings = MockSettings { block_size, ..engine_settings() };
        let engine = MockEngine::start(settings).await.unwrap();
        let component = component.to_owned();
        workers.push(WorkerSpec { block_size, component, ..worker(id, &engine) });
        engines.push(engine);
    }
    let rig = Rig::assemble(plan(Mode::Kv, workers), engines).await;
    rig.wait_for_streams("live").await;
    let mut body = chat(&prose(1, 80), "who?");
    for pin in [2, 1, 2, 1, 2, 2, 2, 1] {
        body["nvext"] = json!({ "extra_fields": ["worker_id"], "backend_instance_id": pin });
        assert_eq!(rig.post("/v1/chat/completions", &body).await.worker(), pin);
    }
    rig.wait_for_events().await;
    let held: u64 = rig.workers().await.iter().map(|w| w["cached_blocks"]["gpu"].as_u64().unwrap()).sum();
    assert_eq!(rig.metric("kvroute_index_places", "").await, held as f64);

    // A set whose workers all drain gets no requests that another can take.
    rig.ask("/v1/workers/1/drain", &json!({})).await;
    body["nvext"] = json!({ "extra_fields": ["worker_id"] });
    for _ in 0..12 {
        assert_eq!(rig.post("/v1/chat/completions", &body).await.worker(), 2);
    }
}

/// Sets of one model share its requests by how many of their workers take some.
#[tokio::test(flavor = "multi_thread")]
async fn requests_of_a_model_are_shared_by_the_numbers_of_workers() {
    let upstreams = [Upstream::start(plain).await, Upstream::start(plain).await];
    let of = |id: u64, upstream: &Upstream, component: &str| WorkerSpec {
        component: component.to_owned(),
        ..upstream.worker(id, MODEL)
    };
    let [large, small] = &upstreams;
    let mut workers: Vec<_> = (1..4).map(|id| of(id, large, "large")).collect();
    workers.push(of(4, small, "small"));
    let rig = Rig::assemble(plan(Mode::RoundRobin, workers), Vec::new()).await;
    for _ in 0..200 {
        assert_eq!(rig.post("/v1/chat/completions", &chat("a", "b")).await.status, 200);
    }
    // 150 of 200 expected; 40 off is more than six standard deviations.
    let (of_large, of_small) = (large.recorded().len(), small.recorded().len());
    assert_eq!(of_large + of_small, 200);
    assert!((110..=190).contains(&of_large), "{of_large} of 200");
}

#[test]
fn a_file_that_cannot_be_used_is_refused_with_line_and_key() {
    let good = "[frontend]\nport = 0\n\n[[worker]]\nurl = \"http://a:1\"\nmodel = \"m\"\n";
    for (text, line, says) in [
        (good.replace("port = 0", "prot = 0"), 2, "prot"),
        (good.replace("port = 0", "port = 70000"), 2, "port"),
        (good.replace("port = 0", "port = \"eight\""), 2, "port"),
        (format!("{good}modle = 1\n"), 7, "modle"),
        (format!("{good}ranks = \"two\"\n"), 7, "ranks"),
        (format!("{good}router_config = {{ router_mode = \"bogus\" }}\n"), 7, "unknown router mode 'bogus'"),
        (
            format!(
                "{good}router_config = {{ router_mode = \"kv\", kv_router_config = {{ overlap_credit = 2.0 }} }}\n"
            ),
            7,
            "overlap_credit",
        ),
        (
            format!(
                "{good}[worker.router_config]\nrouter_mode = \"kv\"\nkv_router_config = {{ overlap_score_credit = -2.0 }}\n"
            ),
            7,
            "overlap_score_credit",
        ),
        (format!("{good}[router]\nrouter_mode = \"bogus\"\n"), 8, "unknown router mode 'bogus'"),
        (format!("{good}[router]\nrouter_mod = \"kv\"\n"), 8, "router_mod"),
        (format!("{good}[[modell]]\nname = \"x\"\n"), 7, "modell"),
        (format!("{good}model = \"again\"\n"), 7, "duplicate"),
        (format!("{good}url\n"), 7, "url"),
    ] {
        let (_folder, path) = write(&text);
        let error = ConfigFile::read(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("line {line}")), "{says}: {error}");
        assert!(error.contains(says), "{says}: {error}");
        assert!(error.contains("kvroute.toml"), "{says}: {error}");
    }
    let missing = ConfigFile::read(&PathBuf::from("/nowhere/kvroute.toml")).unwrap_err().to_string();
    assert!(missing.contains("/nowhere/kvroute.toml"), "{missing}");
}
