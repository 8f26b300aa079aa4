//! Answers that stand still or take too long are cut, and never look complete.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod rig;

use std::{convert::Infallible, time::Duration};

use axum::{body::Body, response::Response};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use kvroute::{frontend::FrontendSettings, select::Mode};
use serde_json::{Value, json};

use crate::rig::{
    Http, Rig, Transcript, chat, engine_settings, eventually, plan,
    pools::{CHAT, COMPLETIONS, Pools},
    prose,
    scripted::{Scripted, endless},
    stream_of,
};

const SOON: Duration = Duration::from_millis(300);

async fn behind(worker: &Scripted, settings: impl FnOnce(&mut FrontendSettings)) -> Rig {
    let mut plan = plan(Mode::RoundRobin, vec![worker.worker(1)]);
    settings(&mut plan.settings);
    Rig::start_plan(plan, Vec::new()).await
}

/// A piece of an answer, and then nothing.
fn silent_after(kind: &'static str, piece: &'static str) -> Response {
    let pieces = stream::iter([Ok::<_, Infallible>(Bytes::from_static(piece.as_bytes()))]);
    let body = Body::from_stream(pieces.chain(stream::pending()));
    Response::builder().header("content-type", kind).body(body).unwrap()
}

/// Reads a stream to where it is cut; the error that ends it.
async fn cut(rig: &Rig) -> Value {
    let url = format!("{}{COMPLETIONS}", rig.public());
    let mut response = rig.client.open(&url, &stream_of(&prose(1, 40), 20)).await;
    assert_eq!(response.status(), 200);
    let seen = Transcript::of(response.body_mut()).await;
    assert!(seen.broken && !seen.text.contains("[DONE]") && seen.tokens() > 0, "{}", seen.text);
    rig.wait_for_idle().await;
    assert_eq!(rig.outcomes("cut").await, 1);
    serde_json::from_str::<Value>(seen.events().last().unwrap()).unwrap()["error"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_stands_still_is_cut() {
    let event = "data: {\"choices\":[{\"index\":0,\"text\":\"x\"}]}\n\n";
    let worker = Scripted::start(move |_| silent_after("text/event-stream", event)).await;
    let rig = behind(&worker, |settings| settings.upstream.idle_timeout = SOON).await;
    let error = cut(&rig).await;
    assert_eq!(
        (&error["code"], &error["source"]),
        (&json!("worker_idle_timeout"), &json!("worker")),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn so_is_one_that_takes_too_long_however_steady_it_is() {
    for millis in [1, 20] {
        let worker = Scripted::start(move |_| endless(millis)).await;
        let rig = behind(&worker, |settings| settings.total_timeout = SOON).await;
        let error = cut(&rig).await;
        assert_eq!(
            (&error["code"], &error["source"]),
            (&json!("total_timeout"), &json!("router")),
            "{error}"
        );
        assert_eq!(error["retry"], "unsafe");
        assert_eq!(rig.worker(1).await["excluded"], Value::Null, "which says nothing of the worker");
    }
}

/// An answer that does not end and of which there is always more than the client has read.
fn flood() -> Response {
    let event = format!("data: {{\"choices\":[{{\"index\":0,\"text\":\"{}\"}}]}}\n\n", "x".repeat(60_000));
    let events = stream::repeat(Ok::<_, Infallible>(Bytes::from(event)));
    Response::builder().header("content-type", "text/event-stream").body(Body::from_stream(events)).unwrap()
}

/// What it holds is given back while it reads nothing; of what it reads later it is told.
#[tokio::test(flavor = "multi_thread")]
async fn so_is_one_whose_client_reads_nothing() {
    for client in [Http::new(), Http::over_http2()] {
        let worker = Scripted::start(|_| flood()).await;
        let rig = behind(&worker, |settings| settings.total_timeout = SOON).await;
        let url = format!("{}{COMPLETIONS}", rig.public());
        let mut response = client.open(&url, &stream_of(&prose(1, 40), 20)).await;
        assert_eq!(response.status(), 200);
        rig.wait_for_idle().await;
        assert_eq!(rig.outcomes("cut").await, 1);
        eventually("its place is free", async || rig.metric("kvroute_open_requests", "").await == 0.0).await;
        let seen = Transcript::of(response.body_mut()).await;
        assert!(seen.broken && !seen.text.contains("[DONE]"));
        let error = serde_json::from_str::<Value>(seen.events().last().unwrap()).unwrap();
        assert_eq!(error["error"]["code"], "total_timeout");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_does_not_stream_breaks_off() {
    for total in [true, false] {
        let worker = Scripted::start(|_| silent_after("application/json", "{\"choices\":[")).await;
        let rig = behind(&worker, |settings| {
            *(if total { &mut settings.total_timeout } else { &mut settings.upstream.idle_timeout }) = SOON;
        })
        .await;
        let url = format!("{}{CHAT}", rig.public());
        let mut response = rig.client.open(&url, &chat("you are brief", "hello")).await;
        let seen = Transcript::of(response.body_mut()).await;
        assert_eq!((seen.broken, seen.text.as_str()), (true, "{\"choices\":["));
        rig.wait_for_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_first_byte_it_is_an_error() {
    let worker = Scripted::start(|_| silent_after("application/json", "")).await;
    let rig = behind(&worker, |settings| settings.total_timeout = SOON).await;
    let late = rig.post(CHAT, &chat("you are brief", "hello")).await;
    assert_eq!(late.status, 504, "{}", late.text);
    assert_eq!(late.json["error"]["code"], "total_timeout");
    assert_eq!(
        (&late.json["error"]["source"], &late.json["error"]["retry"]),
        (&json!("router"), &json!("unsafe"))
    );
    rig.wait_for_idle().await;
    assert_eq!((rig.outcomes("server_error").await, rig.outcomes("cancelled").await), (1, 0));
}

/// Both hops are one request with one time.
#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_counts_too() {
    let mut settings = engine_settings();
    (settings.speedup, settings.prefill_tokens_per_second) = (1.0, 20.0);
    // A step is short, so that the engine soon sees who left.
    settings.max_num_batched_tokens = 8;
    let pools = Pools::start_with(1, 1, settings).await;
    let rig = pools
        .behind_plan(|workers| {
            let mut plan = plan(Mode::RoundRobin, workers);
            plan.settings.total_timeout = SOON;
            plan
        })
        .await;
    let late = rig
        .post(COMPLETIONS, &json!({ "model": rig::MODEL, "max_tokens": 4, "prompt": prose(2, 100) }))
        .await;
    assert_eq!(
        (late.status.as_u16(), &late.json["error"]["code"]),
        (504, &json!("total_timeout")),
        "{}",
        late.text
    );
    rig.wait_for_free_engines().await;
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_beyond_all_time_are_none() {
    const EVER: Duration = Duration::from_secs(u64::MAX);
    let worker = Scripted::start(|_| {
        let pieces = stream::iter(["{\"choices\":", "[]}"]).then(|piece| async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok::<_, Infallible>(Bytes::from_static(piece.as_bytes()))
        });
        Response::builder()
            .header("content-type", "application/json")
            .body(Body::from_stream(pieces))
            .unwrap()
    })
    .await;
    let rig = behind(&worker, |settings| {
        settings.upstream.connect_timeout = EVER;
        settings.upstream.first_byte_timeout = EVER;
        settings.upstream.idle_timeout = EVER;
        for limit in [
            &mut settings.total_timeout,
            &mut settings.inhibition,
            &mut settings.slow_start,
            &mut settings.health_check_interval,
        ] {
            *limit = EVER;
        }
    })
    .await;
    let answer = rig.post(CHAT, &chat("you are brief", "hello")).await;
    assert_eq!((answer.status.as_u16(), answer.text.as_str()), (200, "{\"choices\":[]}"));
    rig.wait_for_idle().await;
}
