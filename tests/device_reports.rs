//! What workers tell of their GPUs with their heartbeats, and what a frontend does with it.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod rig;

use kvroute::{
    device::Weights,
    select::{Mode, Tuning},
    worker::mock::MockEngine,
};
use serde_json::{Value, json};

use crate::rig::{Rig, candidate, chat, engine_settings, eventually, plan, prose, worker};

/// What a heartbeat of a worker with one rank says.
async fn tell(rig: &Rig, id: u64, rank: &Value) -> Value {
    let answer =
        rig.ask(&format!("/v1/workers/{id}/heartbeat"), &json!({ "devices": { "ranks": [rank] } })).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json
}

fn lost() -> Value {
    json!({ "fault": { "gpu": "GPU-a", "reason": "lost" }, "gpus": [{ "uuid": "GPU-a" }] })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_at_fault_fences_its_worker_in_every_mode_and_an_operator_has_the_last_word() {
    for mode in [Mode::Kv, Mode::RoundRobin, Mode::Random] {
        let rig = Rig::start(mode, 2).await;
        tell(&rig, 1, &lost()).await;
        let told = rig.worker(1).await;
        assert_eq!(
            (&told["excluded"], &told["devices"]["fault"]["reason"]),
            (&json!("fenced"), &json!("lost"))
        );
        let mut body = chat("", "hello");
        body["nvext"] = json!({ "extra_fields": ["worker_id"] });
        for _ in 0..4 {
            let answer = rig.post("/v1/chat/completions", &body).await;
            assert_eq!((answer.status.as_u16(), answer.worker()), (200, 2), "{mode}");
        }
        let explain = rig.explain(&body).await;
        assert_eq!(candidate(&explain, 1)["why"], "excluded: fenced");
        assert_eq!(rig.metric("kvroute_worker_device_fenced", "worker=\"1\"").await, 1.0);
        assert!(rig.metric("kvroute_exclusions_total", "reason=\"fenced\"").await >= 4.0);

        let fence =
            async |fence: &str| rig.ask("/v1/workers/1/fence", &json!({ "fence": fence })).await.status;
        assert_eq!(fence("off").await, 200);
        assert_eq!(rig.worker(1).await["excluded"], Value::Null);
        assert_eq!(fence("on").await, 200);
        tell(&rig, 1, &json!({})).await;
        assert_eq!(rig.worker(1).await["excluded"], "fenced", "whatever the GPUs say");
        assert_eq!(fence("auto").await, 200);
        assert_eq!(rig.worker(1).await["excluded"], Value::Null);
        assert_eq!(fence("perhaps").await, 400);
        assert_eq!(rig.ask("/v1/workers/9/fence", &json!({ "fence": "on" })).await.status, 404);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_everybody_is_fenced_the_refusal_says_so() {
    let rig = Rig::start(Mode::Kv, 1).await;
    tell(&rig, 1, &lost()).await;
    let answer = rig.post("/v1/chat/completions", &chat("", "hello")).await;
    assert_eq!(answer.status, 503);
    assert!(answer.text.contains("1 fenced"), "{}", answer.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_term_of_a_weight_is_explained_and_divides_the_cost() {
    let rig = Rig::start(Mode::Kv, 2).await;
    let devices = json!({ "capability": 0.5, "utilisation": 0.5, "engine_seen": true });
    tell(&rig, 1, &devices).await;
    let explain = rig.explain(&chat(&prose(1, 60), "hello")).await;
    let (slow, plain) = (candidate(&explain, 1), candidate(&explain, 2));
    let terms = json!({ "weight": 0.25, "capability": 0.5, "external_load": 0.5, "freshness": 1.0 });
    assert_eq!((&slow["device"], &plain["device"]), (&terms, &Value::Null));
    assert_eq!(slow["cost"]["total"].as_f64().unwrap(), plain["cost"]["total"].as_f64().unwrap() * 4.0);
    assert_eq!(explain["choice"]["worker_id"], 2);
    assert!(slow["why"].as_str().unwrap().contains("on devices that weigh 0.25 against 1.00"), "{slow}");
    assert_eq!(explain["device_weights"]["enabled"], true);
    let gauge = async |name: &str, worker: u64| {
        rig.metric(&format!("kvroute_worker_device_{name}"), &format!("worker=\"{worker}\"")).await
    };
    assert_eq!((gauge("telemetry", 1).await, gauge("telemetry", 2).await), (1.0, 0.0));
    assert_eq!((gauge("weight", 1).await, gauge("weight", 2).await), (0.25, 1.0));
    assert_eq!((gauge("capability", 1).await, gauge("external_load", 1).await), (0.5, 0.5));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_switch_turns_all_of_it_off() {
    let device_weights = Weights { enabled: false, ..Weights::default() };
    let rig = Rig::start_tuned(Mode::Kv, Tuning { device_weights, ..Tuning::default() }, 1).await;
    tell(&rig, 1, &json!({ "fault": { "gpu": "GPU-a", "reason": "lost" }, "capability": 0.5 })).await;
    let explain = rig.explain(&chat("", "hello")).await;
    let only = candidate(&explain, 1);
    assert_eq!((&only["device"], &only["excluded"]), (&Value::Null, &Value::Null));
    // It is shown all the same.
    assert_eq!(rig.worker(1).await["devices"]["fault"]["reason"], "lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_brings_its_own_weights_and_members_have_to_agree_on_them() {
    let (one, other) = (
        MockEngine::start(engine_settings()).await.unwrap(),
        MockEngine::start(engine_settings()).await.unwrap(),
    );
    let off = serde_json::from_value(json!({ "enabled": false })).unwrap();
    let first = kvroute::fleet::WorkerSpec { device_weights: Some(off), ..worker(1, &one) };
    let rig = Rig::assemble(plan(Mode::Kv, vec![first]), vec![one]).await;
    tell(&rig, 1, &lost()).await;
    assert_eq!(rig.worker(1).await["excluded"], Value::Null, "its card wants no fences");
    let answer = rig.register(&worker(2, &other), None).await;
    assert_eq!(answer.json["differing_fields"], json!(["device_weights.enabled"]), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn news_that_cannot_be_used_renews_the_lease_and_says_what_is_wrong() {
    let rig = Rig::start(Mode::Kv, 1).await;
    for devices in [json!({ "ranks": [{}, {}] }), json!({ "ranks": 7 }), json!({})] {
        let answer = rig.ask("/v1/workers/1/heartbeat", &json!({ "devices": devices })).await;
        assert_eq!((answer.status.as_u16(), &answer.json["status"]), (200, &json!("ok")));
        assert!(answer.json["devices_problem"].is_string(), "{answer:?}");
    }
    assert_eq!(rig.worker(1).await["devices"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn old_news_fades_and_a_fence_with_it() {
    let device_weights = Weights { stale_secs: 1.0, ..Weights::default() };
    let rig = Rig::start_tuned(Mode::Kv, Tuning { device_weights, ..Tuning::default() }, 1).await;
    tell(&rig, 1, &json!({ "fault": { "gpu": "GPU-a", "reason": "lost" }, "capability": 0.5 })).await;
    eventually("the fence falls", async || rig.worker(1).await["excluded"].is_null()).await;
    let told = rig.worker(1).await;
    assert_eq!(told["devices"]["weight"]["weight"], 1.0, "{told}");
    assert!(told["devices"]["sample_age_ms"].as_u64().unwrap() >= 1000);
    assert_eq!(rig.metric("kvroute_worker_device_telemetry", "worker=\"1\"").await, 0.0);
}
