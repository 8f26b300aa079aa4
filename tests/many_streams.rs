//! Hundreds of streams at once, half of them left by their clients: nothing is lost, nothing stays.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod rig;

use kvroute::{select::Mode, worker::mock::MockSettings};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::rig::{Http, Rig, Transcript, engine_settings, eventually, prose, stream_of};

const STREAMS: usize = 300;

/// Reads a stream to its end, which must be a good one.
async fn finish(client: Http, url: String, prompt: String, tokens: usize) {
    let mut response = client.open(&url, &stream_of(&prompt, tokens)).await;
    assert_eq!(response.status(), 200);
    let seen = Transcript::of(response.body_mut()).await;
    assert!(seen.is_done() && !seen.broken, "{}", seen.text);
    assert_eq!(seen.tokens(), tokens);
    let events = seen.events();
    let usage: Value = serde_json::from_str(events[events.len() - 2]).unwrap();
    assert_eq!(usage["usage"]["completion_tokens"], tokens);
}

/// Leaves a stream that is far from its end after `tokens` tokens.
async fn leave(client: Http, url: String, prompt: String, tokens: usize) {
    let mut response = client.open(&url, &stream_of(&prompt, 5_000)).await;
    assert_eq!(response.status(), 200);
    let mut seen = Transcript::default();
    seen.read(response.body_mut(), |seen| seen.tokens() >= tokens).await;
    assert!(!seen.broken && !seen.is_done(), "{}", seen.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn three_hundred_streams_half_of_them_left_alone() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let settings = || MockSettings { speedup: 1.0, ..engine_settings() };
    let rig = Rig::start_with(Mode::Kv, vec![settings(), settings(), settings()]).await;
    let url = format!("{}/v1/completions", rig.public());
    let mut streams = JoinSet::new();
    for number in 0..STREAMS {
        let (client, url) = (rig.client.clone(), url.clone());
        let prompt = prose(rng.u64(..20), rng.usize(10..60));
        if number % 2 == 0 {
            streams.spawn(finish(client, url, prompt, rng.usize(1..60)));
        } else {
            streams.spawn(leave(client, url, prompt, rng.usize(0..30)));
        }
    }
    while let Some(ended) = streams.join_next().await {
        ended.unwrap();
    }
    rig.wait_for_free_engines().await;
    rig.wait_for_idle().await;
    let half = STREAMS as u64 / 2;
    eventually("every stream is counted by its end", async || {
        (rig.outcomes("ok").await, rig.outcomes("cancelled").await) == (half, half)
    })
    .await;
    assert_eq!(rig.metric("kvroute_requests_total", "").await as usize, STREAMS);
    assert_eq!(rig.metric("kvroute_choices_total", "").await as usize, STREAMS);
    for load in ["requests", "prefill_tokens", "decode_blocks"] {
        assert_eq!(rig.metric(&format!("kvroute_worker_{load}"), "").await, 0.0, "{load}");
    }
}
