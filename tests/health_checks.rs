//! Workers are asked how they are; what that says stands beside what requests say.

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

use kvroute::select::Mode;
use serde_json::{Value, json};

use crate::rig::{
    Rig, candidate, chat, eventually, plan,
    pools::CHAT,
    scripted::{Scripted, answer, served},
};

async fn behind(workers: &[Scripted], interval: Duration) -> Rig {
    let workers = (1..).zip(workers).map(|(id, worker)| worker.worker(id)).collect();
    let mut plan = plan(Mode::RoundRobin, workers);
    plan.settings.health_check_interval = interval;
    Rig::start_plan(plan, Vec::new()).await
}

const OFTEN: Duration = Duration::from_millis(50);

async fn health(rig: &Rig) -> Value {
    rig.worker(1).await["health"].clone()
}

async fn wait_for(rig: &Rig, state: &str) {
    eventually(&format!("its checks say {state}"), async || health(rig).await["active"]["state"] == state)
        .await;
    assert_eq!(
        rig.metric(
            "kvroute_worker_health",
            &format!("worker=\"1\",rank=\"0\",model=\"mock\",state=\"{state}\"")
        )
        .await,
        1.0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_does_not_answer_gets_no_requests_until_it_does() {
    let workers = [Scripted::start(|_| served(1)).await, Scripted::start(|_| served(2)).await];
    let rig = behind(&workers, OFTEN).await;
    wait_for(&rig, "ok").await;
    let body = chat("you are brief", "hello");
    // It says that it is not well, then says nothing at all.
    for sick in [503, 0] {
        workers[0].set_health(sick);
        wait_for(&rig, "down").await;
        let known = rig.worker(1).await;
        assert_eq!(known["excluded"], "unhealthy");
        assert!(known["health"]["active"]["missed"].as_u64().unwrap() >= 3, "{known}");
        assert!(known["health"]["active"]["problem"].is_string(), "{known}");
        assert_eq!(known["health"]["passive"]["breaker"], "closed", "no request found that out");
        assert_eq!(candidate(&rig.explain(&body).await, 1)["excluded"], "unhealthy");
        for _ in 0..4 {
            assert_eq!(rig.post(CHAT, &body).await.headers["x-by"], "2");
        }
        workers[0].set_health(200);
        wait_for(&rig, "ok").await;
        assert_eq!(rig.worker(1).await["excluded"], Value::Null);
    }
    let by = [rig.post(CHAT, &body).await, rig.post(CHAT, &body).await]
        .map(|answer| answer.headers["x-by"].clone());
    assert!(by.contains(&"1".parse().unwrap()), "it serves again: {by:?}");
    assert!(rig.metric("kvroute_health_checks_total", "result=\"failed\"").await >= 6.0);
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_requests_find_out_is_no_matter_of_checks() {
    let workers = [Scripted::start(|_| answer(503, &[], "no")).await, Scripted::start(|_| served(2)).await];
    let rig = behind(&workers, OFTEN).await;
    wait_for(&rig, "ok").await;
    assert_eq!(rig.post(CHAT, &chat("you are brief", "hello")).await.status, 200);
    let asked = workers[0].asked();
    eventually("it is asked again", async || workers[0].asked() > asked + 1).await;
    let health = health(&rig).await;
    assert_eq!((&health["active"]["state"], &health["active"]["missed"]), (&json!("ok"), &json!(0)));
    assert_eq!(health["passive"]["breaker"], "open", "an answer to a check does not close it: {health}");
    assert_eq!(rig.worker(1).await["excluded"], "unroutable");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_the_route_is_well() {
    let worker = Scripted::start(|_| served(1)).await;
    worker.set_health(404);
    let rig = behind(std::slice::from_ref(&worker), OFTEN).await;
    wait_for(&rig, "ok").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_all_are_down_one_is_tried_all_the_same() {
    let workers = [Scripted::start(|_| served(1)).await, Scripted::start(|_| served(2)).await];
    workers.iter().for_each(|worker| worker.set_health(500));
    let rig = behind(&workers, OFTEN).await;
    wait_for(&rig, "down").await;
    eventually("the other one too", async || rig.worker(2).await["excluded"] == "unhealthy").await;
    assert_eq!(rig.post(CHAT, &chat("you are brief", "hello")).await.status, 200);
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_asked_unless_that_is_wanted() {
    let worker = Scripted::start(|_| served(1)).await;
    let rig = behind(std::slice::from_ref(&worker), Duration::ZERO).await;
    assert_eq!(rig.post(CHAT, &chat("you are brief", "hello")).await.status, 200);
    wait_for(&rig, "unchecked").await;
    assert!(worker.asked() <= 1, "the one look at the start is none of these");
}
