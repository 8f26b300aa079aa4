//! What becomes of requests while the prefill workers come, go, disagree or cannot be read.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::StatusCode;
use kvroute::{
    fleet::{OnConfigMismatch, RouterConfig, WorkerSpec, WorkerType},
    frontend::{FrontendSettings, PrefillFallback},
    select::Mode,
    worker::mock::Role,
};
use serde_json::{Value, json};

use crate::{
    process::Process,
    rig::{
        self, Http, Rig, engine_settings, plan,
        pools::{CHAT, Pools, hops, set, small},
        upstream::{Upstream, plain},
    },
};

#[tokio::test(flavor = "multi_thread")]
async fn decode_workers_without_prefill_workers_serve_alone_unless_that_is_forbidden() {
    let rig = Pools::start(0, 1).await.behind(Mode::Kv).await;
    let answer = rig.post(CHAT, &small()).await;
    assert_eq!((hops(&answer), answer.cached_tokens()), ((1, 1), 0));

    let forbidden = |workers| {
        let mut plan = plan(Mode::Kv, workers);
        plan.settings.enforce_disagg = true;
        plan
    };
    let rig = Pools::start(0, 1).await.behind_plan(forbidden).await;
    let refused = rig.post(CHAT, &small()).await;
    assert_eq!(refused.status, 503, "{}", refused.text);
    assert!(refused.text.contains("--enforce-disagg") && refused.headers.contains_key("retry-after"));
    assert_eq!(rig.explain(&small()).await["prefill"]["pool"]["state"], "none");

    // Aggregated workers are not concerned.
    let mut pools = Pools::start(0, 0).await;
    pools.add(Role::Aggregated, engine_settings()).await;
    let rig = pools.behind_plan(forbidden).await;
    assert_eq!(rig.post(CHAT, &small()).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn prefill_workers_alone_serve_nobody() {
    let rig = Pools::start(1, 0).await.behind(Mode::Kv).await;
    let answer = rig.post(CHAT, &small()).await;
    assert_eq!(answer.status, 503, "{}", answer.text);
    let models = rig.client.get(&format!("{}/v1/models", rig.public())).await.json;
    assert_eq!(models["data"], json!([]));
    assert_eq!(rig.client.get(&format!("{}/ready", rig.public())).await.status, 503);
}

/// A prefill worker whose card cannot be read is no reason to go on without prefill workers.
#[tokio::test(flavor = "multi_thread")]
async fn while_no_prefill_card_can_be_read_requests_wait_for_one() {
    let mut pools = Pools::start(1, 1).await;
    let prefill = pools.workers.remove(0);
    let rig = pools.behind(Mode::Kv).await;
    assert_eq!(rig.post(CHAT, &small()).await.status, 200, "nobody knows of prefill workers yet");

    let mut card = serde_json::to_value(&prefill).unwrap();
    card["router_config"] = json!({ "router_mode": "from the future" });
    assert_eq!(rig.ask("/v1/workers", &card).await.status, 400);
    let refused = rig.post(CHAT, &small()).await;
    assert_eq!(refused.status, 503, "{}", refused.text);
    for says in ["still activating", "no readable prefill model card", "all 1 published"] {
        assert!(refused.text.contains(says), "{}", refused.text);
    }
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!(set(&rig, "decode").await["prefill"]["state"], "pending");
    assert!(rig.explain(&small()).await["choice"].is_object(), "a question is answered all the same");

    card["router_config"] = json!({ "router_mode": "round_robin" });
    assert_eq!(rig.ask("/v1/workers", &card).await.status, 201);
    let (first, second) = hops(&rig.post(CHAT, &small()).await);
    assert_eq!((first, second), (1, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_set_that_nobody_can_pair_serves_nobody() {
    let mut pools = Pools::start(2, 1).await;
    pools.workers[1].component = "other".to_owned();
    let rig = pools.behind(Mode::Kv).await;
    let refused = rig.post(CHAT, &small()).await;
    assert_eq!(refused.status, 503, "{}", refused.text);
    assert!(refused.text.contains("2 prefill sets and 1 decode sets"), "{}", refused.text);
    rig.remove(2).await;
    assert_eq!(hops(&rig.post(CHAT, &small()).await), (1, 3));
    rig.remove(1).await;
    assert_eq!(hops(&rig.post(CHAT, &small()).await), (3, 3), "none is known any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn prefill_workers_that_take_no_requests_are_waited_for_or_done_without() {
    for (fallback, status) in [(PrefillFallback::None, 503), (PrefillFallback::Decode, 200)] {
        let with = |workers| {
            let mut plan = plan(Mode::Kv, workers);
            plan.settings.prefill_fallback = fallback;
            plan
        };
        let rig = Pools::start(1, 1).await.behind_plan(with).await;
        assert_eq!(hops(&rig.post(CHAT, &small()).await), (1, 2));
        assert_eq!(rig.ask("/v1/workers/1/drain", &json!({})).await.status, 200);
        let answer = rig.post(CHAT, &small()).await;
        assert_eq!(answer.status, status, "{}", answer.text);
        if status == 200 {
            assert_eq!(hops(&answer), (2, 2));
        } else {
            assert!(answer.headers.contains_key("retry-after"), "{}", answer.text);
        }
        rig.wait_for_idle().await;
    }
}

/// Prefill workers whose cards differ are as much a reason to wait as those whose cards cannot be read.
#[tokio::test(flavor = "multi_thread")]
async fn prefill_workers_that_disagree_serve_when_they_agree_again() {
    let mut pools = Pools::start(2, 1).await.advertise(WorkerType::Prefill, Mode::Kv);
    pools.workers[1].router_config = Some(RouterConfig { mode: Mode::Random, ..RouterConfig::default() });
    let rig = pools.behind(Mode::RoundRobin).await;
    let refused = rig.post(CHAT, &small()).await;
    assert_eq!(refused.status, 503, "{}", refused.text);
    assert!(refused.text.contains("the cards of the prefill workers differ"), "{}", refused.text);
    assert_eq!(set(&rig, "decode").await["prefill"]["state"], "pending");
    rig.remove(1).await;
    assert_eq!(hops(&rig.post(CHAT, &small()).await), (2, 3));
    assert_eq!(set(&rig, "prefill").await["router_config"]["router_mode"], "random");
}

#[tokio::test(flavor = "multi_thread")]
async fn or_the_first_of_them_serve() {
    let mut pools = Pools::start(2, 1).await.advertise(WorkerType::Prefill, Mode::Kv);
    pools.workers[1].router_config = Some(RouterConfig { mode: Mode::Random, ..RouterConfig::default() });
    let keep_first = |workers| {
        let mut plan = plan(Mode::RoundRobin, workers);
        plan.settings.on_config_mismatch = OnConfigMismatch::KeepFirst;
        plan
    };
    let rig = pools.behind_plan(keep_first).await;
    for _ in 0..4 {
        assert_eq!(hops(&rig.post(CHAT, &small()).await), (1, 3));
    }
    assert_eq!(set(&rig, "prefill").await["router_config"]["router_mode"], "k_v");
    rig.remove(1).await;
    assert_eq!(hops(&rig.post(CHAT, &small()).await), (2, 3));
    assert_eq!(set(&rig, "prefill").await["router_config"]["router_mode"], "random");
    rig.wait_for_idle().await;
}

/// Prefill workers are replaced, one configuration by the next, while requests come.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_the_prefill_workers_drops_no_request() {
    let pools = Pools::start(2, 1).await;
    let mut cards: Vec<Value> =
        pools.workers[..2].iter().map(|worker| serde_json::to_value(worker).unwrap()).collect();
    cards[1]["router_config"] = json!({ "router_mode": "random" });
    let keep_first = |workers: Vec<WorkerSpec>| {
        let workers = workers.into_iter().filter(|worker| worker.id != Some(2)).collect();
        let mut plan = plan(Mode::Kv, workers);
        plan.settings.on_config_mismatch = OnConfigMismatch::KeepFirst;
        plan
    };
    let rig = pools.behind_plan(keep_first).await;
    let done = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (client, url, done) =
                (rig.client.clone(), format!("{}{CHAT}", rig.public()), Arc::clone(&done));
            tokio::spawn(async move {
                let mut workers = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    workers.push(hops(&client.post(&url, &small()).await).0);
                }
                workers
            })
        })
        .collect();
    for round in 0..12 {
        let (next, last) = if round % 2 == 0 { (1, 1) } else { (0, 2) };
        assert_eq!(rig.ask("/v1/workers", &cards[next]).await.status, 201);
        rig.remove(last).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    done.store(true, Ordering::Relaxed);
    let mut served = Vec::new();
    for client in clients {
        served.extend(client.await.unwrap());
    }
    assert!(served.contains(&1) && served.contains(&2), "{served:?}");
    assert!(!served.contains(&3), "the pair was never gone: {served:?}");
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_says_what_becomes_of_requests_without_prefill_workers() {
    let engines = Pools::start(1, 1).await;
    let flag = |spec: &WorkerSpec| {
        format!("url={},model={},worker_type={}", spec.url, spec.model, spec.worker_type.name())
    };
    let (prefill, decode) = (flag(&engines.workers[0]), flag(&engines.workers[1]));
    let start = |more: &[&str]| {
        let args =
            ["frontend", "--port", "0", "--admin-port", "0", "--tokenizer", rig::TINY, "--worker", &decode];
        Process::start(&[&args, more].concat())
    };
    let ask = async |frontend: &Process| {
        let address = frontend.logged("frontend is up").await["public"].as_str().unwrap().to_owned();
        // It listens on every interface.
        let port = address.rsplit(':').next().unwrap();
        Http::new().post(&format!("http://127.0.0.1:{port}{CHAT}"), &small()).await
    };
    let frontend = start(&["--enforce-disagg"]);
    let refused = ask(&frontend).await;
    assert!(refused.status == 503 && refused.text.contains("--enforce-disagg"), "{}", refused.text);

    let frontend = start(&["--enforce-disagg", "--worker", &prefill, "--router-mode", "kv"]);
    assert_eq!(ask(&frontend).await.status, 200);
    let activated = frontend.logged("prefill router target activated").await;
    assert_eq!((&activated["prefill_mode"], &activated["decode_mode"]), (&json!("kv"), &json!("kv")));
    assert_eq!((&activated["advertised"], &activated["block_size"]), (&json!(false), &json!(16)));

    // Nobody listens there.
    let gone = format!("url=http://127.0.0.1:9,model={},worker_type=prefill", rig::MODEL);
    let frontend = start(&["--prefill-fallback", "decode", "--worker", &gone]);
    assert_eq!(ask(&frontend).await.status, 200);

    let both = Process::run(&["frontend", "--enforce-disagg", "--prefill-fallback", "decode"]);
    assert_ne!(both.code, Some(0));
    for name in ["--enforce-disagg", "--prefill-fallback"] {
        assert!(both.stderr.contains(name), "{}", both.stderr);
    }
    let mock = Process::run(&["up", "--enforce-disagg"]);
    assert!(mock.code != Some(0) && mock.stderr.contains("--enforce-disagg"), "{}", mock.stderr);
}

/// Engines hand a prompt over on two routes only. On others a decode worker would compute it, which is not to happen
/// quietly.
#[tokio::test(flavor = "multi_thread")]
async fn routes_that_cannot_be_split_are_refused_unless_decode_workers_may_serve_alone() {
    async fn rig(prefill: usize, change: impl FnOnce(&mut FrontendSettings)) -> (Rig, Upstream) {
        let engine = Upstream::start(plain).await;
        let mut pools = Pools::start(prefill, 1).await;
        pools.workers[prefill].url = engine.worker(0, rig::MODEL).url;
        let with = |workers| {
            let mut plan = plan(Mode::RoundRobin, workers);
            change(&mut plan.settings);
            plan
        };
        (pools.behind_plan(with).await, engine)
    }
    let body = json!({ "model": rig::MODEL, "input": "hello" });
    for path in ["/v1/responses", "/v1/rerank", "/v1/messages"] {
        let (split, engine) = rig(1, |_| {}).await;
        let refused = split.post(path, &body).await;
        assert_eq!(refused.status, 501, "{}", refused.text);
        assert!(refused.text.contains(path) && refused.text.contains("--prefill-fallback decode"));
        assert_eq!((engine.recorded().len(), split.outcomes("server_error").await), (0, 1));

        let (alone, engine) = rig(1, |settings| settings.prefill_fallback = PrefillFallback::Decode).await;
        assert_eq!(alone.post(path, &body).await.status, 200);
        assert_eq!(engine.last().path, path);

        // Nobody knows of prefill workers: as for chats.
        let (decode, engine) = rig(0, |_| {}).await;
        assert_eq!(decode.post(path, &body).await.status, 200);
        assert_eq!(engine.last().path, path);
        let (enforced, engine) = rig(0, |settings| settings.enforce_disagg = true).await;
        let refused = enforced.post(path, &body).await;
        assert_eq!((refused.status, engine.recorded().len()), (StatusCode::SERVICE_UNAVAILABLE, 0));
        assert!(refused.text.contains("--enforce-disagg"), "{}", refused.text);
    }
}
