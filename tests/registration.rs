//! Workers come and go over HTTP: leases, heartbeats, draining, refusals, the admin token, several ranks.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod rig;

use std::{net::TcpListener, time::Duration};

use http::Method;
use kvroute::{
    cli::assemble,
    fleet::{WorkerSpec, WorkerType},
    frontend::AdminToken,
    select::Mode,
    worker::mock::{Endpoint, MockEngine, MockSettings},
};
use serde_json::{Value, json};

use crate::rig::{
    Answer, Http, MODEL, Rig, chat, engine_settings, eventually, lasting_port, plan, prose, registration,
    upstream::{Upstream, plain},
    worker,
};

const CHAT: &str = "/v1/chat/completions";

async fn send(rig: &Rig, method: Method, path: &str) -> Answer {
    rig.client.request(method, &format!("{}{path}", rig.admin()), &[], &json!({})).await
}

async fn ids(rig: &Rig) -> Vec<u64> {
    let mut ids: Vec<_> = rig.workers().await.iter().map(|worker| worker["id"].as_u64().unwrap()).collect();
    ids.sort_unstable();
    ids
}

fn naming(system: &str) -> Value {
    let mut body = chat(system, "who?");
    body["nvext"] = json!({ "extra_fields": ["worker_id"] });
    body
}

fn message(answer: &Answer) -> &str {
    answer.json["error"]["message"].as_str().unwrap_or_else(|| panic!("{}", answer.text))
}

