//! `--admission-check`: what a frontend does about workers whose engines are not what they were announced as.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod rig;

use std::sync::Arc;

use kvroute::{
    fleet::{StreamDirection, WorkerSpec},
    frontend::AdmissionCheck,
    select::Mode,
    worker::mock::{Endpoint, MockEngine, MockSettings, Omissions},
};
use serde_json::{Value, json};

use crate::rig::{
    MODEL, Rig, candidate, chat, credit, engine_settings, eventually, lasting_port, other_template,
    other_tokenizer, plan, prose, tool_template, with_lasting_ports, worker,
};

/// A frontend that checks, over engines that run already.
async fn rig(check: AdmissionCheck, engines: Vec<MockEngine>, workers: Vec<WorkerSpec>) -> Rig {
    let mut plan = plan(Mode::Kv, workers);
    plan.settings.admission_check = check;
    Rig::start_plan(plan, engines).await
}

/// The same over an engine with these settings, announced as it is.
async fn rig_of(check: AdmissionCheck, settings: MockSettings) -> Rig {
    let engine = MockEngine::start(settings).await.unwrap();
    let spec = worker(1, &engine);
    rig(check, vec![engine], vec![spec]).await
}

async fn wait_for_verdict(rig: &Rig, worker: u64, verdict: &str) -> Value {
    eventually(&format!("worker {worker}'s verdict is {verdict}"), async || {
        rig.workers().await.iter().any(|rank| rank["id"] == worker && rank["parity"]["verdict"] == verdict)
    })
    .await;
    rig.worker(worker).await["parity"].clone()
}

/// What the router credits worker 1 with once it has served `prompt`, and where it stands.
async fn credited_after(rig: &Rig, prompt: &Value) -> (u64, Value) {
    assert_eq!(rig.post("/v1/completions", prompt).await.status, 200);
    rig.wait_for_events().await;
    let explain = rig.explain(prompt).await;
    (credit(&explain, 1), candidate(&explain, 1).clone())
}

