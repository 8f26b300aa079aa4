//! Requests that a worker turns away go to another one, within a budget; what is passed on says whose error it is.

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

use http::{HeaderMap, StatusCode};
use kvroute::{
    config::FrontendPlan,
    fleet::{RouterConfig, WorkerSpec, WorkerType},
    frontend::{FrontendSettings, RetryBudget},
    select::{ConditionalDisagg, Mode, Tuning},
    worker::mock::{MockSettings, Role},
};
use serde_json::{Value, json};

use crate::rig::{
    Answer, MODEL, Rig, Transcript, chat, engine_settings, lasting_port, plan,
    pools::{CHAT, Pools, growing, hops, small},
    prose,
    scripted::{Scripted, answer, served},
    stream_of,
};

async fn behind(workers: &[Scripted], settings: impl FnOnce(&mut FrontendSettings)) -> Rig {
    let workers = (1..).zip(workers).map(|(id, worker)| worker.worker(id)).collect();
    let mut plan = plan(Mode::RoundRobin, workers);
    settings(&mut plan.settings);
    Rig::start_plan(plan, Vec::new()).await
}

async fn ask(rig: &Rig) -> Answer {
    rig.post(CHAT, &chat("you are brief", "hello")).await
}

async fn retries(rig: &Rig, reason: &str) -> f64 {
    rig.metric("kvroute_retries_total", &format!("reason=\"{reason}\"")).await
}

async fn given_up(rig: &Rig, reason: &str) -> f64 {
    rig.metric("kvroute_retries_given_up_total", &format!("reason=\"{reason}\"")).await
}

/// What an answer's headers say of its error.
fn told(headers: &HeaderMap) -> [&str; 2] {
    ["x-kvroute-error-source", "x-kvroute-error-retry"]
        .map(|name| headers.get(name).map_or("", |value| value.to_str().unwrap()))
}

