//! A frontend that stops: open streams finish, new connections are refused, and patience ends.

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

use kvroute::{select::Mode, worker::mock::MockSettings};
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use crate::rig::{Http, Rig, Transcript, chat, engine_settings, eventually, plan, prose, stream_of, worker};

async fn rig(drain_timeout: Duration) -> Rig {
    let settings = MockSettings { speedup: 1.0, step_overhead: Duration::ZERO, ..engine_settings() };
    let engine = kvroute::worker::mock::MockEngine::start(settings).await.unwrap();
    let mut plan = plan(Mode::Kv, vec![worker(1, &engine)]);
    plan.settings.drain_timeout = drain_timeout;
    Rig::start_plan(plan, vec![engine]).await
}

async fn outlive_the_timeout(client: Http) {
    let rig = rig(Duration::from_millis(300)).await;
    let url = format!("{}/v1/completions", rig.public());
    let mut response = client.open(&url, &stream_of(&prose(1, 40), 5_000)).await;
    let mut seen = Transcript::default();
    seen.read(response.body_mut(), |seen| seen.tokens() >= 1).await;

    let Rig { frontend, engines, .. } = rig;
    assert!(!frontend.stop().await, "the stream did not finish");
    seen.read(response.body_mut(), |_| false).await;
    assert!(seen.broken && !seen.text.contains("[DONE]"), "{}", seen.text);
    eventually("the engine stops working", async || engines[0].running() + engines[0].used_blocks() == 0)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_takes_too_long_is_cut() {
    outlive_the_timeout(Http::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_over_http2_that_takes_too_long_is_cut() {
    outlive_the_timeout(Http::over_http2()).await;
}

async fn finish_in_time(client: Http) {
    let rig = rig(Duration::from_secs(60)).await;
    let public = rig.frontend.public_addr();
    // Connections that are open and idle, used or not, keep nobody waiting.
    rig.post("/v1/chat/completions", &chat("you are brief", "hello")).await;
    let unused = TcpStream::connect(public).await.unwrap();
    let url = format!("{}/v1/completions", rig.public());
    let mut response = client.open(&url, &stream_of(&prose(1, 40), 100)).await;
    let mut seen = Transcript::default();
    seen.read(response.body_mut(), |seen| seen.tokens() >= 1).await;

    let Rig { frontend, engines, client: _client } = rig;
    let stopping = tokio::spawn(frontend.stop());
    eventually("new connections are refused", async || TcpStream::connect(public).await.is_err()).await;
    seen.read(response.body_mut(), |_| false).await;
    assert!(seen.is_done() && !seen.broken, "{}", seen.text);
    assert_eq!(seen.tokens(), 100);
    assert!(stopping.await.unwrap(), "every request finished");
    assert_eq!(engines[0].running(), 0);
    drop(unused);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_stream_finishes_whole() {
    finish_in_time(Http::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_stream_over_http2_finishes_whole() {
    finish_in_time(Http::over_http2()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frontend_that_is_dropped_cuts_everything() {
    let rig = rig(Duration::from_secs(60)).await;
    let url = format!("{}/v1/completions", rig.public());
    let mut response = rig.client.open(&url, &stream_of(&prose(1, 40), 5_000)).await;
    let mut seen = Transcript::default();
    seen.read(response.body_mut(), |seen| seen.tokens() >= 1).await;
    let Rig { frontend, engines, client: _client } = rig;
    drop(frontend);
    seen.read(response.body_mut(), |_| false).await;
    assert!(seen.broken && !seen.is_done(), "{}", seen.text);
    eventually("the engine stops working", async || engines[0].running() + engines[0].used_blocks() == 0)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_head_keeps_nobody_waiting() {
    let rig = rig(Duration::from_secs(120)).await;
    let mut half = TcpStream::connect(rig.frontend.public_addr()).await.unwrap();
    half.write_all(b"POST /v1/chat/completions HT").await.unwrap();
    // By then it has been read.
    rig.post("/v1/chat/completions", &chat("you are brief", "hello")).await;
    let stopped = tokio::time::timeout(Duration::from_secs(60), rig.frontend.stop()).await;
    assert!(stopped.expect("it does not take all the time that there is"), "nothing had to be cut");
    drop(half);
}
