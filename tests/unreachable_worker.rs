//! Workers that cannot be reached, that refuse, and that die in the middle of an answer.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod rig;

use http::StatusCode;
use kvroute::{
    fleet::WorkerSpec,
    select::Mode,
    worker::mock::{MockEngine, MockSettings},
};
use serde_json::{Value, json};

use crate::rig::{
    MODEL, Rig, Transcript, candidate, chat, engine_settings, eventually, lasting_port, plan, prose,
    stream_of, worker,
};

/// A worker at whose port nobody listens.
fn dead(id: u64) -> WorkerSpec {
    let url = format!("http://127.0.0.1:{}", lasting_port());
    WorkerSpec { id: Some(id), ..WorkerSpec::new(&url, MODEL) }
}

async fn excluded(rig: &Rig, id: u64) -> Value {
    rig.worker(id).await["excluded"].clone()
}

/// OpenAI's shape, and a message that says what to do.
fn expect_readable(error: &Value) {
    let error = &error["error"];
    assert!(error["type"].is_string() && error.get("param").is_some(), "{error}");
    assert!(error.get("code").is_some(), "{error}");
    assert!(error["message"].as_str().unwrap().contains("send the request again"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_go_to_another_worker_and_the_dead_one_rests() {
    let engine = MockEngine::start(engine_settings()).await.unwrap();
    let workers = vec![worker(1, &engine), dead(2)];
    let rig = Rig::start_plan(plan(Mode::RoundRobin, workers), vec![engine]).await;
    let mut body = chat("you are brief", "hello");
    body["nvext"] = json!({ "extra_fields": ["worker_id"] });
    for _ in 0..2 {
        let answer = rig.post("/v1/chat/completions", &body).await;
        assert_eq!((answer.status.as_u16(), answer.worker()), (200, 1), "{}", answer.text);
    }
    assert_eq!(excluded(&rig, 2).await, "unroutable");
    assert_eq!(excluded(&rig, 1).await, Value::Null);
    let explain = rig.explain(&body).await;
    assert_eq!(candidate(&explain, 2)["excluded"], "unroutable", "{explain}");
    assert_eq!(candidate(&explain, 2)["why"], "excluded: unroutable");
    assert_eq!(rig.metric("kvroute_retries_total", "").await, 1.0, "it was tried once, then left alone");

    eventually("it is given another chance", async || excluded(&rig, 2).await.is_null()).await;
    for _ in 0..2 {
        let answer = rig.post("/v1/chat/completions", &body).await;
        assert_eq!((answer.status.as_u16(), answer.worker()), (200, 1), "{}", answer.text);
    }
    assert_eq!(rig.metric("kvroute_retries_total", "").await, 2.0);
    rig.wait_for_idle().await;
    assert_eq!(rig.outcomes("ok").await, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_can_be_reached() {
    let rig = Rig::start_plan(plan(Mode::Kv, (1..=3).map(dead).collect()), Vec::new()).await;
    let body = chat("you are brief", "hello");
    let tried = rig.post("/v1/chat/completions", &body).await;
    assert_eq!(tried.status, 502, "{}", tried.text);
    assert_eq!(tried.json["error"]["code"], "worker_unreachable");
    expect_readable(&tried.json);
    assert_eq!(rig.metric("kvroute_retries_total", "").await, 2.0);

    // All rest, so the one that rested longest is tried all the same: it may be well by now.
    let explain = rig.explain(&body).await;
    let resting: Vec<_> = (1..=3).filter(|id| candidate(&explain, *id)["excluded"] == "unroutable").collect();
    assert_eq!(resting.len(), 2, "{explain}");
    for id in 1..=3 {
        assert_eq!(candidate(&explain, id)["failures"], 1, "{explain}");
        assert!(candidate(&explain, id)["inhibited_seconds"].as_f64() > Some(0.0), "{explain}");
        assert!(rig.metric("kvroute_worker_inhibited_seconds", &format!("worker=\"{id}\"")).await > 0.0);
    }
    let again = rig.post("/v1/chat/completions", &body).await;
    assert_eq!(again.status, 502, "{}", again.text);
    expect_readable(&again.json);
    rig.wait_for_idle().await;
    assert_eq!(rig.outcomes("server_error").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_only_worker_cannot_be_reached() {
    let rig = Rig::start_plan(plan(Mode::Kv, vec![dead(1)]), Vec::new()).await;
    let answer = rig.post("/v1/chat/completions", &chat("you are brief", "hello")).await;
    assert_eq!(answer.status, 502, "{}", answer.text);
    let code = &answer.json["error"]["code"];
    assert_eq!(code, "worker_unreachable", "why there is no answer, and not that nobody is left");
    expect_readable(&answer.json);
    assert_eq!(rig.metric("kvroute_retries_total", "").await, 0.0, "there was no other to try");
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_says_it_is_unavailable_rests_and_one_that_fails_a_request_does_not() {
    for (status, rests) in [(500, false), (502, true), (503, true), (504, true)] {
        let rig = Rig::start(Mode::RoundRobin, 2).await;
        rig.engines[0].fail_next(StatusCode::from_u16(status).unwrap());
        let mut body = chat("you are brief", "hello");
        body["nvext"] = json!({ "extra_fields": ["worker_id"] });
        let failed = rig.post("/v1/chat/completions", &body).await;
        if matches!(status, 502 | 503) {
            assert_eq!(
                (failed.status.as_u16(), failed.worker()),
                (200, 2),
                "another serves it: {}",
                failed.text
            );
        } else {
            assert_eq!(failed.status.as_u16(), status, "it is passed on: {}", failed.text);
        }
        let mut served = Vec::new();
        for _ in 0..3 {
            served.push(rig.post("/v1/chat/completions", &body).await.worker());
        }
        assert_eq!(!served.contains(&1), rests, "{status}: {served:?}");
        rig.wait_for_idle().await;
    }
}

/// A stream that its engine does not finish: an error event says so, and nothing says that it is complete.
async fn expect_cut(rig: &Rig, seen: &Transcript) {
    assert!(seen.broken && !seen.text.contains("[DONE]"), "{}", seen.text);
    let error: Value = serde_json::from_str(seen.events().last().unwrap()).unwrap();
    assert_eq!(error["error"]["code"], "worker_stream_cut");
    expect_readable(&error);
    rig.wait_for_idle().await;
    assert_eq!((rig.outcomes("cut").await, rig.outcomes("ok").await), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_cut() {
    let rig = Rig::start(Mode::Kv, 1).await;
    rig.engines[0].cut_next(3);
    let url = format!("{}/v1/completions", rig.public());
    let mut response = rig.client.open(&url, &stream_of(&prose(1, 40), 20)).await;
    let seen = Transcript::of(response.body_mut()).await;
    assert_eq!(seen.tokens(), 3, "{}", seen.text);
    expect_cut(&rig, &seen).await;
    rig.wait_for_free_engines().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_dies_in_the_middle_of_a_stream() {
    let slow = MockSettings { speedup: 1.0, ..engine_settings() };
    let mut rig = Rig::start_with(Mode::Kv, vec![slow]).await;
    let url = format!("{}/v1/completions", rig.public());
    let mut response = rig.client.open(&url, &stream_of(&prose(1, 40), 5_000)).await;
    let mut seen = Transcript::default();
    seen.read(response.body_mut(), |seen| seen.tokens() >= 2).await;
    rig.engines.remove(0).stop().await;
    seen.read(response.body_mut(), |_| false).await;
    expect_cut(&rig, &seen).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_engine_refuses_is_passed_on() {
    let rig = Rig::start(Mode::Kv, 1).await;
    for (status, outcome) in [(500, "server_error"), (503, "server_error"), (429, "client_error")] {
        let status = StatusCode::from_u16(status).unwrap();
        for stream in [false, true] {
            let before = rig.outcomes(outcome).await;
            let mut body = stream_of(&prose(2, 40), 4);
            if !stream {
                body = json!({ "model": MODEL, "prompt": prose(2, 40), "max_tokens": 4 });
            }
            let engine = &rig.engines[0];
            engine.fail_next(status);
            let direct =
                rig.client.post(&format!("http://{}/v1/completions", engine.http_addr()), &body).await;
            engine.fail_next(status);
            let routed = rig.post("/v1/completions", &body).await;
            assert_eq!((routed.status, &routed.text), (status, &direct.text), "as the engine says it");
            rig.wait_for_idle().await;
            assert_eq!(rig.outcomes(outcome).await, before + 1);
        }
    }
    assert_eq!(rig.metric("kvroute_retries_total", "").await, 0.0);
    assert_eq!(excluded(&rig, 1).await, Value::Null);
}
