//! What is refused over HTTP, and how: status, headers and a body that OpenAI's clients can read.

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

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use kvroute::{
    select::{CostModel, Mode, Tuning},
    worker::mock::{MockEngine, MockSettings},
};
use serde_json::json;

use crate::rig::{Answer, MODEL, Rig, chat, embedder, engine_settings, eventually, plan, prose};

fn assert_error(answer: &Answer, status: u16, needle: &str) {
    assert_eq!(answer.status.as_u16(), status, "{}", answer.text);
    let error = &answer.json["error"];
    let message = error["message"].as_str().unwrap_or_else(|| panic!("no message: {}", answer.text));
    assert!(message.contains(needle), "{message}");
    assert!(error["type"].is_string() && error.get("param").is_some() && error.get("code").is_some());
}

async fn send(rig: &Rig, method: Method, url: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let mut request = Request::builder().method(method).uri(url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    rig.client.send(request.body(Full::new(Bytes::from(body.to_owned()))).unwrap()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_public_listener_says_what_it_takes() {
    let engine = MockEngine::start(engine_settings()).await.unwrap();
    let rig = Rig::assemble(plan(Mode::Kv, vec![embedder(1, &engine)]), vec![engine]).await;
    let at = |path: &str| format!("{}{path}", rig.public());
    let body = chat("you are brief", "hello").to_string();

    let answer = send(&rig, Method::GET, &at("/v1/chat/completions"), &[], "").await;
    assert_error(&answer, 405, "use POST");
    assert_eq!(answer.headers["allow"], "POST");
    let answer = send(&rig, Method::DELETE, &at("/v1/models"), &[], "").await;
    assert_error(&answer, 405, "use GET");
    assert_eq!(answer.headers["allow"], "GET, HEAD");
    assert_eq!(send(&rig, Method::HEAD, &at("/v1/models"), &[], "").await.status, 200);

    for path in ["/v2/chat", "/v1/chat/completions/", "/v1/../sleep", "/v1/load_lora_adapter"] {
        assert_error(&send(&rig, Method::POST, &at(path), &[], &body).await, 404, "not served here");
    }
    assert_error(&send(&rig, Method::GET, &at("/v1/models/%ff"), &[], "").await, 400, "UTF-8");

    for kind in ["text/plain", "application/jsonlines", "multipart/form-data; boundary=x"] {
        let url = at("/v1/audio/transcriptions");
        let answer = send(&rig, Method::POST, &url, &[("content-type", kind)], &body).await;
        assert_error(&answer, 415, "application/json");
    }
    let embed = json!({ "model": MODEL, "input": "hello" }).to_string();
    let spelled = [("content-type", "Application/JSON; charset=UTF-8")];
    assert_eq!(send(&rig, Method::POST, &at("/v1/embeddings"), &spelled, &embed).await.status, 200);
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_listener_refuses_in_the_same_shape() {
    let rig = Rig::start(Mode::Kv, 1).await;
    let at = |path: &str| format!("{}{path}", rig.admin());
    assert_error(&send(&rig, Method::GET, &at("/v1/workers/abc"), &[], "").await, 400, "number");
    assert_error(&send(&rig, Method::GET, &at("/v1/workers/99"), &[], "").await, 404, "no worker 99");
    assert_error(&send(&rig, Method::POST, &at("/v1/workers/99/drain"), &[], "").await, 404, "no worker 99");
    let answer = send(&rig, Method::PUT, &at("/v1/workers"), &[], "").await;
    assert_error(&answer, 405, "allow");
    assert!(answer.headers["allow"].to_str().unwrap().contains("POST"));
    assert_error(&send(&rig, Method::POST, &at("/v1/route/explain"), &[], "").await, 400, "empty");

    let worker = json!({ "url": "http://127.0.0.1:9", "model": "stolen" }).to_string();
    let page = [("origin", "https://example.com")];
    assert_error(&send(&rig, Method::POST, &at("/v1/workers"), &page, &worker).await, 403, "web pages");
    let encode = json!({ "url": "http://127.0.0.1:9", "model": "m", "worker_type": "encode" });
    assert_error(&rig.ask("/v1/workers", &encode).await, 400, "worker_type");
    let taken = json!({ "id": 1, "url": "http://127.0.0.1:9", "model": MODEL });
    assert_error(&rig.ask("/v1/workers", &taken).await, 409, "worker id 1 is taken");
    assert_eq!(rig.workers().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_was_given_an_id_can_register_again_under_it() {
    let rig = Rig::start(Mode::Kv, 1).await;
    let mut body = json!({ "url": "http://127.0.0.1:9", "model": "other", "lease_secs": 30 });
    let first = rig.ask("/v1/workers", &body).await;
    assert_eq!(first.status, 201, "{}", first.text);
    body["id"] = first.json["id"].clone();
    let again = rig.ask("/v1/workers", &body).await;
    assert_eq!((again.status.as_u16(), &again.json["id"]), (201, &first.json["id"]), "{}", again.text);
    assert_eq!(rig.workers().await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_before_the_first_byte_is_counted_as_cancelled() {
    let slow = MockSettings { speedup: 0.01, ..engine_settings() };
    let rig = Rig::start_with(Mode::Kv, vec![slow]).await;
    let body = chat(&prose(3, 400), "hello");
    let request = rig.post("/v1/chat/completions", &body);
    assert!(tokio::time::timeout(Duration::from_millis(300), request).await.is_err(), "the engine is slow");
    eventually("the request counts as cancelled", async || {
        rig.metric("kvroute_requests_total", "outcome=\"cancelled\"").await == 1.0
    })
    .await;
    rig.wait_for_idle().await;
    assert_eq!(rig.metric("kvroute_requests_total", "").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_shows_the_terms_of_each_model_and_what_weighs_them() {
    let seconds = ["queue", "own_prefill", "surcharge", "replication", "harm", "context", "requests"];
    explained(CostModel::Time, "seconds", &seconds).await;
    explained(CostModel::Blocks, "blocks", &["prefill", "decode", "requests"]).await;
}

/// Every candidate's cost is the sum of `terms`.
async fn explained(cost_model: CostModel, unit: &str, terms: &[&str]) {
    let rig = Rig::start_tuned(Mode::Kv, Tuning { cost_model, ..Tuning::default() }, 2).await;
    let mut body = chat(&prose(4, 80), "why?");
    body["nvext"] = json!({ "novelty": 1 });
    for _ in 0..2 {
        assert_eq!(rig.post("/v1/chat/completions", &body).await.status, 200);
    }
    assert_eq!(rig.metric("kvroute_unknown_hint_keys_total", "").await, 2.0);
    let explain = rig.ask("/v1/route/explain", &body).await.json;
    let tuning = &explain["router_config"]["kv_router_config"];
    assert_eq!(tuning["overlap_score_credit"], 1.0, "{explain}");
    assert_eq!(explain["router_cost_model"], cost_model.name());
    assert_eq!(explain["choice"]["cost_unit"], unit);
    for candidate in explain["candidates"].as_array().unwrap() {
        let cost = &candidate["cost"];
        let term = |name: &str| cost[name].as_f64().unwrap_or_else(|| panic!("no {name}: {cost}"));
        let sum: f64 = terms.iter().map(|name| term(name)).sum();
        assert!((term("total") - sum).abs() < 1e-12 && sum > 0.0, "{cost}");
        assert_eq!((&cost["unit"], term("decay")), (&json!(unit), 1.0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_series_stands_on_the_metrics_page_twice() {
    let rig = Rig::start(Mode::Kv, 2).await;
    for (endpoint, block_size) in [("other", 16), ("third", 32)] {
        let body = json!({ "url": "http://127.0.0.1:9", "model": MODEL, "endpoint": endpoint, "block_size": block_size });
        assert_eq!(rig.ask("/v1/workers", &body).await.status, 201);
    }
    let page = rig.client.get(&format!("{}/metrics", rig.admin())).await.text;
    let mut series: Vec<_> =
        page.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' ')).collect();
    let all = series.len();
    series.sort_unstable();
    series.dedup_by_key(|(name, _)| *name);
    assert_eq!(series.len(), all);
}
