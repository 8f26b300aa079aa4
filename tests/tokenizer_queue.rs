//! Long prompts wait for each other to be tokenised, short ones for nobody; the queue is bounded, and clients that leave
//! leave it.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod rig;

use std::{num::NonZeroUsize, sync::mpsc};

use kvroute::{frontend::TokenizerSettings, select::Mode, worker::mock::MockSettings};
use serde_json::{Value, json};

use crate::rig::{Rig, chat, engine_settings, eventually, plan, pools::Pools, prose};

const CHAT: &str = "/v1/chat/completions";

/// A frontend with one thread for long prompts, and two of them that may wait.
async fn start() -> Rig {
    let pools = Pools::of(vec![MockSettings { max_model_len: 40_000, ..engine_settings() }]).await;
    let rig = pools
        .behind_plan(|workers| {
            let mut plan = plan(Mode::Kv, workers);
            let threads = NonZeroUsize::MIN;
            plan.settings.tokenizer =
                TokenizerSettings { threads, queue_limit: 2, ..TokenizerSettings::default() };
            plan
        })
        .await;
    rig.wait_for_streams("live").await;
    rig
}

/// Holds the thread for long prompts until it is dropped.
async fn hold(rig: &Rig) -> mpsc::Sender<()> {
    let (open, gate) = mpsc::channel::<()>();
    let (begun, began) = mpsc::channel();
    let queued = rig.frontend.app().occupy_tokenizer(move || {
        begun.send(()).unwrap();
        let _ = gate.recv();
    });
    assert!(queued);
    tokio::task::spawn_blocking(move || began.recv().unwrap()).await.unwrap();
    open
}

/// A chat of more than 40 KB that no other shares.
fn long(number: u64) -> Value {
    chat("be brief", &prose(number, 6_500))
}

async fn waiting(rig: &Rig) -> f64 {
    rig.metric("kvroute_tokenizer_waiting", "line=\"long\"").await
}

/// Posts `body` on a task of its own.
fn post(rig: &Rig, body: &Value) -> tokio::task::JoinHandle<rig::Answer> {
    let (client, url, body) = (rig.client.clone(), format!("{}{CHAT}", rig.public()), body.clone());
    tokio::spawn(async move { client.post(&url, &body).await })
}

#[tokio::test(flavor = "multi_thread")]
async fn short_prompts_pass_while_long_ones_wait() {
    let rig = start().await;
    let gate = hold(&rig).await;
    let held = post(&rig, &long(1));
    eventually("the long prompt waits", async || waiting(&rig).await == 1.0).await;
    // Of a few bytes, and of some that take a thread of the other line.
    for (number, words) in (10..).zip([5, 50, 2000, 5]) {
        let answer = rig.post(CHAT, &chat("be brief", &prose(number, words))).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    assert!(!held.is_finished());
    assert_eq!(waiting(&rig).await, 1.0);
    drop(gate);
    assert_eq!(held.await.unwrap().status, 200);
    assert_eq!(waiting(&rig).await, 0.0);
    assert_eq!(rig.metric("kvroute_untokenised_requests_total", "").await, 0.0);
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_known_of_a_long_prompt_does_not_wait() {
    let rig = start().await;
    let mut body = long(1);
    assert_eq!(rig.post(CHAT, &body).await.status, 200);
    let tokenised = rig.metric("kvroute_tokenised_bytes_total", "from=\"tokenizer\"").await;
    let gate = hold(&rig).await;
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({ "role": "user", "content": "and now?" }));
    let explain = rig.explain(&body).await;
    assert_eq!((&explain["tokens_from"], &explain["prompt_complete"]), (&"tokenizer".into(), &true.into()));
    let answer = rig.post(CHAT, &body).await;
    assert_eq!(
        (answer.status.as_u16(), explain["prompt_tokens"].as_u64().unwrap()),
        (200, answer.prompt_tokens())
    );
    assert!(rig.metric("kvroute_tokenised_bytes_total", "from=\"tokenizer\"").await < tokenised + 100.0);
    drop(gate);
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_the_limit_prompts_are_refused_and_the_flag_is_named() {
    let rig = start().await;
    let gate = hold(&rig).await;
    let held = [post(&rig, &long(1)), post(&rig, &long(2))];
    eventually("both wait", async || waiting(&rig).await == 2.0).await;
    let refused = rig.post(CHAT, &long(3)).await;
    assert_eq!(refused.status, 429, "{}", refused.text);
    let error = &refused.json["error"];
    assert_eq!(error["code"], "tokenizer_queue_full");
    assert!(error["message"].as_str().unwrap().contains("--tokenizer-queue-limit"), "{error}");
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!(rig.metric("kvroute_tokenizer_refusals_total", "line=\"long\"").await, 1.0);
    drop(gate);
    for answer in held {
        assert_eq!(answer.await.unwrap().status, 200);
    }
    assert_eq!(rig.post(CHAT, &long(3)).await.status, 200, "there is room again");
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_makes_room_in_the_queue() {
    let rig = start().await;
    let gate = hold(&rig).await;
    // Clients of their own: each leaves with its connection.
    let leaving = [1, 2].map(|number| {
        let (url, body) = (format!("{}{CHAT}", rig.public()), long(number));
        tokio::spawn(async move { rig::Http::new().post(&url, &body).await })
    });
    eventually("both wait", async || waiting(&rig).await == 2.0).await;
    for client in &leaving {
        client.abort();
    }
    eventually("they left the queue", async || waiting(&rig).await == 0.0).await;
    let stays = post(&rig, &long(3));
    eventually("another has their place", async || waiting(&rig).await == 1.0).await;
    drop(gate);
    assert_eq!(stays.await.unwrap().status, 200);
    eventually("both count as cancelled", async || rig.outcomes("cancelled").await == 2).await;
    rig.wait_for_idle().await;
}
