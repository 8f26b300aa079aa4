//! Sessions over real sockets: they stay, they move when they have to, and they say why.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod rig;

use std::collections::BTreeSet;

use http::Method;
use kvroute::{
    fleet::{RouterConfig, WorkerType},
    select::{AffinityMode, Mode, SessionAffinity, Tuning},
};
use serde_json::{Value, json};

use crate::rig::{
    Answer, Rig, chat, engine_settings, eventually,
    pools::{CHAT, Pools, hops, small},
    prose, tuned, worker,
};

fn remembering(ttl_secs: u64, mode: AffinityMode) -> Tuning {
    let session_affinity = SessionAffinity { ttl_secs: Some(ttl_secs), mode };
    Tuning { session_affinity, ..Tuning::default() }
}

/// A request whose prompt nobody has seen.
fn fresh(seed: u64) -> Value {
    let mut body = chat(&prose(seed, 80), "hello");
    body["nvext"] = json!({ "extra_fields": ["worker_id"] });
    body
}

async fn send(rig: &Rig, headers: &[(&str, &str)], body: &Value) -> Answer {
    rig.client.request(Method::POST, &format!("{}{CHAT}", rig.public()), headers, body).await
}

async fn served_by(rig: &Rig, headers: &[(&str, &str)], body: &Value) -> u64 {
    let answer = send(rig, headers, body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.worker()
}

async fn explain(rig: &Rig, headers: &[(&str, &str)], body: &Value) -> Value {
    let url = format!("{}/v1/route/explain", rig.admin());
    rig.client.request(Method::POST, &url, headers, body).await.json
}

const SESSION: [(&str, &str); 1] = [("x-session-id", "a")];

#[tokio::test(flavor = "multi_thread")]
async fn a_session_stays_while_others_take_turns_and_moves_when_its_worker_drains() {
    for mode in AffinityMode::ALL {
        let rig = Rig::start_tuned(Mode::RoundRobin, remembering(600, mode), 3).await;
        let told = explain(&rig, &SESSION, &fresh(0)).await;
        assert_eq!(told["session"]["outcome"], "new", "{told}");
        let home = served_by(&rig, &SESSION, &fresh(1)).await;
        for seed in 2..6 {
            assert_eq!(served_by(&rig, &SESSION, &fresh(seed)).await, home);
        }
        // Whoever names no session, or another one, is where the turn is.
        let mut others = BTreeSet::new();
        for seed in 10..13 {
            others.insert(served_by(&rig, &[], &fresh(seed)).await);
        }
        assert_eq!(others.len(), 3);
        let told = explain(&rig, &SESSION, &fresh(7)).await;
        assert_eq!(told["session"]["mode"], mode.name());
        assert_eq!(told["session"]["bound_to"]["worker_id"], home);
        assert_eq!(
            (&told["session"]["outcome"], &told["choice"]["worker_id"]),
            (&json!("kept"), &json!(home))
        );
        assert!(told["session"]["because"].is_null());

        assert_eq!(rig.ask(&format!("/v1/workers/{home}/drain"), &json!({})).await.status, 200);
        let told = explain(&rig, &SESSION, &fresh(8)).await;
        assert_eq!(told["session"]["outcome"], "moved");
        let because = told["session"]["because"].as_str().unwrap();
        assert_eq!(because, "the worker that has the session cannot take the request: draining");
        let next = served_by(&rig, &SESSION, &fresh(20)).await;
        assert_ne!(next, home);
        for seed in 21..24 {
            assert_eq!(served_by(&rig, &SESSION, &fresh(seed)).await, next);
        }
        let count = async |outcome: &str| {
            rig.metric("kvroute_session_requests_total", &format!("outcome=\"{outcome}\"")).await
        };
        assert_eq!((count("new").await, count("kept").await, count("moved").await), (1.0, 7.0, 1.0));
        assert_eq!(rig.metric("kvroute_worker_set_sessions", "").await, 1.0);
        rig.wait_for_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_comes_back_under_its_id_has_no_sessions() {
    let rig = Rig::start_tuned(Mode::LeastLoaded, remembering(600, AffinityMode::Hard), 2).await;
    let home = served_by(&rig, &SESSION, &fresh(1)).await;
    let engine = &rig.engines[home as usize - 1];
    rig.remove(home).await;
    assert_eq!(rig.register(&worker(home, engine), None).await.status, 201);
    let told = explain(&rig, &SESSION, &fresh(2)).await;
    assert_eq!((&told["session"]["outcome"], &told["session"]["bound_to"]), (&json!("moved"), &json!(null)));
    assert_eq!(told["session"]["because"], "the worker that had the session is gone");
    let home = served_by(&rig, &SESSION, &fresh(3)).await;
    for seed in 4..8 {
        assert_eq!(served_by(&rig, &SESSION, &fresh(seed)).await, home);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_cannot_be_reached_loses_its_sessions() {
    let mut rig = Rig::start_tuned(Mode::RoundRobin, remembering(600, AffinityMode::Hard), 2).await;
    let home = served_by(&rig, &SESSION, &fresh(1)).await;
    rig.engines.remove(home as usize - 1).stop().await;
    let next = served_by(&rig, &SESSION, &fresh(2)).await;
    assert_ne!(next, home, "it was tried elsewhere");
    assert_eq!(served_by(&rig, &SESSION, &fresh(3)).await, next);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pin_against_a_session_that_must_stay_is_a_mistake() {
    for (mode, status) in [(AffinityMode::Hard, 400), (AffinityMode::Soft, 200)] {
        let rig = Rig::start_tuned(Mode::Kv, remembering(600, mode), 2).await;
        let home = served_by(&rig, &SESSION, &fresh(1)).await;
        let other = (3 - home).to_string();
        let headers = [SESSION[0], ("x-worker-instance-id", other.as_str())];
        let answer = send(&rig, &headers, &fresh(2)).await;
        assert_eq!(answer.status, status, "{}", answer.text);
        if mode == AffinityMode::Hard {
            let text = format!("contradicts the request's session, which is bound to worker {home}");
            assert!(answer.text.contains(&text), "{}", answer.text);
            let same = home.to_string();
            let headers = [SESSION[0], ("x-worker-instance-id", same.as_str())];
            assert_eq!(served_by(&rig, &headers, &fresh(3)).await, home);
        } else {
            assert_eq!(served_by(&rig, &SESSION, &fresh(3)).await, 3 - home, "a wish follows the pin");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wish_gives_way_to_a_worker_that_has_the_prompt() {
    for (mode, follows) in [(AffinityMode::Soft, false), (AffinityMode::Hard, true)] {
        let rig = Rig::start_tuned(Mode::Kv, remembering(600, mode), 2).await;
        let long = |seed| {
            let mut body = chat(&prose(seed, 600), "hello");
            body["nvext"] = json!({ "extra_fields": ["worker_id"] });
            body
        };
        let home = served_by(&rig, &SESSION, &long(1)).await;
        let other = (3 - home).to_string();
        let elsewhere = [("x-worker-instance-id", other.as_str())];
        assert_eq!(served_by(&rig, &elsewhere, &long(2)).await, 3 - home);
        rig.wait_for_events().await;
        // What nobody has goes where the session is.
        assert_eq!(served_by(&rig, &SESSION, &long(3)).await, home);
        rig.wait_for_events().await;
        let told = explain(&rig, &SESSION, &long(2)).await;
        let candidate = |id| rig::candidate(&told, id);
        if follows {
            assert_eq!(candidate(3 - home)["why"], "excluded: not where the session is");
        } else {
            assert!(candidate(home)["cost"]["session"].as_f64().unwrap() < 0.0, "{told}");
            assert_eq!(candidate(3 - home)["cost"]["session"], 0.0);
            let because = told["session"]["because"].as_str().unwrap();
            assert_eq!(because, "another worker costs less, even with what going on there is worth");
        }
        let expected = if follows { home } else { 3 - home };
        assert_eq!(served_by(&rig, &SESSION, &long(2)).await, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prefill_and_decode_workers_remember_a_session_apart() {
    let planned = |workers| tuned(Mode::RoundRobin, remembering(600, AffinityMode::Hard), workers);
    let rig = Pools::start(2, 2).await.behind_plan(planned).await;
    let first = hops(&send(&rig, &SESSION, &small()).await);
    for _ in 0..3 {
        assert_eq!(hops(&send(&rig, &SESSION, &small()).await), first);
    }
    let others: BTreeSet<_> =
        [hops(&send(&rig, &[], &small()).await), hops(&send(&rig, &[], &small()).await)].into();
    assert_eq!(others.len(), 2, "without a session the turns go on in both pools");
    let told = explain(&rig, &SESSION, &small()).await;
    assert_eq!(told["prefill"]["session"]["bound_to"]["worker_id"], first.0);
    assert_eq!(told["session"]["bound_to"]["worker_id"], first.1);

    // A prefill card that advertises none has none; the decode set has its own.
    let router = RouterConfig { mode: Mode::RoundRobin, ..RouterConfig::default() };
    let pools = Pools::start(2, 2).await.change(WorkerType::Decode, |worker| {
        let tuning = remembering(600, AffinityMode::Hard);
        worker.router_config = Some(RouterConfig { mode: Mode::RoundRobin, tuning });
    });
    let pools = pools.change(WorkerType::Prefill, |worker| worker.router_config = Some(router.clone()));
    let rig = pools.behind(Mode::RoundRobin).await;
    let (prefill, decode): (Vec<_>, Vec<_>) =
        [hops(&send(&rig, &SESSION, &small()).await), hops(&send(&rig, &SESSION, &small()).await)]
            .into_iter()
            .unzip();
    assert_ne!(prefill[0], prefill[1]);
    assert_eq!(decode[0], decode[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_was_idle_for_long_enough_is_forgotten() {
    let rig = Rig::start_tuned(Mode::RoundRobin, remembering(1, AffinityMode::Hard), 2).await;
    served_by(&rig, &SESSION, &fresh(1)).await;
    eventually("the session is forgotten", async || {
        explain(&rig, &SESSION, &fresh(2)).await["session"]["outcome"] == "new"
    })
    .await;
    assert_eq!(rig.metric("kvroute_worker_set_sessions", "").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_sets_the_one_that_has_the_session_serves_it() {
    let mut pools = Pools::of(vec![engine_settings(); 2]).await;
    for (id, worker) in (1..).zip(&mut pools.workers) {
        worker.component = format!("backend-{id}");
    }
    let planned = |workers| tuned(Mode::RoundRobin, remembering(600, AffinityMode::Hard), workers);
    let rig = pools.behind_plan(planned).await;
    let home = served_by(&rig, &SESSION, &fresh(1)).await;
    for seed in 2..18 {
        assert_eq!(served_by(&rig, &SESSION, &fresh(seed)).await, home);
    }
}
