//! Caches that nobody tells of: what a worker was sent is held to be cached there, for a while.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod rig;

use http::Method;
use kvroute::{
    fleet::{RouterConfig, WorkerSpec},
    select::{ApproximateCache, ApproximatePolicy, CostModel, Mode, Tuning},
    worker::mock::MockSettings,
};
use serde_json::{Value, json};

use crate::rig::{
    Answer, Rig, candidate, chat, credit, engine_settings, eventually, pools::Pools, prose, tuned, worker,
};

const CHAT: &str = "/v1/chat/completions";

/// An engine that says nothing of its cache.
fn silent() -> MockSettings {
    MockSettings { events: None, replay: None, ..engine_settings() }
}

/// `settings` behind a frontend with `tuning`, each described by `describe`.
async fn start(
    mode: Mode,
    tuning: Tuning,
    settings: Vec<MockSettings>,
    describe: impl Fn(WorkerSpec) -> WorkerSpec,
) -> Rig {
    let described = |workers: Vec<_>| workers.into_iter().map(describe).collect();
    Pools::of(settings).await.behind_plan(|workers| tuned(mode, tuning, described(workers))).await
}

async fn of_two(tuning: Tuning) -> Rig {
    start(Mode::Kv, tuning, vec![silent(), silent()], |spec| spec).await
}

fn prompt(seed: u64) -> Value {
    let mut body = chat(&prose(seed, 200), "hello");
    body["nvext"] = json!({ "extra_fields": ["worker_id"] });
    body
}

