//! A worker that failed gets nothing for a while, then one request at a time, until one of them is answered.

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

use axum::body::Body;
use kvroute::select::Mode;
use serde_json::{Value, json};

use crate::rig::{
    Answer, Rig, candidate, chat, eventually, plan,
    pools::CHAT,
    scripted::{Scripted, answer, served},
};

fn body() -> Value {
    chat("you are brief", "hello")
}

/// Sent to the first worker, and to no other.
fn pinned() -> Value {
    let mut body = body();
    body["nvext"] = json!({ "backend_instance_id": 1 });
    body
}

async fn passive(rig: &Rig) -> Value {
    rig.worker(1).await["health"]["passive"].clone()
}

async fn expect_state(rig: &Rig, state: &str) {
    eventually(&format!("the breaker is {state}"), async || passive(rig).await["breaker"] == state).await;
    for other in ["closed", "open", "half_open"] {
        let labels = format!("worker=\"1\",rank=\"0\",model=\"mock\",state=\"{other}\"");
        let value = rig.metric("kvroute_worker_breaker_state", &labels).await;
        assert_eq!(value == 1.0, other == state, "{other}");
    }
}

/// Refused by the router, since the only worker that it may go to gets nothing.
fn expect_refused(refused: &Answer) {
    assert_eq!(refused.status, 503, "{}", refused.text);
    assert_eq!(refused.headers["x-kvroute-error-source"], "router");
    assert!(refused.text.contains("unroutable"), "{}", refused.text);
}

/// Turned away by the worker itself.
fn expect_turned_away(away: &Answer) {
    assert_eq!((away.status.as_u16(), away.text.as_str()), (503, "its own no"));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_request_at_a_time_tries_it_and_its_answer_closes_the_breaker() {
    let workers = [
        Scripted::start(|n| match n {
            0 | 1 => answer(503, &[], "its own no"),
            // A head, and no byte of a body: nothing that says how it is.
            2 => axum::response::Response::new(Body::from_stream(futures_util::stream::pending::<
                Result<bytes::Bytes, std::convert::Infallible>,
            >())),
            _ => served(1),
        })
        .await,
        Scripted::start(|_| served(2)).await,
    ];
    let specs = (1..).zip(&workers).map(|(id, worker)| worker.worker(id)).collect();
    let mut plan = plan(Mode::RoundRobin, specs);
    plan.settings.inhibition = Duration::from_secs(2);
    let rig = Rig::start_plan(plan, Vec::new()).await;
    let seen = || workers[0].seen();
    expect_state(&rig, "closed").await;

    expect_turned_away(&rig.post(CHAT, &pinned()).await);
    expect_state(&rig, "open").await;
    expect_refused(&rig.post(CHAT, &pinned()).await);
    assert_eq!(seen(), 1);

    expect_state(&rig, "half_open").await;
    expect_turned_away(&rig.post(CHAT, &pinned()).await);
    let again = passive(&rig).await;
    assert_eq!((&again["breaker"], &again["failures"]), (&json!("open"), &json!(2)), "{again}");
    assert!(again["inhibited_seconds"].as_f64().unwrap() > 2.0, "for longer than the first time: {again}");

    expect_state(&rig, "half_open").await;
    let (client, url) = (rig.client.clone(), format!("{}{CHAT}", rig.public()));
    let probe = tokio::spawn(async move { client.post(&url, &pinned()).await });
    eventually("a request tries the worker", async || seen() == 3).await;
    expect_refused(&rig.post(CHAT, &pinned()).await);
    for _ in 0..3 {
        let elsewhere = rig.post(CHAT, &body()).await;
        assert_eq!((elsewhere.status.as_u16(), elsewhere.headers["x-by"].as_bytes()), (200, &b"2"[..]));
    }
    assert_eq!(seen(), 3, "nobody else did");
    let explain = rig.explain(&body()).await;
    assert_eq!(candidate(&explain, 1)["breaker"], "half_open", "{explain}");
    assert_eq!(candidate(&explain, 1)["excluded"], "unroutable", "{explain}");

    probe.abort();
    eventually("the next one may try it", async || passive(&rig).await["inhibited_seconds"] == 0.0).await;
    assert_eq!(rig.post(CHAT, &pinned()).await.headers["x-by"], "1");
    expect_state(&rig, "closed").await;
    assert_eq!(passive(&rig).await["failures"], 0);
    let changes = async |to| rig.metric("kvroute_breaker_changes_total", &format!("to=\"{to}\"")).await;
    assert_eq!((changes("open").await, changes("half_open").await, changes("closed").await), (2.0, 3.0, 1.0));
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_with_a_4xx_opens_it() {
    for status in [400, 404, 408, 422, 429] {
        let worker = Scripted::start(move |_| answer(status, &[], "its own no")).await;
        let rig = Rig::start_plan(plan(Mode::RoundRobin, vec![worker.worker(1)]), Vec::new()).await;
        for _ in 0..3 {
            assert_eq!(rig.post(CHAT, &body()).await.status, status);
        }
        expect_state(&rig, "closed").await;
        assert_eq!(passive(&rig).await["failures"], 0);
    }
}

/// Failures alone never leave requests without a worker, however many come.
#[tokio::test(flavor = "multi_thread")]
async fn where_all_are_open_the_least_bad_takes_all_requests() {
    let workers = [
        Scripted::start(|_| answer(503, &[], "its own no")).await,
        Scripted::start(|n| if n == 0 { answer(503, &[], "its own no") } else { served(2) }).await,
    ];
    let specs = (1..).zip(&workers).map(|(id, worker)| worker.worker(id)).collect();
    let mut plan = plan(Mode::RoundRobin, specs);
    plan.settings.inhibition = Duration::from_secs(600);
    let rig = Rig::start_plan(plan, Vec::new()).await;
    expect_turned_away(&rig.post(CHAT, &body()).await);
    for _ in 0..10 {
        assert_eq!(rig.post(CHAT, &body()).await.headers["x-by"], "2", "after the other one's trial");
    }
    rig.wait_for_idle().await;
}
