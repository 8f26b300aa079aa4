//! How a request in two hops ends.

use std::time::Duration;

use http::StatusCode;
use kvroute::{
    fleet::WorkerType,
    frontend::PrefillFallback,
    select::Mode,
    worker::mock::{MockSettings, Role},
};
use serde_json::json;

use crate::rig::{
    self, Transcript, engine_settings, eventually, plan,
    pools::{CHAT, COMPLETIONS, Pools, hops, small},
    prose, stream_of,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_that_fails_fails_the_request() {
    let rig = Pools::start(1, 1).await.behind(Mode::Kv).await;
    rig.engines[0].fail_next(StatusCode::INTERNAL_SERVER_ERROR);
    let answer = rig.post(CHAT, &small()).await;
    assert_eq!(answer.status, 500, "{}", answer.text);
    assert!(answer.text.contains("told to answer 500"), "the engine's own words: {}", answer.text);
    rig.wait_for_idle().await;
    assert_eq!(rig.metric("kvroute_prefills_total", "failed").await, 1.0);
    assert_eq!(rig.metric("kvroute_worker_chosen_total", "worker=\"2\"").await, 0.0, "nothing was decoded");
    assert_eq!(rig.outcomes("server_error").await, 1);

    let rig = {
        let mut pools = Pools::start(1, 1).await;
        // Nobody listens there.
        pools.workers[0].url = "http://127.0.0.1:9".to_owned();
        pools.workers[0].kv_events_endpoint = None;
        pools.workers[0].kv_replay_endpoint = None;
        pools.behind(Mode::Kv).await
    };
    let answer = rig.post(CHAT, &small()).await;
    assert!(answer.status.is_server_error(), "{}", answer.text);
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unless_the_decode_worker_may_go_on_alone() {
    let with = |workers| {
        let mut plan = plan(Mode::Kv, workers);
        plan.settings.prefill_fallback = PrefillFallback::Decode;
        plan
    };
    let rig = Pools::start(1, 1).await.behind_plan(with).await;
    rig.engines[0].fail_next(StatusCode::SERVICE_UNAVAILABLE);
    let answer = rig.post(CHAT, &small()).await;
    assert_eq!((hops(&answer), answer.cached_tokens()), ((2, 2), 0));
    // What the client did wrong stays wrong.
    rig.engines[0].fail_next(StatusCode::BAD_REQUEST);
    assert_eq!(rig.post(CHAT, &small()).await.status, 400);
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_during_the_prefill_leaves_nothing_behind() {
    let slow = MockSettings {
        speedup: 1.0,
        prefill_tokens_per_second: 100.0,
        max_num_batched_tokens: 32,
        step_overhead: Duration::from_millis(1),
        ..engine_settings()
    };
    let rig = Pools::start_with(1, 1, slow).await.behind(Mode::Kv).await;
    let (client, url) = (rig.client.clone(), format!("{}{COMPLETIONS}", rig.public()));
    let body = json!({ "model": rig::MODEL, "max_tokens": 4, "prompt": prose(2, 1_000) });
    let request = tokio::spawn(async move { client.post(&url, &body).await });
    eventually("the prefill runs and is booked", async || {
        let load = &rig.workers().await[0]["load"];
        rig.engines[0].running() == 1 && load["requests"] == 1 && load["prefill_tokens"] != 0
    })
    .await;
    let load = rig.workers().await[0]["load"].clone();
    assert_eq!(load["decode_blocks"], 0, "blocks in use are not tracked for a prefill");
    assert!(!request.is_finished(), "the prefill takes minutes");
    request.abort();
    assert!(request.await.unwrap_err().is_cancelled());
    rig.wait_for_free_engines().await;
    rig.wait_for_idle().await;
    eventually("the request is counted as cancelled", async || rig.outcomes("cancelled").await == 1).await;
    assert_eq!(rig.metric("kvroute_worker_chosen_total", "worker=\"2\"").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_that_ends_with_the_prefill_is_the_answer() {
    let mut pools = Pools::start(0, 0).await;
    pools.add(Role::Prefill, MockSettings { mean_output_tokens: Some(1), ..engine_settings() }).await;
    pools.add(Role::Decode, engine_settings()).await;
    let rig = pools.behind(Mode::Kv).await;
    let answer = rig.post(CHAT, &small()).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json["choices"][0]["finish_reason"], "stop", "{}", answer.text);
    let told = json!({ "prefill_worker_id": 1, "prefill_dp_rank": 0 });
    assert_eq!(answer.json["nvext"]["worker_id"], told, "nobody decoded");
    rig.wait_for_idle().await;
    assert_eq!(rig.outcomes("ok").await, 1);
    assert_eq!(rig.metric("kvroute_prefills_total", "ended").await, 1.0);
    // A stream is what the client asked for, so it gets one.
    let mut response = rig.client.open(&format!("{}{COMPLETIONS}", rig.public()), &stream_of("hi", 3)).await;
    assert!(Transcript::of(response.body_mut()).await.is_done());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_hands_nothing_over_costs_a_second_prefill_and_is_counted() {
    let mut pools = Pools::start(0, 0).await;
    pools.add(Role::Aggregated, engine_settings()).await;
    pools.add(Role::Decode, engine_settings()).await;
    pools.workers[0].worker_type = WorkerType::Prefill;
    let rig = pools.behind(Mode::Kv).await;
    let answer = rig.post(CHAT, &small()).await;
    assert_eq!((hops(&answer), answer.cached_tokens()), ((1, 2), 0));
    assert_eq!(rig.metric("kvroute_prefills_total", "missing").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn several_prompts_at_once_are_refused() {
    let rig = Pools::start(1, 1).await.behind(Mode::Kv).await;
    let body = json!({ "model": rig::MODEL, "max_tokens": 2, "prompt": ["a", "b"] });
    let refused = rig.post(COMPLETIONS, &body).await;
    assert_eq!(refused.status, 400, "{}", refused.text);
    assert!(refused.text.contains("several prompts"), "{}", refused.text);
}

/// `n` answers are wanted, and the prefill makes one.
#[tokio::test(flavor = "multi_thread")]
async fn several_answers_come_from_the_decode_hop() {
    let mut pools = Pools::start(0, 0).await;
    pools.add(Role::Prefill, MockSettings { mean_output_tokens: Some(1), ..engine_settings() }).await;
    pools.add(Role::Decode, engine_settings()).await;
    let rig = pools.behind(Mode::Kv).await;
    let mut body = small();
    body["n"] = json!(3);
    let answer = rig.post(CHAT, &body).await;
    assert_eq!((hops(&answer), answer.json["choices"].as_array().unwrap().len()), ((1, 2), 3));
}