async fn send(rig: &Rig, body: &Value) -> Answer {
    let answer = rig.post(CHAT, body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer
}

async fn send_to(rig: &Rig, worker: u64, body: &Value) {
    let id = worker.to_string();
    let headers = [("x-worker-instance-id", id.as_str())];
    let answer = rig.client.request(Method::POST, &format!("{}{CHAT}", rig.public()), &headers, body).await;
    assert_eq!((answer.status.as_u16(), answer.worker()), (200, worker));
}

async fn state(rig: &Rig, worker: u64) -> String {
    rig.worker(worker).await["stream"]["state"].as_str().unwrap().to_owned()
}

/// Waits until `worker` is credited with so many blocks of a prompt, or with any.
async fn wait_for_credit(rig: &Rig, worker: u64, body: &Value, blocks: Option<u64>) -> Value {
    eventually("the credit is as expected", async || {
        let now = credit(&rig.explain(body).await, worker);
        blocks.map_or(now > 0, |blocks| now == blocks)
    })
    .await;
    rig.explain(body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_worker_was_sent_is_held_to_be_cached_there() {
    for cost_model in CostModel::ALL {
        let rig = of_two(Tuning { cost_model, ..Tuning::default() }).await;
        let home = send(&rig, &prompt(1)).await.worker();
        let told = wait_for_credit(&rig, home, &prompt(1), None).await;
        assert_eq!(told["choice"]["worker_id"], home, "{told}");
        assert_eq!(credit(&told, home), told["prompt_blocks"].as_u64().unwrap());
        assert_eq!((&candidate(&told, home)["approximate"], credit(&told, 3 - home)), (&json!(true), 0));
        for _ in 0..3 {
            let answer = send(&rig, &prompt(1)).await;
            assert_eq!(answer.worker(), home);
            assert!(answer.cached_tokens() > 0, "the guess was right");
        }
        assert_eq!(state(&rig, home).await, "approximate");
        assert_eq!(rig.metric("kvroute_worker_stream_state", "state=\"approximate\"").await, 2.0);
        let expected = rig.metric("kvroute_worker_expected_blocks", &format!("worker=\"{home}\"")).await;
        assert_eq!(expected, told["prompt_blocks"].as_f64().unwrap());
        assert_eq!(rig.metric("kvroute_unheard_prompts_total", "").await, 0.0);
        rig.wait_for_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_are_not_to_be_followed_are_not() {
    let tuning = Tuning { use_kv_events: false, ..Tuning::default() };
    let rig = Rig::start_tuned(Mode::Kv, tuning, 2).await;
    let home = send(&rig, &prompt(1)).await.worker();
    wait_for_credit(&rig, home, &prompt(1), None).await;
    assert_eq!(state(&rig, home).await, "approximate");
    assert_eq!(rig.metric("kvroute_worker_event_batches_total", "").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_may_ask_for_it_and_one_worker_may_need_it() {
    // By the card of a set beside one that follows events.
    let card = RouterConfig { mode: Mode::Kv, tuning: Tuning { use_kv_events: false, ..Tuning::default() } };
    let settings = vec![engine_settings(), engine_settings()];
    let rig = start(Mode::Kv, Tuning::default(), settings, |spec| {
        if spec.id == Some(1) {
            return WorkerSpec { component: "other".to_owned(), router_config: Some(card.clone()), ..spec };
        }
        spec
    })
    .await;
    assert_eq!((state(&rig, 1).await.as_str(), state(&rig, 2).await.as_str()), ("approximate", "live"));
    // Within one set.
    let rig = start(Mode::Kv, Tuning::default(), vec![silent(), engine_settings()], |spec| spec).await;
    assert_eq!((state(&rig, 1).await.as_str(), state(&rig, 2).await.as_str()), ("approximate", "live"));
    for worker in [1, 2] {
        send_to(&rig, worker, &prompt(worker)).await;
        let told = wait_for_credit(&rig, worker, &prompt(worker), None).await;
        assert_eq!(candidate(&told, worker)["approximate"], worker == 1);
        assert_eq!(credit(&told, 3 - worker), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_guesses_where_it_would_not_count() {
    let load_aware = Tuning { use_kv_events: false, overlap_score_credit: 0.0, ..Tuning::default() };
    for (mode, tuning) in [(Mode::RoundRobin, Tuning::default()), (Mode::Kv, load_aware)] {
        let rig = start(mode, tuning, vec![silent()], |spec| spec).await;
        send(&rig, &prompt(1)).await;
        assert_eq!(state(&rig, 1).await, "absent", "{mode}");
        assert_eq!(rig.metric("kvroute_worker_expected_blocks", "").await, 0.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_forgotten_after_a_time() {
    let approximate_cache = ApproximateCache { ttl_secs: 1.0, ..ApproximateCache::default() };
    let rig = of_two(Tuning { approximate_cache, ..Tuning::default() }).await;
    send_to(&rig, 1, &prompt(1)).await;
    wait_for_credit(&rig, 1, &prompt(1), None).await;
    wait_for_credit(&rig, 1, &prompt(1), Some(0)).await;
    assert_eq!(rig.metric("kvroute_worker_expected_blocks", "").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_worker_is_held_to_have_more_than_fits() {
    let blocks = async |rig: &Rig, seed| rig.explain(&prompt(seed)).await["prompt_blocks"].as_u64().unwrap();
    for policy in ApproximatePolicy::ALL {
        let approximate_cache = ApproximateCache { policy, ..ApproximateCache::default() };
        let tuning = Tuning { use_kv_events: false, approximate_cache, ..Tuning::default() };
        let room = {
            let rig = of_two(tuning).await;
            blocks(&rig, 1).await + blocks(&rig, 2).await - 1
        };
        let describe = |spec| WorkerSpec { total_kv_blocks: Some(room), ..spec };
        let rig = start(Mode::Kv, tuning, vec![silent()], describe).await;
        for seed in [1, 2] {
            send(&rig, &prompt(seed)).await;
        }
        let all = blocks(&rig, 2).await;
        wait_for_credit(&rig, 1, &prompt(2), Some(all)).await;
        // The last block of what was sent first made room, or more: both begin alike.
        assert!(rig.metric("kvroute_worker_expected_blocks", "").await <= room as f64);
        for seed in 3..6 {
            send(&rig, &prompt(seed)).await;
        }
        let all = blocks(&rig, 5).await;
        wait_for_credit(&rig, 1, &prompt(5), Some(all)).await;
        assert!(rig.metric("kvroute_worker_expected_blocks", "").await <= room as f64);
        let first = credit(&rig.explain(&prompt(1)).await, 1);
        assert!(first < blocks(&rig, 1).await, "{policy}: {first}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_went_or_could_not_be_reached_has_nothing() {
    let mut rig = of_two(Tuning::default()).await;
    for worker in [1, 2] {
        send_to(&rig, worker, &prompt(worker)).await;
        wait_for_credit(&rig, worker, &prompt(worker), None).await;
    }
    rig.remove(1).await;
    assert_eq!(rig.register(&worker(1, &rig.engines[0]), None).await.status, 201);
    assert_eq!(credit(&rig.explain(&prompt(1)).await, 1), 0);

    rig.engines.remove(1).stop().await;
    assert_eq!(send(&rig, &prompt(2)).await.worker(), 1, "it was tried elsewhere");
    wait_for_credit(&rig, 2, &prompt(2), Some(0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_counts_before_events_say_so_if_that_is_asked_for() {
    for cost_model in CostModel::ALL {
        for ttl in [None, Some(600.0)] {
            let tuning = Tuning { cost_model, router_predicted_ttl_secs: ttl, ..Tuning::default() };
            let rig = Rig::start_tuned(Mode::Kv, tuning, 2).await;
            rig.engines.iter().for_each(|engine| engine.stall_events(true));
            send_to(&rig, 1, &prompt(1)).await;
            rig.wait_for_idle().await;
            if ttl.is_some() {
                let told = wait_for_credit(&rig, 1, &prompt(1), None).await;
                assert_eq!(candidate(&told, 1)["expected_blocks"], told["prompt_blocks"]);
                assert_eq!(candidate(&told, 1)["approximate"], false, "beside what events say");
                assert_eq!((&told["choice"]["worker_id"], credit(&told, 2)), (&json!(1), 0));
                assert_eq!(send(&rig, &prompt(1)).await.worker(), 1);
            } else {
                let told = rig.explain(&prompt(1)).await;
                assert_eq!((credit(&told, 1), &candidate(&told, 1)["expected_blocks"]), (0, &json!(0)));
            }
            // The events say the same in the end, and it counts once.
            rig.engines.iter().for_each(|engine| engine.stall_events(false));
            let all = rig.explain(&prompt(1)).await["prompt_blocks"].as_u64().unwrap();
            wait_for_credit(&rig, 1, &prompt(1), Some(all)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prediction_ends_with_its_time_and_with_its_worker() {
    let tuning = Tuning { router_predicted_ttl_secs: Some(1.0), ..Tuning::default() };
    let rig = Rig::start_tuned(Mode::Kv, tuning, 2).await;
    rig.engines.iter().for_each(|engine| engine.stall_events(true));
    send_to(&rig, 1, &prompt(1)).await;
    wait_for_credit(&rig, 1, &prompt(1), None).await;
    rig.wait_for_idle().await;
    wait_for_credit(&rig, 1, &prompt(1), Some(0)).await;
    send_to(&rig, 1, &prompt(1)).await;
    rig.remove(1).await;
    assert_eq!(rig.register(&worker(1, &rig.engines[0]), None).await.status, 201);
    let told = rig.explain(&prompt(1)).await;
    assert_eq!((credit(&told, 1), &candidate(&told, 1)["expected_blocks"]), (0, &json!(0)));
}