/// An error of the router's own says the same in its body and in its headers.
fn expect_error(error: &Answer, status: u16, source: &str, retry: &str) {
    assert_eq!(error.status, status, "{}", error.text);
    let body = &error.json["error"];
    assert_eq!([&body["source"], &body["retry"]], [source, retry], "{}", error.text);
    assert_eq!(told(&error.headers), [source, retry], "{}", error.text);
    assert!(body["code"].is_string() || body["type"].is_string(), "{}", error.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_worker_turns_away_another_serves() {
    for (status, rests) in [(429, false), (502, true), (503, true)] {
        let workers = [
            Scripted::start(move |_| answer(status, &[("retry-after", "7")], "{}")).await,
            Scripted::start(|_| served(2)).await,
        ];
        let rig = behind(&workers, |_| {}).await;
        let served = ask(&rig).await;
        assert_eq!((served.status.as_u16(), &served.headers["x-by"]), (200, &"2".parse().unwrap()));
        assert_eq!(told(&served.headers), ["", ""], "nothing went wrong");
        assert_eq!((workers[0].seen(), workers[1].seen()), (1, 1));
        assert_eq!(retries(&rig, &status.to_string()).await, 1.0);
        assert_eq!(rig.metric("kvroute_retries_total", "").await, 1.0);
        let excluded = &rig.worker(1).await["excluded"];
        assert_eq!(excluded == "unroutable", rests, "no 4xx keeps requests away: {status} {excluded}");
        rig.wait_for_idle().await;
        assert_eq!(rig.outcomes("ok").await, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_answers_else_is_the_answer() {
    for (status, retry) in [
        (400, "never"),
        (401, "never"),
        (404, "never"),
        (408, "safe"),
        (409, "never"),
        (422, "never"),
        (500, "unsafe"),
        (501, "unsafe"),
        (504, "unsafe"),
    ] {
        let own = "{\"its\": \"own words\"}";
        let workers = [
            Scripted::start(move |_| answer(status, &[("x-own", "1")], own)).await,
            Scripted::start(|_| served(2)).await,
        ];
        let rig = behind(&workers, |_| {}).await;
        let failed = ask(&rig).await;
        assert_eq!((failed.status.as_u16(), failed.text.as_str()), (status, own));
        assert_eq!(
            (told(&failed.headers), &failed.headers["x-own"]),
            (["worker", retry], &"1".parse().unwrap())
        );
        assert_eq!(workers[1].seen(), 0, "{status} is not tried again");
        assert_eq!(rig.metric("kvroute_retries_given_up_total", "").await, 0.0, "and nobody thought of it");
        assert_eq!(rig.worker(1).await["excluded"] == "unroutable", status == 504);
        rig.wait_for_idle().await;
    }
}

/// A worker that is a router itself knows whether its own worker may have run the request.
#[tokio::test(flavor = "multi_thread")]
async fn what_another_router_calls_unsafe_is_not_tried_again() {
    for (said, tried) in [("unsafe", 0), ("safe", 1)] {
        let headers = [("x-kvroute-error-source", "worker"), ("x-kvroute-error-retry", said)];
        let workers = [
            Scripted::start(move |_| answer(502, &headers, "{}")).await,
            Scripted::start(|_| served(2)).await,
        ];
        let rig = behind(&workers, |_| {}).await;
        let first = ask(&rig).await;
        assert_eq!((first.status == 200, workers[1].seen()), (tried == 1, tried), "{said}");
        rig.wait_for_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn when_all_were_tried_the_last_one_s_answer_is_passed_on() {
    for count in [1, 2, 4_u64] {
        let mut workers = Vec::new();
        for id in 1..=count {
            let after = (10 + id).to_string();
            let full = move |_| answer(429, &[("retry-after", &after)], &format!("full: {after}"));
            workers.push(Scripted::start(full).await);
        }
        let rig = behind(&workers, |_| {}).await;
        let full = ask(&rig).await;
        let tried = count.min(3);
        let after = full.headers["retry-after"].to_str().unwrap();
        assert_eq!((full.status.as_u16(), full.text.as_str()), (429, format!("full: {after}").as_str()));
        assert_eq!(after == "11", tried == 1, "the first one's only if there was no other: {after}");
        let seen: Vec<_> = workers.iter().map(Scripted::seen).collect();
        assert_eq!(seen.iter().sum::<usize>() as u64, tried, "each once: {seen:?}");
        assert_eq!(seen[after.parse::<usize>().unwrap() - 11], 1, "{seen:?}");
        assert_eq!(told(&full.headers), ["worker", "safe"]);
        assert_eq!(retries(&rig, "429").await, (tried - 1) as f64);
        let limit = given_up(&rig, "limit").await;
        assert_eq!(
            (limit, given_up(&rig, "no_worker").await),
            if count > 3 { (1.0, 0.0) } else { (0.0, 1.0) }
        );
        assert_eq!(rig.metric("kvroute_refusals_total", "").await, 0.0, "it was answered");
        rig.wait_for_idle().await;
        assert_eq!(rig.outcomes("client_error").await, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pinned_request_goes_nowhere_else() {
    let workers = [
        Scripted::start(|_| answer(429, &[("retry-after", "9")], "full")).await,
        Scripted::start(|_| served(2)).await,
    ];
    let rig = behind(&workers, |_| {}).await;
    let mut body = chat("you are brief", "hello");
    body["nvext"] = json!({ "backend_instance_id": 1 });
    let full = rig.post(CHAT, &body).await;
    assert_eq!((full.status.as_u16(), full.headers["retry-after"].to_str().unwrap()), (429, "9"));
    assert_eq!((workers[1].seen(), retries(&rig, "429").await), (0, 0.0));
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_are_a_share_of_all_requests() {
    let workers = [
        Scripted::start(|_| answer(429, &[], "full")).await,
        Scripted::start(|_| answer(429, &[], "full")).await,
    ];
    let rig = behind(&workers, |settings| {
        settings.retry_budget = RetryBudget { share: 0.2, per_second: 0 };
    })
    .await;
    for _ in 0..30 {
        assert_eq!(ask(&rig).await.status, 429);
    }
    let made = retries(&rig, "429").await;
    assert!((1.0..=6.0).contains(&made), "a fifth of 30, less what was not used in time: {made}");
    // Each gives up in the end: for want of a budget, or once there is nobody else.
    assert_eq!(given_up(&rig, "budget").await + given_up(&rig, "no_worker").await, 30.0);
    assert!(given_up(&rig, "budget").await >= 24.0);
    assert_eq!((workers[0].seen() + workers[1].seen()) as f64, 30.0 + made);
    assert!(rig.metric("kvroute_retry_budget", "").await < 1.0 + f64::EPSILON);
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_retries_the_first_answer_counts() {
    let workers = [Scripted::start(|_| answer(503, &[], "no")).await, Scripted::start(|_| served(2)).await];
    let rig = behind(&workers, |settings| settings.retries = 0).await;
    assert_eq!(ask(&rig).await.status, 503);
    assert_eq!((workers[1].seen(), given_up(&rig, "limit").await), (0, 1.0));
}

/// A port where nobody listens, and one where whoever connects is hung up on.
async fn broken() -> [WorkerSpec; 2] {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            // The request is read, so that it is known to have been sent.
            stream.readable().await.unwrap();
            let _ = stream.try_read(&mut [0; 65536]);
        }
    });
    let dead = format!("http://127.0.0.1:{}", lasting_port());
    [WorkerSpec::new(&dead, MODEL), WorkerSpec::new(&url, MODEL)]
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_say_whose_they_are_and_whether_sending_again_is_safe() {
    let alone = async |workers: Vec<WorkerSpec>| {
        let mut plan: FrontendPlan = plan(Mode::RoundRobin, workers);
        plan.settings.retries = 0;
        Rig::start_plan(plan, Vec::new()).await
    };
    let [dead, resetting] = broken().await;
    let rig = alone(vec![dead]).await;
    let unreachable = ask(&rig).await;
    expect_error(&unreachable, 502, "worker", "safe");
    assert_eq!(unreachable.json["error"]["code"], "worker_unreachable");
    let mut unknown = chat("you are brief", "hello");
    unknown["model"] = json!("nobody's");
    expect_error(&rig.post(CHAT, &unknown).await, 404, "client", "never");
    expect_error(&rig.post(CHAT, &Value::Null).await, 400, "client", "never");
    rig.ask("/v1/workers/1/drain", &Value::Null).await;
    expect_error(&ask(&rig).await, 503, "router", "safe");

    let rig = alone(vec![resetting]).await;
    let reset = ask(&rig).await;
    expect_error(&reset, 502, "worker", "unsafe");
    assert_eq!(reset.json["error"]["code"], "worker_reset");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_event_that_ends_a_cut_stream_says_so_too() {
    let rig = Rig::start(Mode::Kv, 1).await;
    rig.engines[0].cut_next(2);
    let url = format!("{}/v1/completions", rig.public());
    let mut response = rig.client.open(&url, &stream_of(&prose(1, 40), 20)).await;
    let seen = Transcript::of(response.body_mut()).await;
    let error: Value = serde_json::from_str(seen.events().last().unwrap()).unwrap();
    assert_eq!([&error["error"]["source"], &error["error"]["retry"]], ["worker", "unsafe"], "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_hop_is_tried_elsewhere_by_itself() {
    for status in [429, 502, 503] {
        let rig = Pools::start(2, 2).await.behind(Mode::RoundRobin).await;
        let status = StatusCode::from_u16(status).unwrap();
        rig.engines[0].fail_next(status);
        rig.engines[2].fail_next(status);
        let answer = rig.post(CHAT, &small()).await;
        assert_eq!(hops(&answer), (2, 4));
        assert_eq!(
            answer.cached_tokens(),
            answer.prompt_tokens() - 1,
            "the second decode worker took the blocks over"
        );
        assert_eq!(rig.metric("kvroute_retries_total", "").await, 2.0);
        assert_eq!(rig.metric("kvroute_prefills_total", "failed").await, 0.0);
        rig.wait_for_free_engines().await;
        rig.wait_for_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hops_that_meet_by_themselves_are_tried_elsewhere_too() {
    // Mock engines do not meet. A decode that is through before its prefill has failed would need none.
    let slow = MockSettings { speedup: 1.0, step_overhead: Duration::from_millis(50), ..engine_settings() };
    let mut pools = Pools::start_with(2, 2, slow).await;
    for (worker, engine) in pools.workers.iter_mut().zip(&pools.engines) {
        if worker.worker_type == WorkerType::Prefill {
            worker.bootstrap_port = Some(engine.http_addr().port());
        }
    }
    let rig = pools.behind(Mode::RoundRobin).await;
    rig.engines[0].fail_next(StatusCode::SERVICE_UNAVAILABLE);
    rig.engines[2].fail_next(StatusCode::SERVICE_UNAVAILABLE);
    let answer = rig.post(CHAT, &small()).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(hops(&answer).0, 2);
    assert!(rig.metric("kvroute_retries_total", "").await >= 1.0);
    rig.wait_for_free_engines().await;
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bypass_that_is_turned_away_goes_on_in_two_hops_if_another_can_decode() {
    let rule = ConditionalDisagg {
        eff_isl_threshold: 512,
        eff_isl_ratio_threshold: 1.0,
        ..ConditionalDisagg::default()
    };
    let tuning = Tuning { conditional_disagg: Some(rule), ..Tuning::default() };
    for decoders in [2, 1] {
        let mut pools = Pools::start(1, 0).await;
        for _ in 0..decoders {
            pools.add(Role::Decode, engine_settings()).await;
        }
        let config = RouterConfig { mode: Mode::Kv, tuning };
        let pools = pools.change(WorkerType::Decode, |worker| worker.router_config = Some(config.clone()));
        let rig = pools.behind(Mode::RoundRobin).await;
        // One of them holds the prompt, so that it bypasses the prefill worker.
        let mut warm = growing(0);
        warm.as_object_mut().unwrap().remove("nvext");
        let url = format!("http://{}{CHAT}", rig.engines[1].http_addr());
        assert_eq!(rig.client.post(&url, &warm).await.status, 200);
        rig.wait_for_events().await;
        rig.engines[1].fail_next(StatusCode::TOO_MANY_REQUESTS);
        let answer = rig.post(CHAT, &growing(0)).await;
        if decoders == 2 {
            assert_eq!(hops(&answer), (1, 3));
            assert_eq!(retries(&rig, "429").await, 1.0);
        } else {
            assert_eq!(
                answer.status, 429,
                "it is passed on, and no prompt computed for nobody: {}",
                answer.text
            );
            assert_eq!(rig.metric("kvroute_prefills_total", "").await, 0.0);
        }
        rig.wait_for_free_engines().await;
        rig.wait_for_idle().await;
    }
}