fn completion() -> Value {
    json!({ "model": MODEL, "prompt": prose(7, 60), "max_tokens": 1 })
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_checked_unless_asked_to() {
    let rig = rig_of(AdmissionCheck::Off, other_template(engine_settings())).await;
    rig.wait_for_streams("live").await;
    let (credit, _) = credited_after(&rig, &completion()).await;
    assert!(credit > 0);
    assert_eq!(rig.workers().await[0]["parity"]["verdict"], "unchecked");
    assert_eq!(rig.metric("kvroute_parity_checks_total", "").await, 0.0);
    assert_eq!(rig.engines[0].last_sequence(), Some(0), "one prompt, and no canary");
}

#[tokio::test(flavor = "multi_thread")]
async fn warn_says_what_differs_and_routes_as_before() {
    let rig = rig_of(AdmissionCheck::Warn, other_template(engine_settings())).await;
    let parity = wait_for_verdict(&rig, 1, "load_only").await;
    assert!(parity["reason"].as_str().unwrap().contains("chat template"), "{parity}");
    assert_eq!(parity["overlap_withheld"], false);
    let (credit, _) = credited_after(&rig, &completion()).await;
    assert!(credit > 0, "its completions are predicted all the same");
}

#[tokio::test(flavor = "multi_thread")]
async fn strict_credits_a_worker_that_was_shown_to_agree() {
    let rig = rig_of(AdmissionCheck::Strict, engine_settings()).await;
    let parity = wait_for_verdict(&rig, 1, "admit").await;
    assert_eq!((&parity["overlap_withheld"], &parity["reason"]), (&json!(false), &Value::Null));
    let (credit, _) = credited_after(&rig, &completion()).await;
    assert!(credit > 0);
    assert_eq!(rig.metric("kvroute_parity_checks_total", "outcome=\"admit\"").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn strict_routes_a_worker_that_differs_by_load_and_says_why() {
    let rig = rig_of(AdmissionCheck::Strict, other_template(engine_settings())).await;
    let parity = wait_for_verdict(&rig, 1, "load_only").await;
    assert_eq!(parity["overlap_withheld"], true);
    rig.wait_for_streams("live").await;
    let (credit, row) = credited_after(&rig, &completion()).await;
    assert_eq!(credit, 0);
    assert_eq!(row["withheld_because"], "parity");
    assert!(row["withheld_overlap_blocks"]["gpu"].as_u64().unwrap() > 0, "{row}");
    assert!(row["parity"]["reason"].as_str().unwrap().contains("chat template"), "{row}");
    assert_eq!(rig.metric("kvroute_worker_parity", "verdict=\"load_only\"").await, 1.0);
    assert_eq!(rig.metric("kvroute_worker_parity_withheld", "worker=\"1\"").await, 1.0);
    // It serves all the same.
    assert_eq!(rig.post("/v1/chat/completions", &chat("be brief", "hello")).await.status, 200);
}

/// Engines that are not what they are announced as, with the word that names what differs.
async fn mismatches() -> Vec<(MockEngine, WorkerSpec, &'static str)> {
    let endpoint = || format!("tcp://127.0.0.1:{}", lasting_port());
    let silent = MockSettings { events: None, replay: None, ..engine_settings() };
    let connecting = MockSettings { events: Some(Endpoint::new(endpoint())), ..engine_settings() };
    let omissions = |extra_keys, lora_names| Omissions { extra_keys, lora_names, ..Omissions::default() };
    let numbered = MockSettings { loras: vec!["ad".to_owned()], ..engine_settings() };
    let cases = [
        ("tokenizer", other_tokenizer(engine_settings())),
        ("chat template", other_template(engine_settings())),
        ("chat template, tools", MockSettings { encoder: Arc::new(tool_template()), ..engine_settings() }),
        ("ranks", MockSettings { data_parallel_rank: 1, ..engine_settings() }),
        ("block size", MockSettings { block_size: 32, ..engine_settings() }),
        ("cache salt", MockSettings { omissions: omissions(true, false), ..engine_settings() }),
        ("lora name", MockSettings { omissions: omissions(false, true), ..numbered }),
        ("publishes none", silent),
        ("nobody listens", connecting),
        ("nobody connects", engine_settings()),
    ];
    let mut started = Vec::new();
    for ((name, settings), id) in cases.into_iter().zip(1..) {
        let lora_adapters = settings.loras.clone();
        let engine = MockEngine::start(settings).await.unwrap();
        let mut known = worker(id, &engine);
        if name == "nobody connects" {
            // On another address than the engine's, or one of the two could not listen.
            let port = known.kv_events_endpoint.as_ref().and_then(|it| it.rsplit(':').next()).unwrap();
            known.kv_events_endpoint = Some(format!("tcp://127.0.0.2:{port}"));
            known.kv_events_direction = StreamDirection::Bind;
        }
        // Announced as one that publishes, whether or not it does; and in a set of its own, since cards that differ stop a set.
        let kv_events_endpoint = known.kv_events_endpoint.clone().or_else(|| Some(endpoint()));
        let component = format!("c{id}");
        started.push((engine, WorkerSpec { component, lora_adapters, kv_events_endpoint, ..known }, name));
    }
    started
}

/// A frontend that checks so, and every mismatch registered with it.
async fn mismatched(check: AdmissionCheck) -> (Rig, Vec<(u64, &'static str)>) {
    let mut rig = rig(check, Vec::new(), Vec::new()).await;
    let mut names = Vec::new();
    for (engine, spec, name) in mismatches().await {
        let answer = rig.register(&spec, Some(600.0)).await;
        assert_eq!(answer.status, 201, "{name}: {}", answer.text);
        rig.engines.push(engine);
        names.push((spec.id.unwrap(), name));
    }
    (rig, names)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_mismatch_is_named_and_withholds_under_strict() {
    let (rig, names) = mismatched(AdmissionCheck::Strict).await;
    for (id, name) in names {
        let parity = wait_for_verdict(&rig, id, "load_only").await;
        assert!(parity["reason"].as_str().unwrap().contains(name), "{name}: {parity}");
        assert_eq!(parity["overlap_withheld"], true, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_mismatch_is_named_and_withholds_nothing_under_warn() {
    let (rig, names) = mismatched(AdmissionCheck::Warn).await;
    for (id, name) in names {
        let parity = wait_for_verdict(&rig, id, "load_only").await;
        assert!(parity["reason"].as_str().unwrap().contains(name), "{name}: {parity}");
        assert_eq!(parity["overlap_withheld"], false, "{name}");
    }
    assert_eq!(rig.metric("kvroute_worker_parity_withheld", "").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_mismatch_is_looked_for_unless_asked_to() {
    let (rig, names) = mismatched(AdmissionCheck::Off).await;
    // A check would have begun with a worker's joining, and the first of them seconds ago.
    for (id, name) in names {
        let parity = rig.worker(id).await["parity"].clone();
        assert_eq!(
            (&parity["verdict"], &parity["overlap_withheld"]),
            (&json!("unchecked"), &json!(false)),
            "{name}"
        );
    }
    assert_eq!(rig.metric("kvroute_parity_checks_total", "").await, 0.0);
    assert!(rig.engines.iter().all(|engine| engine.last_sequence().is_none()), "nobody was sent a canary");
}

#[tokio::test(flavor = "multi_thread")]
async fn strict_refuses_a_registration_whose_requests_would_fail() {
    let engine = MockEngine::start(engine_settings()).await.unwrap();
    let known = worker(7, &engine);
    for (spec, name) in [
        (WorkerSpec { ranks: 2, ..known.clone() }, "ranks"),
        (WorkerSpec { lora_adapters: vec!["ad".to_owned()], ..known.clone() }, "lora adapters"),
        (WorkerSpec { model: "other".to_owned(), ..known }, "model"),
    ] {
        let rig = rig(AdmissionCheck::Strict, Vec::new(), Vec::new()).await;
        let answer = rig.register(&spec, Some(600.0)).await;
        let message = answer.json["error"]["message"].as_str().unwrap();
        assert!(answer.status == 400 && message.contains(name), "{}", answer.text);
        assert!(rig.workers().await.is_empty());
        assert_eq!(rig.metric("kvroute_parity_checks_total", "outcome=\"refuse\"").await, 1.0);
        drop(rig);
        // With off it is taken in.
        let rig = self::rig(AdmissionCheck::Off, Vec::new(), Vec::new()).await;
        assert_eq!(rig.register(&spec, Some(600.0)).await.status, 201);
        assert_eq!(rig.worker(7).await["parity"]["verdict"], "unchecked");
        drop(rig);
        // With warn it is taken in, and said.
        let rig = self::rig(AdmissionCheck::Warn, Vec::new(), Vec::new()).await;
        assert_eq!(rig.register(&spec, Some(600.0)).await.status, 201);
        let parity = wait_for_verdict(&rig, 7, "refuse").await;
        assert!(parity["reason"].as_str().unwrap().contains(name), "{parity}");
    }
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strict_lets_a_worker_of_the_file_go_that_would_fail_its_requests() {
    let engine = MockEngine::start(engine_settings()).await.unwrap();
    let spec = WorkerSpec { ranks: 2, ..worker(1, &engine) };
    let rig = rig(AdmissionCheck::Strict, vec![engine], vec![spec]).await;
    eventually("the worker is let go", async || rig.workers().await.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_connects_to_us_is_checked_through_the_index() {
    let endpoint = format!("tcp://127.0.0.1:{}", lasting_port());
    let settings = MockSettings { events: Some(Endpoint::new(endpoint)), ..engine_settings() };
    let engine = MockEngine::start(settings).await.unwrap();
    let spec = WorkerSpec { kv_events_direction: StreamDirection::Bind, ..worker(1, &engine) };
    let rig = rig(AdmissionCheck::Strict, vec![engine], vec![spec]).await;
    // The first canary may come before the engine has connected: it is asked again.
    wait_for_verdict(&rig, 1, "admit").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_is_credited_again_once_its_engine_was_put_right() {
    let settings = with_lasting_ports(engine_settings());
    let mut rig = rig_of(AdmissionCheck::Strict, other_template(settings.clone())).await;
    wait_for_verdict(&rig, 1, "load_only").await;
    rig.wait_for_streams("live").await;
    rig.engines.pop().unwrap().stop().await;
    rig.engines.push(MockEngine::start(settings).await.unwrap());
    let parity = wait_for_verdict(&rig, 1, "admit").await;
    assert_eq!(parity["overlap_withheld"], false);
    rig.wait_for_streams("live").await;
    let (credit, _) = credited_after(&rig, &completion()).await;
    assert!(credit > 0);
}
