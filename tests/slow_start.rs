//! Workers that are new or recovered get their share of requests by and by.

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

use kvroute::{
    fleet::{LEAST_SLOW_START, WorkerSpec},
    select::Mode,
};
use serde_json::{Value, json};

use crate::rig::{
    Rig, candidate, chat, eventually, plan,
    pools::CHAT,
    scripted::{Scripted, answer, served},
};

const LONG: Duration = Duration::from_secs(3600);

/// The first worker has been there for long, as it says; the second comes now.
async fn behind(mode: Mode, workers: &[Scripted; 2], slow_start: Duration) -> Rig {
    let old = WorkerSpec { registered_ms: Some(1), ..workers[0].worker(1) };
    let mut plan = plan(mode, vec![old, workers[1].worker(2)]);
    plan.settings.slow_start = slow_start;
    plan.settings.inhibition = Duration::from_secs(1);
    Rig::start_plan(plan, Vec::new()).await
}

async fn both() -> [Scripted; 2] {
    [Scripted::start(|_| served(1)).await, Scripted::start(|_| served(2)).await]
}

fn body() -> Value {
    chat("you are brief", "hello")
}

async fn weight(rig: &Rig, id: u64) -> f64 {
    rig.metric("kvroute_worker_slow_start", &format!("worker=\"{id}\"")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_worker_costs_more_and_explain_says_why() {
    let workers = both().await;
    let rig = behind(Mode::Kv, &workers, LONG).await;
    assert_eq!(weight(&rig, 1).await, 1.0);
    let of_new = weight(&rig, 2).await;
    assert!((LEAST_SLOW_START..0.5).contains(&of_new), "{of_new}");
    let explain = rig.explain(&body()).await;
    let [old, new] = [1, 2].map(|id| candidate(&explain, id));
    let number = |of: &Value| of.as_f64().unwrap();
    assert_eq!(old["slow_start"], 1.0);
    let (cost, dearer) = (number(&old["cost"]["total"]), number(&new["cost"]["total"]));
    assert!((dearer * number(&new["slow_start"]) - cost).abs() < 1e-9 && dearer > 2.0 * cost, "{explain}");
    assert_eq!(explain["choice"]["worker_id"], 1);
    assert!(new["why"].as_str().unwrap().contains("new or recovered"), "{new}");
    for _ in 0..5 {
        assert_eq!(rig.post(CHAT, &body()).await.headers["x-by"], "1");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn modes_that_go_by_load_weigh_it() {
    for mode in [Mode::LeastLoaded, Mode::PowerOfTwo, Mode::DeviceAwareWeighted] {
        let workers = both().await;
        let rig = behind(mode, &workers, LONG).await;
        for _ in 0..5 {
            assert_eq!(rig.post(CHAT, &body()).await.headers["x-by"], "1", "{mode}");
        }
        assert_eq!(workers[1].seen(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_weighs_as_any_other_in_the_end() {
    let workers = both().await;
    let rig = behind(Mode::LeastLoaded, &workers, Duration::from_secs(1)).await;
    eventually("the slow start is over", async || weight(&rig, 2).await == 1.0).await;
    assert_eq!(candidate(&rig.explain(&body()).await, 2)["slow_start"], 1.0);
    eventually("it gets requests", async || {
        rig.post(CHAT, &body()).await;
        workers[1].seen() > 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_recovers_starts_slowly_too() {
    let failing = Scripted::start(|n| if n == 0 { answer(503, &[], "no") } else { served(1) }).await;
    let workers = [failing, Scripted::start(|_| served(2)).await];
    let rig = behind(Mode::RoundRobin, &workers, LONG).await;
    let mut pinned = body();
    pinned["nvext"] = json!({ "backend_instance_id": 1 });
    assert_eq!(rig.post(CHAT, &pinned).await.status, 503);
    assert_eq!(weight(&rig, 1).await, 1.0, "it gets nothing now anyway");
    eventually("its breaker closes", async || rig.post(CHAT, &pinned).await.status == 200).await;
    assert!(weight(&rig, 1).await < 0.5);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_it_all_weigh_the_same() {
    let workers = both().await;
    let rig = behind(Mode::LeastLoaded, &workers, Duration::ZERO).await;
    assert_eq!((weight(&rig, 1).await, weight(&rig, 2).await), (1.0, 1.0));
}