/// A frontend that knows one engine (worker 1, no events), and an engine that it does not know yet.
async fn rig_and_newcomer() -> (Rig, WorkerSpec) {
    let known = Upstream::start(plain).await;
    let spec = known.worker(1, MODEL);
    // Worker 1 only keeps the set alive; nobody is routed there.
    drop(known);
    let engine = MockEngine::start(engine_settings()).await.unwrap();
    let newcomer = worker(7, &engine);
    (Rig::assemble(plan(Mode::Kv, vec![spec]), vec![engine]).await, newcomer)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_kept_by_heartbeats_and_ends_with_its_blocks_in_silence() {
    let (rig, newcomer) = rig_and_newcomer().await;
    let registered = rig.register(&newcomer, Some(1.0)).await;
    assert_eq!(registered.status, 201, "{}", registered.text);
    assert_eq!(registered.json, json!({ "id": 7, "lease_secs": 1.0 }));
    assert_eq!(ids(&rig).await, [1, 7]);
    rig.wait_for_streams("live").await;

    let mut body = naming(&prose(1, 60));
    body["nvext"]["backend_instance_id"] = json!(7);
    // Three leases long: without the heartbeats it would be gone.
    for _ in 0..12 {
        tokio::time::sleep(Duration::from_millis(250)).await;
        assert_eq!(send(&rig, Method::POST, "/v1/workers/7/heartbeat").await.status, 200);
        assert_eq!(rig.post(CHAT, &body).await.status, 200);
    }
    eventually("the blocks arrive", async || rig.metric("kvroute_index_places", "").await > 10.0).await;

    eventually("silence removes it", async || ids(&rig).await == [1]).await;
    eventually("its blocks go", async || rig.metric("kvroute_index_places", "").await == 0.0).await;
    let late = send(&rig, Method::POST, "/v1/workers/7/heartbeat").await;
    assert_eq!(late.status, 404);
    assert!(message(&late).contains("register"), "{}", late.text);
    let pinned = rig.post(CHAT, &body).await;
    assert_eq!(pinned.status, 400, "{}", pinned.text);
    assert!(message(&pinned).contains("7 does not identify a known worker"), "{}", pinned.text);

    // It comes back under its id, and its blocks are asked for again.
    assert_eq!(rig.register(&newcomer, Some(60.0)).await.status, 201);
    eventually("the blocks are replayed", async || rig.metric("kvroute_index_places", "").await > 10.0).await;
    let again = rig.post(CHAT, &body).await;
    assert_eq!((again.worker(), again.cached_tokens() > 0), (7, true));
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_leaves_when_it_says_so() {
    let (rig, newcomer) = rig_and_newcomer().await;
    // Without an id it is given one.
    let nameless = WorkerSpec { id: None, ..newcomer };
    let id = rig.register(&nameless, Some(30.0)).await.json["id"].as_u64().unwrap();
    assert_eq!(ids(&rig).await, [1, id]);
    let shown = send(&rig, Method::GET, &format!("/v1/workers/{id}")).await;
    assert_eq!(shown.json["ranks"][0]["url"], format!("{}/", nameless.url), "{}", shown.text);
    rig.remove(id).await;
    assert_eq!(ids(&rig).await, [1]);
    for method in [Method::GET, Method::DELETE] {
        assert_eq!(send(&rig, method, &format!("/v1/workers/{id}")).await.status, 404);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_worker_finishes_and_takes_nothing_new() {
    let slow = MockSettings { speedup: 1.0, ..engine_settings() };
    let rig = Rig::start_with(Mode::RoundRobin, vec![slow, engine_settings()]).await;
    let mut long = naming("be long");
    long["stream"] = json!(true);
    long["max_tokens"] = json!(40);
    long["nvext"]["backend_instance_id"] = json!(1);
    let open = rig.client.open(&format!("{}{CHAT}", rig.public()), &long).await;

    assert_eq!(send(&rig, Method::POST, "/v1/workers/1/drain").await.status, 200);
    for _ in 0..4 {
        assert_eq!(rig.post(CHAT, &naming("short")).await.worker(), 2);
    }
    let workers = rig.workers().await;
    assert_eq!(workers[0]["excluded"], "draining");
    assert_eq!(workers[0]["load"]["requests"], 1, "the open request is still there");
    let pinned = rig.post(CHAT, &long).await;
    assert_eq!(pinned.status, 503, "{}", pinned.text);
    assert!(message(&pinned).contains("draining"), "{}", pinned.text);
    let body = http_body_util::BodyExt::collect(open.into_body()).await.unwrap().to_bytes();
    assert!(body.ends_with(b"data: [DONE]\n\n"), "the open request was cut");

    send(&rig, Method::POST, "/v1/workers/2/drain").await;
    let nobody = rig.post(CHAT, &naming("short")).await;
    assert_eq!(nobody.status, 503, "{}", nobody.text);
    assert!(nobody.headers.contains_key("retry-after"));
    let ready = rig.client.get(&format!("{}/ready", rig.public())).await;
    assert_eq!(ready.status, 503, "{}", ready.text);
    assert_eq!(send(&rig, Method::POST, "/v1/workers/9/drain").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_description_renews_and_another_is_refused() {
    let (rig, newcomer) = rig_and_newcomer().await;
    let generation = async || {
        let answer = rig.client.get(&format!("{}/v1/workers", rig.admin())).await;
        answer.json["generation"].as_u64().unwrap()
    };
    assert_eq!(rig.register(&newcomer, Some(1.0)).await.status, 201);
    let before = generation().await;
    // Registering again is a heartbeat that also changes the lease.
    let renewed = rig.register(&newcomer, Some(600.0)).await;
    assert_eq!((renewed.status.as_u16(), &renewed.json["id"]), (201, &json!(7)), "{}", renewed.text);
    assert_eq!(generation().await, before);
    tokio::time::sleep(Duration::from_millis(1600)).await;
    assert_eq!(ids(&rig).await, [1, 7], "the longer lease did not count");

    let elsewhere = WorkerSpec { url: "http://127.0.0.1:1".to_owned(), ..newcomer.clone() };
    let taken = rig.register(&elsewhere, Some(60.0)).await;
    assert_eq!(taken.status, 409, "{}", taken.text);
    assert!(message(&taken).contains("worker id 7 is taken by") && message(&taken).contains(&newcomer.url));

    let other = WorkerSpec { id: Some(8), ..newcomer };
    let config = json!({ "router_mode": "kv", "kv_router_config": { "overlap_score_credit": 2.0 } });
    for (key, value, field) in [
        ("block_size", json!(32), "block_size"),
        ("max_model_len", json!(4096), "max_model_len"),
        ("eagle", json!(true), "eagle"),
        ("router_config", config, "router_config.kv_router_config.overlap_score_credit"),
    ] {
        let mut body = registration(&other, Some(60.0));
        body[key] = value;
        // It is taken in, and told why it gets no requests.
        let differs = rig.ask("/v1/workers", &body).await;
        let told = (&differs.json["excluded"], &differs.json["differing_fields"]);
        assert_eq!(differs.status, 201, "{key}: {}", differs.text);
        assert_eq!(told, (&json!("conflicting_configuration"), &json!([field])), "{key}");
        rig.remove(8).await;
    }
    // Under another component it is a set of its own.
    let mut body = registration(&other, Some(60.0));
    (body["max_model_len"], body["component"]) = (json!(4096), json!("canary"));
    assert_eq!(rig.ask("/v1/workers", &body).await.status, 201);
    assert_eq!(ids(&rig).await, [1, 7, 8]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_description_that_cannot_be_used_is_refused_by_field() {
    let (rig, newcomer) = rig_and_newcomer().await;
    let credit =
        |value: Value| json!({ "router_mode": "kv", "kv_router_config": { "overlap_score_credit": value } });
    for (key, value, says) in [
        ("url", json!(null), &["url"][..]),
        ("url", json!("ftp://x"), &["url", "http://HOST:PORT"]),
        ("url", json!("ftp://x:1"), &["url", "http://HOST:PORT"]),
        ("model", json!(""), &["model", "empty"]),
        ("model", json!(7), &["'model'", "string"]),
        ("ranks", json!(0), &["ranks", "1 to 1024"]),
        ("ranks", json!("two"), &["'ranks'", "u32"]),
        ("first_rank", json!(70_000), &["first_rank", "65535"]),
        ("block_size", json!(0), &["block_size"]),
        ("block_size", json!(-16), &["'block_size'"]),
        ("kv_events_endpoint", json!("5557"), &["kv_events_endpoint", "tcp://HOST:PORT"]),
        ("kv_events_endpoint", json!(null), &["kv_replay_endpoint needs kv_events_endpoint"]),
        ("kv_events_direction", json!("sideways"), &["'kv_events_direction'", "connect", "bind"]),
        ("worker_type", json!("both"), &["'worker_type'", "aggregated", "prefill"]),
        ("device", json!("tpu"), &["'device'", "cuda", "cpu"]),
        ("eagle", json!("yes"), &["'eagle'", "boolean"]),
        (
            "router_config",
            json!({ "router_mode": "bogus" }),
            &["'router_config'", "unknown router mode 'bogus'", "round_robin"],
        ),
        ("router_config", credit(json!(-1)), &["overlap_score_credit"]),
        ("router_config", credit(json!("much")), &["'router_config'"]),
        ("kv_event", json!("x"), &["'kv_event'", "expected one of", "kv_events_endpoint"]),
        ("lease_secs", json!(0.5), &["lease_secs", "between 1 and 3600"]),
        ("lease_secs", json!("long"), &["'lease_secs'", "a number"]),
    ] {
        let mut body = registration(&newcomer, Some(10.0));
        body[key] = value.clone();
        let answer = rig.ask("/v1/workers", &body).await;
        assert_eq!(answer.status, 400, "{key} = {value}: {}", answer.text);
        for part in says {
            assert!(message(&answer).contains(part), "{key} = {value}: {}", answer.text);
        }
    }
    let missing = rig.ask("/v1/workers", &json!({ "url": "http://x:1" })).await;
    assert_eq!(missing.status, 400);
    assert!(message(&missing).contains("missing field `model`"), "{}", missing.text);
    assert_eq!(ids(&rig).await, [1], "a refused worker is in the fleet");
    // The refusals left nothing behind that a good description would trip over.
    assert_eq!(rig.register(&newcomer, Some(10.0)).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_would_forge_log_lines_or_fill_them_is_refused() {
    let (rig, newcomer) = rig_and_newcomer().await;
    let forged = "a\n2026-11-30T00:00:00Z ERROR forged\u{1b}[31m";
    let (longest, long) = ("é".repeat(128), "é".repeat(129));
    let prefill = WorkerSpec {
        worker_type: WorkerType::Prefill,
        bootstrap_port: Some(8998),
        ..WorkerSpec::new(&newcomer.url, MODEL)
    };
    for text in [forged, &long, "a\u{7f}", "a\u{85}b"] {
        for (key, value) in [
            ("model", json!(text)),
            ("namespace", json!(text)),
            ("component", json!(text)),
            ("endpoint", json!(text)),
            ("bootstrap_host", json!(text)),
            ("lora_adapters", json!(["good", text])),
        ] {
            let mut body = registration(&prefill, Some(10.0));
            body[key] = value;
            let refused = rig.ask("/v1/workers", &body).await;
            assert_eq!(refused.status, 400, "{key} = {text:?}: {}", refused.text);
            let says = message(&refused);
            assert!(says.contains(key) && says.contains("1 to 256 bytes"), "{says}");
            assert!(says.contains("without control characters") && !says.contains("forged"), "{says}");
        }
    }
    for (key, text) in [
        ("url", format!("http://127.0.0.1:1/{}", "x".repeat(3000))),
        ("kv_events_endpoint", "ipc:///run/kv\u{1b}[31m".to_owned()),
        ("kv_events_endpoint", format!("ipc:///{}", "x".repeat(3000))),
    ] {
        let mut body = registration(&WorkerSpec::new(&newcomer.url, MODEL), Some(10.0));
        body[key] = json!(text);
        let refused = rig.ask("/v1/workers", &body).await;
        assert_eq!(refused.status, 400, "{key} = {text:?}: {}", refused.text);
        let says = message(&refused);
        assert!(says.contains(key) && says.contains("2048 bytes without control characters"), "{says}");
    }
    assert_eq!(ids(&rig).await, [1], "a refused worker is in the fleet");

    let named = WorkerSpec { namespace: longest, model: "模型 7".to_owned(), ..newcomer };
    assert_eq!(rig.register(&named, Some(10.0)).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_no_engine_has_is_refused() {
    let (rig, newcomer) = rig_and_newcomer().await;
    let newcomer = WorkerSpec { id: Some(7), ..WorkerSpec::new(&newcomer.url, MODEL) };
    for (numbers, says) in [
        (json!({ "max_model_len": 0 }), &["max_model_len = 0", "1 or more"][..]),
        (json!({ "total_kv_blocks": 0 }), &["total_kv_blocks = 0", "1 or more"]),
        (json!({ "max_num_batched_tokens": 0 }), &["max_num_batched_tokens = 0", "1 or more"]),
        (
            json!({ "first_rank": 65_000, "ranks": 1000 }),
            &["first_rank = 65000", "ranks = 1000", "up to 65535"],
        ),
    ] {
        let mut body = registration(&newcomer, Some(10.0));
        for (key, number) in numbers.as_object().unwrap() {
            body[key] = number.clone();
        }
        let refused = rig.ask("/v1/workers", &body).await;
        assert_eq!(refused.status, 400, "{numbers}: {}", refused.text);
        for part in says {
            assert!(message(&refused).contains(part), "{numbers}: {}", refused.text);
        }
    }
    let last = WorkerSpec { first_rank: 65_535, max_model_len: Some(1), ..newcomer };
    assert_eq!(rig.register(&last, Some(10.0)).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_token_guards_everything_on_its_listener() {
    let upstream = Upstream::start(plain).await;
    let mut plan = plan(Mode::RoundRobin, vec![upstream.worker(1, MODEL)]);
    plan.settings.admin_token = AdminToken::new("s3cret").ok();
    let frontend = assemble(plan).await.unwrap();
    let (http, admin) = (Http::new(), format!("http://{}", frontend.admin_addr()));
    let newcomer = registration(&upstream.worker(2, MODEL), Some(30.0));
    let requests = [
        (Method::GET, "/metrics", 200),
        (Method::GET, "/v1/workers", 200),
        (Method::GET, "/v1/worker-sets", 200),
        (Method::POST, "/v1/workers", 201),
        (Method::POST, "/v1/route/explain", 400),
        (Method::GET, "/nothing", 404),
        (Method::DELETE, "/v1/workers/1", 200),
    ];
    for (method, path, status) in requests {
        let url = format!("{admin}{path}");
        for headers in [
            &[][..],
            &[("authorization", "Bearer s3cre")],
            &[("authorization", "Bearer s3crets")],
            &[("authorization", "Bearer ")],
            &[("authorization", "s3cret")],
            &[("authorization", "Basic s3cret")],
        ] {
            let answer = http.request(method.clone(), &url, headers, &newcomer).await;
            assert_eq!(answer.status, 401, "{path} {headers:?}: {}", answer.text);
            assert!(message(&answer).contains("Authorization: Bearer"), "{}", answer.text);
            assert!(!answer.text.contains("s3cret"));
        }
        let headers = [("authorization", "Bearer s3cret")];
        let answer = http.request(method.clone(), &url, &headers, &newcomer).await;
        assert_eq!(answer.status.as_u16(), status, "{method} {path}: {}", answer.text);
    }
    // Clients need none.
    let answer = http.post(&format!("http://{}{CHAT}", frontend.public_addr()), &chat("a", "b")).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}

/// A port whose successor is free, too, and that the system hands out to nobody else meanwhile.
fn two_ports() -> u16 {
    let mut ports = std::iter::repeat_with(lasting_port);
    ports.find(|&first| TcpListener::bind(("127.0.0.1", first + 1)).is_ok()).unwrap()
}

/// A worker with two ranks is one HTTP server with two event streams: the server here records the header that
/// chooses the rank, and two engines play what the ranks publish.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_two_ranks_is_told_which_one_was_chosen() {
    let (port, replay_port) = (two_ports(), two_ports());
    let mut ranks = Vec::new();
    for rank in 0..2_u16 {
        let endpoint = |port| Some(Endpoint::bind(format!("tcp://127.0.0.1:{}", port + rank)));
        let settings = MockSettings {
            events: endpoint(port),
            replay: endpoint(replay_port),
            data_parallel_rank: u32::from(rank),
            ..engine_settings()
        };
        ranks.push(MockEngine::start(settings).await.unwrap());
    }
    let server = Upstream::start(plain).await;
    let spec = WorkerSpec {
        ranks: 2,
        kv_events_endpoint: Some(format!("tcp://*:{port}")),
        kv_replay_endpoint: Some(format!("tcp://*:{replay_port}")),
        ..server.worker(1, MODEL)
    };
    let rig = Rig::assemble(plan(Mode::Kv, Vec::new()), ranks).await;
    assert_eq!(rig.register(&spec, Some(60.0)).await.status, 201);
    rig.wait_for_streams("live").await;

    for rank in [1_usize, 0, 1] {
        let body = chat(&prose(10 + rank as u64, 60), "who?");
        let engine = format!("http://{}{CHAT}", rig.engines[rank].http_addr());
        assert_eq!(rig.client.post(&engine, &body).await.status, 200);
        rig.wait_for_events().await;
        let explain = rig.ask("/v1/route/explain", &body).await.json;
        assert_eq!(explain["choice"]["dp_rank"], rank, "{explain}");
        assert!(explain["choice"]["overlap_blocks"].as_u64().unwrap() > 5, "{explain}");
        assert_eq!(rig.post(CHAT, &body).await.status, 200);
        assert_eq!(server.last().headers["x-data-parallel-rank"], rank.to_string());
    }

    let mut pinned = chat("anything", "who?");
    for (nvext, status) in [
        (json!({ "backend_instance_id": 1, "dp_rank": 0 }), 200),
        (json!({ "backend_instance_id": 1, "dp_rank": 1 }), 200),
        (json!({ "backend_instance_id": 1, "dp_rank": 2 }), 400),
        (json!({ "backend_instance_id": 1 }), 400),
    ] {
        pinned["nvext"] = nvext.clone();
        let answer = rig.post(CHAT, &pinned).await;
        assert_eq!(answer.status.as_u16(), status, "{nvext}: {}", answer.text);
        if status == 200 {
            assert_eq!(server.last().headers["x-data-parallel-rank"], nvext["dp_rank"].to_string());
        }
    }
    // A client has no say in what the router tells the worker.
    let url = format!("{}{CHAT}", rig.public());
    let named = ("connection", "close, x-data-parallel-rank, X-Request-Id, x-mine");
    let answer = rig.client.request(Method::POST, &url, &[named, ("x-mine", "1")], &chat("a", "b")).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let sent = server.last().headers;
    let has = |name: &str| sent.contains_key(name);
    assert_eq!((has("x-data-parallel-rank"), has("x-request-id"), has("x-mine")), (true, true, false));

    // Both ranks go with the worker.
    rig.remove(1).await;
    assert!(ids(&rig).await.is_empty());
}
