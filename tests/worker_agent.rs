//! The agent beside an engine: it registers, renews, deregisters, and comes back.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod rig;

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::extract::State;
use http::{HeaderValue, Method, StatusCode, Uri};
use kvroute::{
    config::FrontendPlan,
    fleet::{RouterConfig, WorkerSpec},
    frontend::AdminToken,
    select::{Mode, Tuning},
    worker::{
        agent::{self, AgentSettings, DescribeError, Pace},
        backend::Backend,
        devices::DeviceSettings,
        facts::{Facts, PublishKvEvents, Stated},
        mock::{MockEngine, MockSettings},
    },
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, oneshot},
    task::JoinHandle,
    time::sleep,
};

use crate::rig::{
    Http, MODEL, Rig, chat, engine_settings, eventually, lasting_port, plan, prose, upstream::Upstream,
    with_lasting_ports,
};

/// An agent in this process.
struct Agent {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), DescribeError>>,
}

impl Agent {
    fn start(settings: AgentSettings) -> Self {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(agent::run(settings, async {
            let _ = stopped.await;
        }));
        Self { stop, task }
    }

    /// As a signal does.
    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.task.await.unwrap().unwrap();
    }
}

/// An agent that looks often, beside the engine at `engine`. Its lease is longer than any test waits.
fn settings(backend: Backend, engine: SocketAddr, frontends: &[String]) -> AgentSettings {
    let engine: Uri = format!("http://{engine}").parse().unwrap();
    AgentSettings {
        backend,
        advertised: engine.clone(),
        engine,
        frontends: frontends.iter().map(|url| url.parse().unwrap()).collect(),
        authorization: None,
        lease: Duration::from_secs(3600),
        facts: Facts::default(),
        publish_kv_events: PublishKvEvents::default(),
        spec: WorkerSpec::new("", "model"),
        devices: DeviceSettings { enabled: false, ..DeviceSettings::default() },
        pace: Pace {
            health_interval: Duration::from_millis(50),
            first_retry: Duration::from_millis(20),
            longest_retry: Duration::from_millis(100),
            ..Pace::default()
        },
    }
}

fn beside(engine: &MockEngine, rig: &Rig) -> AgentSettings {
    settings(Backend::Vllm, engine.http_addr(), &[rig.admin()])
}

async fn empty_frontend() -> Rig {
    Rig::start_plan(plan(Mode::Kv, Vec::new()), Vec::new()).await
}

async fn engine() -> MockEngine {
    MockEngine::start(engine_settings()).await.unwrap()
}

async fn workers_of(client: &Http, admin: &str) -> Value {
    client.get(&format!("{admin}/v1/workers")).await.json
}

