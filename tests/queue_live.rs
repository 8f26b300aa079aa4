//! Requests that wait in a frontend: who goes when, and who is turned away.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod rig;

use std::{sync::Arc, time::Duration};

use kvroute::{
    config::FrontendPlan,
    fleet::WorkerSpec,
    frontend::{FrontendSettings, QueueTurns},
    select::{Mode, Tuning, queue::QueuePolicy},
    worker::mock::{MockEngine, MockSettings},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::rig::{
    Answer, MODEL, Rig, engine_settings, eventually,
    pools::Pools,
    prose, tuned,
    upstream::{Upstream, plain},
    worker,
};

/// An engine that is at a prompt for seconds.
fn slow() -> MockSettings {
    MockSettings { speedup: 1.0, prefill_tokens_per_second: 100.0, ..engine_settings() }
}

fn threshold() -> Tuning {
    Tuning { queue_threshold: Some(0.0), ..Tuning::default() }
}

/// One slow engine behind a frontend in which requests wait.
async fn one_slow(tuning: Tuning, change: impl FnOnce(&mut FrontendSettings)) -> Arc<Rig> {
    let planned = |workers| {
        let mut plan = tuned(Mode::Kv, tuning, workers);
        change(&mut plan.settings);
        plan
    };
    Arc::new(Pools::of(vec![slow()]).await.behind_plan(planned).await)
}

/// A completion whose answer is its first token.
fn prompt(seed: u64, words: usize) -> Value {
    json!({ "model": MODEL, "prompt": prose(seed, words), "max_tokens": 1 })
}

fn send(rig: &Arc<Rig>, body: Value) -> JoinHandle<Answer> {
    let rig = Arc::clone(rig);
    tokio::spawn(async move { rig.post("/v1/completions", &body).await })
}

async fn waiting(rig: &Rig, count: f64) {
    eventually(&format!("{count} requests wait"), async || {
        rig.metric("kvroute_queue_requests", "").await == count
    })
    .await;
}

/// Keeps the only engine busy for seconds.
async fn busy(rig: &Arc<Rig>) -> JoinHandle<Answer> {
    let first = send(rig, prompt(1, 60));
    eventually("the engine has a prompt", async || {
        rig.metric("kvroute_worker_prefill_tokens", "").await > 0.0
    })
    .await;
    first
}

async fn outcome(rig: &Rig, outcome: &str) -> f64 {
    rig.metric("kvroute_queue_outcomes_total", &format!("outcome=\"{outcome}\"")).await
}

async fn idle(rig: &Rig) {
    rig.wait_for_idle().await;
    assert_eq!(rig.metric("kvroute_queue_requests", "").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_wait_while_the_worker_is_busy_and_the_shortest_goes_first() {
    let tuning = Tuning { queue_policy: QueuePolicy::Wspt, ..threshold() };
    let rig = one_slow(tuning, |_| {}).await;
    let done = Arc::new(Mutex::new(Vec::new()));
    let noted = |name: &'static str, request: JoinHandle<Answer>| {
        let done = Arc::clone(&done);
        tokio::spawn(async move {
            let answer = request.await.unwrap();
            done.lock().push(name);
            assert_eq!(answer.status, 200, "{}", answer.text);
        })
    };
    let first = noted("first", busy(&rig).await);
    let long = noted("long", send(&rig, prompt(2, 40)));
    waiting(&rig, 1.0).await;
    let short = noted("short", send(&rig, prompt(3, 5)));
    waiting(&rig, 2.0).await;

    let explain = rig.explain(&prompt(4, 20)).await;
    let queue = &explain["queue"];
    assert_eq!(queue["order"], "wspt", "{explain}");
    assert_eq!((&queue["requests"], &queue["ahead"]), (&json!(2), &json!(1)), "{explain}");
    assert_eq!((&queue["waits_for"], &queue["threshold"]), (&json!("threshold"), &json!(0.0)));
    assert!(queue["oldest_seconds"].as_f64() > Some(0.0) && queue["prompt_tokens"].as_u64() > Some(45));
    assert_eq!(
        rig.metric("kvroute_queue_prompt_tokens", "order=\"wspt\"").await,
        queue["prompt_tokens"].as_f64().unwrap()
    );
    assert!(rig.metric("kvroute_queue_oldest_seconds", "").await > 0.0);

    for request in [first, long, short] {
        request.await.unwrap();
    }
    assert_eq!(*done.lock(), ["first", "short", "long"]);
    idle(&rig).await;
    assert_eq!((outcome(&rig, "placed").await, rig.outcomes("ok").await), (2.0, 3));
    assert_eq!(rig.metric("kvroute_queue_wait_seconds_count", "").await, 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_gives_up_leaves_the_queue_at_once() {
    let rig = one_slow(threshold(), |_| {}).await;
    let first = busy(&rig).await;
    let impatient = send(&rig, prompt(2, 10));
    waiting(&rig, 1.0).await;
    impatient.abort();
    waiting(&rig, 0.0).await;
    assert_eq!(outcome(&rig, "cancelled").await, 1.0);
    first.await.unwrap();
    idle(&rig).await;
    assert_eq!(rig.metric("kvroute_worker_chosen_total", "").await, 1.0, "it was sent nowhere");
    assert_eq!(rig.outcomes("cancelled").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_and_a_deadline_that_passes_are_told_as_such() {
    let rig = one_slow(threshold(), |settings| settings.queue_limit = 1).await;
    let first = busy(&rig).await;
    let mut hasty = prompt(2, 10);
    hasty["nvext"] = json!({ "router": { "ttft_target": 20 } });
    let late = send(&rig, hasty).await.unwrap();
    assert_eq!(late.status, 429, "{}", late.text);
    assert_eq!(late.json["error"]["code"], "deadline_exceeded");

    let second = send(&rig, prompt(3, 10));
    waiting(&rig, 1.0).await;
    let third = rig.post("/v1/completions", &prompt(4, 10)).await;
    assert_eq!(third.status, 429, "{}", third.text);
    assert_eq!(third.json["error"]["code"], "queue_full");
    assert!(third.text.contains("1 requests wait already, and 1 may"), "{}", third.text);
    let seconds: u64 = third.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds));
    assert_eq!((outcome(&rig, "deadline").await, outcome(&rig, "full_of_requests").await), (1.0, 1.0));
    for request in [first, second] {
        assert_eq!(request.await.unwrap().status, 200);
    }
    idle(&rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_take_turns_where_they_are_told_to() {
    let rig = one_slow(threshold(), |settings| {
        settings.queue_turns = QueueTurns::Tenant;
        settings.queue_limit = 1;
    })
    .await;
    let first = busy(&rig).await;
    let of = |tenant: &'static str, seed| {
        let rig = Arc::clone(&rig);
        tokio::spawn(async move {
            let url = format!("{}/v1/completions", rig.public());
            rig.client.request(http::Method::POST, &url, &[("x-tenant-id", tenant)], &prompt(seed, 5)).await
        })
    };
    let a = of("a", 2);
    waiting(&rig, 1.0).await;
    assert_eq!(of("a", 3).await.unwrap().status, 429, "the limit is of each tenant");
    let b = of("b", 4);
    waiting(&rig, 2.0).await;
    for request in [first, a, b] {
        assert_eq!(request.await.unwrap().status, 200);
    }
    idle(&rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_joins_takes_who_waits() {
    let rig = one_slow(threshold(), |_| {}).await;
    let first = busy(&rig).await;
    let mut asking = prompt(2, 10);
    asking["nvext"] = json!({ "extra_fields": ["worker_id"] });
    let second = send(&rig, asking);
    waiting(&rig, 1.0).await;
    let engine = MockEngine::start(engine_settings()).await.unwrap();
    let registered = rig.register(&worker(2, &engine), None).await;
    assert_eq!(registered.status, 201, "{}", registered.text);
    let second = second.await.unwrap();
    assert_eq!((second.status.as_u16(), second.worker()), (200, 2), "{}", second.text);
    assert_eq!(first.await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_workers_that_drain_is_told() {
    let rig = one_slow(threshold(), |_| {}).await;
    let first = busy(&rig).await;
    let second = send(&rig, prompt(2, 10));
    waiting(&rig, 1.0).await;
    assert!(rig.ask("/v1/workers/1/drain", &json!({})).await.status.is_success());
    let second = second.await.unwrap();
    assert_eq!(second.status, 503, "{}", second.text);
    assert!(second.text.contains("1 draining"), "{}", second.text);
    assert_eq!(first.await.unwrap().status, 200, "what is there already finishes");
    assert_eq!(outcome(&rig, "refused").await, 1.0);
    idle(&rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_that_is_gone_leaves_nobody_waiting() {
    let rig = one_slow(threshold(), |_| {}).await;
    let first = busy(&rig).await;
    let second = send(&rig, prompt(2, 10));
    waiting(&rig, 1.0).await;
    rig.remove(1).await;
    assert_eq!(second.await.unwrap().status, 503);
    first.await.unwrap();
    rig.wait_for_idle().await;
}

/// Tokens for everybody who asks.
fn tokens(path: &str) -> (u16, &'static str, &'static str) {
    let (status, kind, body) = plain(path);
    (status, kind, if path == "/tokenize" { r#"{ "tokens": [1, 2, 3] }"# } else { body })
}

/// What looks for the queue of a set that was there before must not take the place of the queue that is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_from_before_a_set_was_founded_anew_leaves_its_queue_alone() {
    let (before, after) = (Upstream::start(tokens).await, Upstream::start(tokens).await);
    let plan = FrontendPlan { models: Vec::new(), ..tuned(Mode::Kv, threshold(), Vec::new()) };
    let rig = Arc::new(Rig::assemble(plan, Vec::new()).await);
    let spec =
        |server: &Upstream| WorkerSpec { max_num_batched_tokens: Some(1_000), ..server.worker(1, MODEL) };
    let ids = |first: u32| json!({ "model": MODEL, "prompt": [first, 2, 3, 4], "max_tokens": 1 });
    assert_eq!(rig.register(&spec(&before), Some(60.0)).await.status, 201);
    let held = before.hold().await;
    let late = send(&rig, prompt(1, 10));
    let arrives = |server: &Upstream, path: &str, count| {
        server.recorded().iter().filter(|request| request.path == path).count() >= count
    };
    eventually("the engine is asked for tokens", async || arrives(&before, "/tokenize", 1)).await;

    rig.remove(1).await;
    assert_eq!(rig.register(&spec(&after), Some(60.0)).await.status, 201);
    assert_eq!(send(&rig, ids(1)).await.unwrap().status, 200);
    drop(held);
    late.await.unwrap();

    let held = after.hold().await;
    let first = send(&rig, ids(2));
    eventually("the first is sent", async || arrives(&after, "/v1/completions", 2)).await;
    let second = send(&rig, ids(3));
    waiting(&rig, 1.0).await;
    drop(held);
    assert_eq!(first.await.unwrap().status, 200);
    let second = tokio::time::timeout(Duration::from_secs(20), second).await;
    assert_eq!(second.expect("whoever waits hears of room").unwrap().status, 200);
    idle(&rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_request_goes_when_its_worker_has_come_to_it() {
    let tuning = Tuning { hold: Some(Duration::from_secs(60)), ..Tuning::default() };
    let rig = one_slow(tuning, |_| {}).await;
    // Each is 0.25 s and more of prefill, as the router believes, and seconds in truth.
    let long = |seed| prompt(seed, 1200);
    let hasty = MockSettings { prefill_tokens_per_second: 1500.0, ..slow() };
    let engine = MockEngine::start(hasty).await.unwrap();
    rig.register(&worker(2, &engine), None).await;
    rig.ask("/v1/workers/1/drain", &json!({})).await;
    let [first, second, third] = [1, 2, 3].map(|seed| send(&rig, long(seed)));
    eventually("somebody is held", async || {
        let explain = rig.explain(&long(4)).await;
        explain["queue"]["waits_for"] == "hold" && explain["queue"]["order"] == "aged"
    })
    .await;
    for request in [first, second, third] {
        let answer = request.await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    assert!(outcome(&rig, "placed").await >= 1.0);
    idle(&rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_ends_when_it_is_over() {
    let tuning = Tuning { hold: Some(Duration::from_millis(400)), ..Tuning::default() };
    let rig = one_slow(tuning, |_| {}).await;
    let requests: Vec<_> = (0..3).map(|seed| send(&rig, prompt(seed, 1200))).collect();
    eventually("all of them are with the engine", async || {
        rig.metric("kvroute_worker_requests", "").await == 3.0
    })
    .await;
    assert_eq!(rig.metric("kvroute_queue_requests", "").await, 0.0);
    requests.iter().for_each(JoinHandle::abort);
    idle(&rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_rule_that_makes_wait_there_is_no_queue() {
    let rig = one_slow(Tuning::default(), |_| {}).await;
    let requests: Vec<_> = (0..3).map(|seed| send(&rig, prompt(seed, 60))).collect();
    eventually("all of them are with the engine", async || {
        rig.metric("kvroute_worker_requests", "").await == 3.0
    })
    .await;
    assert!(rig.explain(&prompt(4, 5)).await.get("queue").is_none());
    assert_eq!(rig.metric("kvroute_queue_requests", "order=\"none\"").await, 0.0);
    requests.iter().for_each(JoinHandle::abort);
    idle(&rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_request_in_two_hops_the_prefill_waits() {
    let planned = |workers| tuned(Mode::Kv, threshold(), workers);
    let rig = Arc::new(Pools::start_with(1, 1, slow()).await.behind_plan(planned).await);
    let first = busy(&rig).await;
    let second = send(&rig, prompt(2, 10));
    eventually("the second one waits for the prefill worker", async || {
        rig.metric("kvroute_queue_requests", "/prefill\"").await == 1.0
    })
    .await;
    assert_eq!(rig.metric("kvroute_queue_requests", "/decode\"").await, 0.0);
    for request in [first, second] {
        let answer = request.await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    idle(&rig).await;
    assert_eq!(outcome(&rig, "placed").await, 1.0);
}