async fn wait_for_workers(rig: &Rig, count: usize) {
    eventually(&format!("{count} workers"), async || rig.workers().await.len() == count).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_is_registered_as_it_describes_itself_and_serves() {
    let settings = MockSettings { block_size: 32, loras: vec!["adapter".to_owned()], ..engine_settings() };
    let engine = MockEngine::start(settings).await.unwrap();
    let mut rig = empty_frontend().await;
    let agent = Agent::start(beside(&engine, &rig));
    rig.engines.push(engine);
    wait_for_workers(&rig, 1).await;
    rig.wait_for_streams("live").await;

    let sets = rig.client.get(&format!("{}/v1/worker-sets", rig.admin())).await.json;
    let set = &sets["worker_sets"][0];
    assert_eq!((&set["model"], &set["block_size"]), (&json!(MODEL), &json!(32)));
    assert_eq!(set["router_config_from"], "frontend", "nobody advertised anything");
    let models = rig.client.get(&format!("{}/v1/models", rig.public())).await.json;
    let names: Vec<_> = models["data"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
    assert_eq!(names, ["adapter", MODEL]);

    let body = chat(&prose(1, 200), "again?");
    let first = rig.post("/v1/chat/completions", &body).await;
    assert_eq!(first.status, 200, "{}", first.text);
    rig.wait_for_events().await;
    let second = rig.post("/v1/chat/completions", &body).await;
    assert!(second.cached_tokens() > 0);
    let explained = rig.explain(&body).await;
    assert_eq!(explained["choice"]["cached_tokens"], second.cached_tokens(), "{explained}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_keep_the_lease() {
    let (engine, rig) = (engine().await, empty_frontend().await);
    let agent = Agent::start(AgentSettings { lease: Duration::from_secs(2), ..beside(&engine, &rig) });
    wait_for_workers(&rig, 1).await;
    let before = workers_of(&rig.client, &rig.admin()).await["generation"].clone();
    sleep(Duration::from_secs(5)).await;
    let after = workers_of(&rig.client, &rig.admin()).await;
    assert_eq!(after["generation"], before, "it left and came back");
    assert_eq!(after["workers"].as_array().unwrap().len(), 1);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_told_to_stop_deregisters_at_once() {
    let (engine, rig) = (engine().await, empty_frontend().await);
    let agent = Agent::start(beside(&engine, &rig));
    wait_for_workers(&rig, 1).await;
    agent.stop().await;
    assert!(rig.workers().await.is_empty(), "the lease has an hour to go");
}

/// A frontend that takes its time with a registration, and notes who deregisters.
#[derive(Clone, Default)]
struct Slow {
    asked: Arc<Notify>,
    gone: Arc<Mutex<Vec<String>>>,
}

async fn answer(State(slow): State<Slow>, method: Method, uri: Uri) -> (StatusCode, String) {
    if method == Method::DELETE {
        slow.gone.lock().push(uri.path().to_owned());
        return (StatusCode::OK, "{}".to_owned());
    }
    slow.asked.notify_one();
    sleep(Duration::from_millis(300)).await;
    (StatusCode::CREATED, json!({ "id": 5 }).to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registration_that_is_under_way_is_taken_back_too() {
    let slow = Slow::default();
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let frontend = format!("http://{}", listener.local_addr().unwrap());
    let router = axum::Router::new().fallback(answer).with_state(slow.clone());
    let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let engine = engine().await;
    let agent = Agent::start(settings(Backend::Vllm, engine.http_addr(), &[frontend]));
    slow.asked.notified().await;
    agent.stop().await;
    assert_eq!(*slow.gone.lock(), ["/v1/workers/5"]);
    server.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_gone_is_deregistered_until_it_is_back() {
    let settings = with_lasting_ports(engine_settings());
    let (engine, rig) = (MockEngine::start(settings.clone()).await.unwrap(), empty_frontend().await);
    let agent = Agent::start(beside(&engine, &rig));
    wait_for_workers(&rig, 1).await;
    let id = rig.workers().await[0]["id"].clone();
    engine.stop().await;
    wait_for_workers(&rig, 0).await;

    // It is asked anew: it may not be the same.
    let settings = MockSettings { block_size: 32, ..settings };
    let engine = MockEngine::start(settings).await.unwrap();
    wait_for_workers(&rig, 1).await;
    rig.wait_for_streams("live").await;
    assert_eq!(rig.workers().await[0]["id"], id);
    let sets = rig.client.get(&format!("{}/v1/worker-sets", rig.admin())).await.json;
    assert_eq!(sets["worker_sets"][0]["block_size"], 32);
    agent.stop().await;
    engine.stop().await;
}

/// So quickly that no look at it fails.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_was_started_anew_between_two_looks_is_registered_anew() {
    let settings = with_lasting_ports(engine_settings());
    let (engine, rig) = (MockEngine::start(settings.clone()).await.unwrap(), empty_frontend().await);
    let mut beside = beside(&engine, &rig);
    (beside.pace.health_failures, beside.pace.identity_interval) = (u32::MAX, Duration::from_millis(20));
    let agent = Agent::start(beside);
    wait_for_workers(&rig, 1).await;
    rig.wait_for_streams("live").await;
    let before = rig.workers().await[0].clone();

    // Its events are elsewhere then (GET /kv_event_sources).
    engine.stop().await;
    let moved = MockSettings { http: settings.http, ..with_lasting_ports(engine_settings()) };
    let engine = MockEngine::start(moved.clone()).await.unwrap();
    eventually("its new endpoint is followed", async || {
        let workers = rig.workers().await;
        workers.iter().any(|worker| {
            worker["stream"]["endpoint"] != before["stream"]["endpoint"]
                && worker["stream"]["state"] == "live"
        })
    })
    .await;
    let after = rig.workers().await[0].clone();
    assert_eq!(after["id"], before["id"], "it keeps its id, which is in metrics and pins");

    // Or where they were: then it is the time of its start that tells.
    engine.stop().await;
    let engine = MockEngine::start(moved).await.unwrap();
    eventually("it is registered anew", async || {
        let workers = rig.workers().await;
        workers.iter().any(|worker| worker["registered_ms"].as_u64() > after["registered_ms"].as_u64())
    })
    .await;
    rig.wait_for_streams("live").await;
    assert_eq!(rig.workers().await[0]["stream"]["endpoint"], after["stream"]["endpoint"]);
    agent.stop().await;
    engine.stop().await;
}

/// Registrations follow the engine, whichever comes first.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_comes_later_is_waited_for() {
    let engine_settings = with_lasting_ports(engine_settings());
    let rig = empty_frontend().await;
    let agent = Agent::start(settings(Backend::Vllm, engine_settings.http, &[rig.admin()]));
    sleep(Duration::from_millis(200)).await;
    assert!(rig.workers().await.is_empty());
    let engine = MockEngine::start(engine_settings).await.unwrap();
    wait_for_workers(&rig, 1).await;
    agent.stop().await;
    engine.stop().await;
}

/// A frontend whose admin listener has a port of its own choice, so that another can follow it there.
fn plan_at(port: u16) -> FrontendPlan {
    let mut plan = plan(Mode::Kv, Vec::new());
    plan.settings.admin = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    plan
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frontend_that_restarted_gets_the_worker_again() {
    let port = lasting_port();
    let (engine, rig) = (engine().await, Rig::start_plan(plan_at(port), Vec::new()).await);
    let settings = AgentSettings { lease: Duration::from_secs(1), ..beside(&engine, &rig) };
    let agent = Agent::start(settings);
    wait_for_workers(&rig, 1).await;
    rig.frontend.stop().await;
    let rig = Rig::start_plan(plan_at(port), Vec::new()).await;
    wait_for_workers(&rig, 1).await;
    agent.stop().await;
    assert!(rig.workers().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frontend_that_is_away_holds_nobody_up() {
    let port = lasting_port();
    let (engine, here) = (engine().await, empty_frontend().await);
    let frontends = [format!("http://127.0.0.1:{port}"), here.admin()];
    let agent = Agent::start(settings(Backend::Vllm, engine.http_addr(), &frontends));
    wait_for_workers(&here, 1).await;
    let late = Rig::start_plan(plan_at(port), Vec::new()).await;
    wait_for_workers(&late, 1).await;
    let (early, late_too) = (here.workers().await, late.workers().await);
    assert_eq!(early[0]["registered_ms"], late_too[0]["registered_ms"], "both are told when it came");
    // One of two being away again does not hold up the end either.
    late.frontend.stop().await;
    agent.stop().await;
    assert!(here.workers().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_worker_is_tried_again() {
    let rig = empty_frontend().await;
    let other = engine().await;
    let first = Agent::start(AgentSettings {
        spec: WorkerSpec { id: Some(7), ..WorkerSpec::new("", "model") },
        ..beside(&other, &rig)
    });
    wait_for_workers(&rig, 1).await;
    let engine = engine().await;
    let second = Agent::start(AgentSettings {
        spec: WorkerSpec { id: Some(7), ..WorkerSpec::new("", "model") },
        ..beside(&engine, &rig)
    });
    sleep(Duration::from_millis(300)).await;
    let url = |workers: &[Value]| workers.iter().map(|worker| worker["url"].to_string()).collect::<String>();
    assert!(url(&rig.workers().await).contains(&other.http_addr().to_string()), "the id is taken");
    first.stop().await;
    eventually("the id is free for the second", async || {
        url(&rig.workers().await).contains(&engine.http_addr().to_string())
    })
    .await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_opens_the_admin_listener() {
    let mut plan = plan(Mode::Kv, Vec::new());
    plan.settings.admin_token = AdminToken::new("s3cret").ok();
    let (engine, rig) = (engine().await, Rig::start_plan(plan, Vec::new()).await);
    let count = async || {
        let (url, headers) = (format!("{}/v1/workers", rig.admin()), [("authorization", "Bearer s3cret")]);
        let answer = rig.client.request(Method::GET, &url, &headers, &json!({})).await;
        answer.json["workers"].as_array().unwrap().len()
    };
    let with = |token| AgentSettings { authorization: token, ..beside(&engine, &rig) };
    let wrong = Agent::start(with(Some(HeaderValue::from_static("Bearer other"))));
    sleep(Duration::from_millis(200)).await;
    assert_eq!(count().await, 0);
    wrong.stop().await;
    let right = Agent::start(with(Some(HeaderValue::from_static("Bearer s3cret"))));
    eventually("a worker", async || count().await == 1).await;
    right.stop().await;
    assert_eq!(count().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_advertised_configuration_is_the_set_s() {
    let (engine, rig) = (engine().await, empty_frontend().await);
    let tuning = Tuning { overlap_score_credit: 2.5, ..Tuning::default() };
    let router_config = Some(RouterConfig { mode: Mode::Kv, tuning });
    let spec = WorkerSpec { router_config, ..WorkerSpec::new("", "model") };
    let agent = Agent::start(AgentSettings { spec, ..beside(&engine, &rig) });
    wait_for_workers(&rig, 1).await;
    let sets = rig.client.get(&format!("{}/v1/worker-sets", rig.admin())).await.json;
    let set = &sets["worker_sets"][0];
    assert_eq!(set["router_config"]["kv_router_config"]["overlap_score_credit"], 2.5);
    assert_eq!(set["router_config_from"], "card");
    agent.stop().await;
}

fn says_nothing(path: &str) -> (u16, &'static str, &'static str) {
    if path == "/health" { (200, "text/plain", "") } else { (404, "text/plain", "") }
}

/// The address behind a rig's upstream.
fn address(upstream: &Upstream) -> SocketAddr {
    upstream.worker(1, MODEL).url.strip_prefix("http://").unwrap().parse().unwrap()
}

/// What ends the agent of an engine that nobody can describe.
async fn undescribed(settings: AgentSettings) -> String {
    let never = std::future::pending();
    tokio::time::timeout(Duration::from_secs(60), agent::run(settings, never))
        .await
        .unwrap()
        .unwrap_err()
        .to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_cannot_be_described_is_not_registered() {
    let (upstream, rig) = (Upstream::start(says_nothing).await, empty_frontend().await);
    for backend in [Backend::Vllm, Backend::Sglang, Backend::Trtllm] {
        let plain = settings(backend, address(&upstream), &[rig.admin()]);
        assert!(undescribed(plain.clone()).await.contains("--model-name"));
        let mut named = plain;
        named.facts.model = Some(Stated::new("m".to_owned(), "--model-name"));
        assert!(undescribed(named.clone()).await.contains("--engine-block-size"));
        named.facts.block_size = Some(Stated::new(16, "--engine-block-size"));
        named.publish_kv_events = PublishKvEvents::Yes;
        assert!(undescribed(named).await.contains("--kv-events-endpoint"));
    }
    assert_eq!(workers_of(&rig.client, &rig.admin()).await["generation"], 0, "somebody was there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_the_engine_does_not_serve_is_not_registered() {
    let (engine, rig) = (engine().await, empty_frontend().await);
    let mut settings = beside(&engine, &rig);
    settings.facts.model = Some(Stated::new("other".to_owned(), "--model-name"));
    let error = undescribed(settings).await;
    assert!(error.contains("'other' (--model-name)") && error.contains(MODEL), "{error}");
}

fn sglang(path: &str) -> (u16, &'static str, &'static str) {
    let json = match path {
        "/health" => "",
        "/v1/models" => r#"{"data":[{"id":"s","max_model_len":4096}]}"#,
        "/server_info" => {
            r#"{"page_size":64,"dp_size":2,"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"block_size":64}}"#
        }
        _ => return (404, "text/plain", ""),
    };
    (200, "application/json", json)
}

#[tokio::test(flavor = "multi_thread")]
async fn sglang_is_asked_for_its_server_info() {
    let (upstream, rig) = (Upstream::start(sglang).await, empty_frontend().await);
    let agent = Agent::start(settings(Backend::Sglang, address(&upstream), &[rig.admin()]));
    wait_for_workers(&rig, 2).await;
    let workers = rig.workers().await;
    assert_eq!((&workers[0]["rank"], &workers[1]["rank"]), (&json!(0), &json!(1)));
    assert_eq!(workers[0]["stream"]["endpoint"], "tcp://*:5557");
    let sets = rig.client.get(&format!("{}/v1/worker-sets", rig.admin())).await.json;
    let set = &sets["worker_sets"][0];
    assert_eq!((&set["model"], &set["block_size"]), (&json!("s"), &json!(64)));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_may_be_announced_without_its_events() {
    let (engine, rig) = (engine().await, empty_frontend().await);
    let silent = AgentSettings { publish_kv_events: PublishKvEvents::No, ..beside(&engine, &rig) };
    let agent = Agent::start(silent);
    wait_for_workers(&rig, 1).await;
    assert_eq!(rig.workers().await[0]["stream"]["state"], "approximate");
    agent.stop().await;
}
