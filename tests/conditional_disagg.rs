//! Conditional disaggregation: a prompt that its decode worker has mostly cached bypasses the prefill workers.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod process;
mod rig;

use http::Method;
use kvroute::{
    fleet::{RouterConfig, WorkerSpec, WorkerType},
    select::{BypassPolicy, ConditionalDisagg, Mode, Tuning},
    worker::mock::{MockSettings, Role},
};
use serde_json::{Value, json};

use crate::{
    process::Process,
    rig::{
        Answer, Rig, Transcript, engine_settings, eventually, plan,
        pools::{CHAT, COMPLETIONS, Pools, Timing, all_same, converse, growing, hops},
        prose, stream_of,
        upstream::{Upstream, plain},
    },
};

/// How a request that bypasses the prefill workers is marked.
const MARK: &str = "x-bypass-remote-prefill";

/// Of the prompts here, at most 512 tokens and less than half may be left to compute.
fn rule() -> ConditionalDisagg {
    ConditionalDisagg { eff_isl_threshold: 512, eff_isl_ratio_threshold: 0.5, ..ConditionalDisagg::default() }
}

fn config(rule: ConditionalDisagg) -> RouterConfig {
    let tuning = Tuning { conditional_disagg: Some(rule), ..Tuning::default() };
    RouterConfig { mode: Mode::Kv, tuning }
}

/// The decode cards advertise the rule; the frontend has none.
async fn behind(pools: Pools, rule: ConditionalDisagg) -> Rig {
    let decode = |worker: &mut WorkerSpec| worker.router_config = Some(config(rule));
    pools.change(WorkerType::Decode, decode).behind(Mode::RoundRobin).await
}

/// Has an engine compute the prompt of `body` behind the frontend's back, so that it has it cached.
async fn warm(rig: &Rig, engine: usize, path: &str, mut body: Value) {
    body.as_object_mut().unwrap().remove("nvext");
    body["stream"] = json!(false);
    body.as_object_mut().unwrap().remove("stream_options");
    let url = format!("http://{}{path}", rig.engines[engine].http_addr());
    assert_eq!(rig.client.post(&url, &body).await.status, 200);
    rig.wait_for_events().await;
}

/// How often the rule said so.
async fn said(rig: &Rig, outcome: &str) -> f64 {
    rig.metric("kvroute_bypass_decisions_total", &format!("outcome=\"{outcome}\"")).await
}

async fn explained(rig: &Rig, body: &Value) -> Value {
    rig.explain(body).await["prefill"]["conditional_disagg"].clone()
}

/// A chat that nobody has cached anything of.
fn cold() -> Value {
    let mut body = growing(0);
    body["messages"] = json!([{ "role": "user", "content": prose(77, 80) }]);
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_mostly_cached_is_computed_where_it_is_decoded() {
    let rig = behind(Pools::start(1, 2).await, rule()).await;
    warm(&rig, 1, CHAT, growing(3)).await;
    let explain = explained(&rig, &growing(4)).await;
    assert_eq!(
        (&explain["bypass"], &explain["verdict"]),
        (&json!(true), &json!("short_prompt")),
        "{explain}"
    );
    assert_eq!(explain["worker_id"], 2);
    let [prompt, cached, left] = ["prompt_tokens", "cached_tokens", "net_new_tokens"]
        .map(|name| explain[name].as_u64().unwrap_or_else(|| panic!("{explain}")));
    assert!(left == prompt - cached && 0 < left && left < prompt / 2, "{explain}");
    assert!(explain["why"].as_str().unwrap().contains(&format!("compute {left} of {prompt} tokens")));

    let (prefill, decode) = converse(&rig, 6, Timing::Asked).await;
    assert_eq!(prefill, decode, "one worker does both");
    assert!(all_same(&decode) && decode[0] == 2, "the one that has it cached: {decode:?}");
    assert_eq!((rig.engines[0].cached_blocks(), rig.metric("kvroute_prefills_total", "").await), (0, 0.0));
    assert_eq!(said(&rig, "short_prompt").await, 6.0);
    // It is a request like any other: what the engine reports of its cache counts, and its load comes back.
    assert_eq!(rig.metric("kvroute_reported_answers_total", "").await, 6.0);
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cold_prompt_takes_two_hops() {
    let rig = behind(Pools::start(1, 1).await, rule()).await;
    let explain = explained(&rig, &cold()).await;
    assert_eq!(
        (&explain["bypass"], &explain["verdict"]),
        (&json!(false), &json!("long_prompt")),
        "{explain}"
    );
    assert_eq!(hops(&rig.post(CHAT, &cold()).await), (1, 2));
    assert_eq!((said(&rig, "long_prompt").await, said(&rig, "short_prompt").await), (1.0, 0.0));
    assert!(rig.engines[0].cached_blocks() > 0);
}

/// The same cached prompt, under rules that keep it in two hops.
#[tokio::test(flavor = "multi_thread")]
async fn bounds_are_those_of_the_decode_set_and_no_rule_is_no_bypass() {
    let tight = ConditionalDisagg { eff_isl_threshold: 8, ..rule() };
    let rig = behind(Pools::start(1, 1).await, tight).await;
    warm(&rig, 1, CHAT, growing(3)).await;
    assert_eq!(hops(&rig.post(CHAT, &growing(4)).await), (1, 2));
    assert_eq!(said(&rig, "long_prompt").await, 1.0);

    // The decode cards are silent: the frontend's own rule holds.
    let from_frontend = |workers| {
        let mut plan = plan(Mode::Kv, workers);
        plan.router = config(rule());
        plan
    };
    let rig = Pools::start(1, 1).await.behind_plan(from_frontend).await;
    warm(&rig, 1, CHAT, growing(3)).await;
    assert_eq!(hops(&rig.post(CHAT, &growing(4)).await), (2, 2));

    // The decode cards advertise that there is none, whatever the frontend and the prefill cards have.
    let pools = Pools::start(1, 1).await.advertise(WorkerType::Decode, Mode::Kv);
    let prefill = |worker: &mut WorkerSpec| worker.router_config = Some(config(rule()));
    let rig = pools.change(WorkerType::Prefill, prefill).behind_plan(from_frontend).await;
    warm(&rig, 1, CHAT, growing(3)).await;
    assert_eq!(hops(&rig.post(CHAT, &growing(4)).await), (1, 2));
    assert_eq!(explained(&rig, &growing(4)).await, Value::Null);
    assert_eq!(rig.metric("kvroute_bypass_decisions_total", "").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_worker_that_is_full_or_does_not_say_takes_no_bypass() {
    for (threshold, blocks, verdict, first) in [
        (1.0, Some(4096), "short_prompt", 2),
        (0.0, Some(4096), "decode_busy", 1),
        (1.0, None, "decode_load_unknown", 1),
    ] {
        let decode = |worker: &mut WorkerSpec| worker.total_kv_blocks = blocks;
        let pools = Pools::start(1, 1).await.change(WorkerType::Decode, decode);
        let rig = behind(pools, ConditionalDisagg { decode_busy_threshold: Some(threshold), ..rule() }).await;
        warm(&rig, 1, CHAT, growing(3)).await;
        let explain = explained(&rig, &growing(4)).await;
        assert_eq!(explain["verdict"], verdict, "{explain}");
        assert_eq!(explain["decode_blocks_of_all"][1], json!(blocks), "{explain}");
        assert_eq!(hops(&rig.post(CHAT, &growing(4)).await), (first, 2), "{verdict}");
        assert_eq!(said(&rig, verdict).await, 1.0);
    }
}

/// A cold prompt, which nothing but a busy prefill worker makes bypass it.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_prefill_worker_is_bypassed_if_it_is_known_to_be_busy() {
    let slow = MockSettings {
        speedup: 1.0,
        prefill_tokens_per_second: 100.0,
        max_num_batched_tokens: 32,
        ..engine_settings()
    };
    for (batch, policy, verdict) in [
        (Some(32), BypassPolicy::PrefillLoad, "prefill_busy"),
        (Some(32), BypassPolicy::IslOrLoad, "prefill_busy"),
        (None, BypassPolicy::PrefillLoad, "prefill_load_unknown"),
    ] {
        let mut pools = Pools::start(0, 0).await;
        pools.add(Role::Prefill, slow.clone()).await;
        pools.add(Role::Decode, engine_settings()).await;
        let pools = pools.change(WorkerType::Prefill, |worker| worker.max_num_batched_tokens = batch);
        let rule = ConditionalDisagg { policy, prefill_busy_threshold: Some(1.0), ..rule() };
        let rig = behind(pools, rule).await;
        let free = if batch.is_some() { "prefill_free" } else { "prefill_load_unknown" };
        assert_eq!(explained(&rig, &cold()).await["verdict"], free);

        let (client, url) = (rig.client.clone(), format!("{}{COMPLETIONS}", rig.public()));
        let long = json!({ "model": rig::MODEL, "max_tokens": 4, "prompt": prose(2, 1_000) });
        let request = tokio::spawn(async move { client.post(&url, &long).await });
        eventually("the long prefill is booked", async || {
            rig.workers().await[0]["load"]["prefill_tokens"].as_u64().unwrap() > 32
        })
        .await;
        let explain = explained(&rig, &cold()).await;
        assert_eq!(explain["verdict"], verdict, "{explain}");
        if verdict == "prefill_busy" {
            assert_eq!(hops(&rig.post(CHAT, &cold()).await), (2, 2));
            assert_eq!(said(&rig, verdict).await, 1.0);
        }
        request.abort();
        rig.wait_for_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_names_a_prefill_worker_or_only_asks_is_not_asked_about() {
    let rig = behind(Pools::start(1, 1).await, rule()).await;
    warm(&rig, 1, CHAT, growing(3)).await;
    let mut named = growing(4);
    named["nvext"]["prefill_worker_id"] = json!(1);
    assert_eq!(hops(&rig.post(CHAT, &named).await), (1, 2));
    let explain = explained(&rig, &named).await;
    assert_eq!(explain["why"], "the request names its prefill worker", "{explain}");

    let mut question = growing(4);
    question["nvext"] = json!({ "annotations": ["query_instance_id:"] });
    let told = rig.ask(CHAT, &question).await.json["nvext"]["worker_id"].clone();
    assert_eq!((&told["prefill_worker_id"], &told["decode_worker_id"]), (&json!(1), &json!(2)));
    assert_eq!(rig.metric("kvroute_bypass_decisions_total", "").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engine_is_told_by_a_header_that_only_the_router_sets() {
    // What it is sent is on record, and another engine publishes the KV events for it.
    let engine = Upstream::start(plain).await;
    let mut pools = Pools::start(1, 1).await;
    let events = pools.workers[1].kv_events_endpoint.clone();
    assert!(events.unwrap().starts_with("tcp://127.0.0.1:"), "not at the host of the URL");
    pools.workers[1].url = engine.worker(2, rig::MODEL).url;
    let rig = behind(pools, rule()).await;
    warm(&rig, 1, CHAT, growing(3)).await;
    let post = async |mut body: Value| -> Answer {
        body["nvext"]["annotations"] = json!([MARK]);
        let url = format!("{}{CHAT}", rig.public());
        rig.client.request(Method::POST, &url, &[(MARK, "forged")], &body).await
    };
    assert_eq!(post(growing(4)).await.status, 200);
    let bypassed = engine.last();
    let marks: Vec<_> = bypassed.headers.get_all(MARK).iter().collect();
    assert_eq!(marks, ["true"]);
    assert!(
        !bypassed.body.contains("nvext") && !bypassed.body.contains("kv_transfer_params"),
        "{}",
        bypassed.body
    );

    assert_eq!(post(cold()).await.status, 200);
    let decoded = engine.last();
    assert!(decoded.body.contains("kv_transfer_params"), "in two hops: {}", decoded.body);
    assert!(!decoded.headers.contains_key(MARK), "the client's own never arrives");
    assert_eq!(engine.recorded().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_asks_to_be_told_gets_an_event() {
    let rig = behind(Pools::start(1, 1).await, rule()).await;
    let stream = |prompt: &str, annotations: Value| {
        let mut body = stream_of(prompt, 5);
        body["nvext"] = json!({ "annotations": annotations });
        body
    };
    let warmed = prose(5, 100);
    warm(&rig, 1, COMPLETIONS, stream(&warmed, json!([]))).await;
    let cold = prose(6, 100);
    let event = format!("event: {MARK}\ndata: true\n\n");
    for (prompt, annotations, told) in [
        (&warmed, json!([MARK]), true),
        (&warmed, json!([]), false),
        (&warmed, json!(["x-bypass"]), false),
        (&cold, json!([MARK]), false),
    ] {
        let url = format!("{}{COMPLETIONS}", rig.public());
        let mut response = rig.client.open(&url, &stream(prompt, annotations.clone())).await;
        let transcript = Transcript::of(response.body_mut()).await;
        assert_eq!(transcript.text.starts_with(&event), told, "{annotations} {}", transcript.text);
        assert_eq!(transcript.text.matches(MARK).count(), usize::from(told), "{}", transcript.text);
        assert!(transcript.is_done() && !transcript.broken && transcript.tokens() == 5);
    }
    assert_eq!(said(&rig, "short_prompt").await, 3.0);
}

/// A bypass that finds nobody is no reason to fail, nor to be quiet.
#[tokio::test(flavor = "multi_thread")]
async fn a_bypass_to_a_worker_that_cannot_be_reached_ends_in_two_hops() {
    let mut pools = Pools::start(1, 2).await;
    // Nobody listens there; its events go on.
    pools.workers[1].url = "http://127.0.0.1:9".to_owned();
    let rig = behind(pools, rule()).await;
    warm(&rig, 1, CHAT, growing(3)).await;
    assert_eq!(explained(&rig, &growing(4)).await["worker_id"], 2);
    assert_eq!(hops(&rig.post(CHAT, &growing(4)).await), (1, 3));
    assert_eq!((said(&rig, "short_prompt").await, said(&rig, "failed").await), (1.0, 1.0));
    rig.wait_for_idle().await;
}

/// What cannot be known is said at once, not only in a metric.
#[tokio::test(flavor = "multi_thread")]
async fn a_rule_that_asks_for_what_no_worker_states_is_warned_of() {
    let worker = |role: &str, more: &str| {
        format!("url=http://127.0.0.1:9/{role},model={},worker_type={role}{more}", rig::MODEL)
    };
    let rule = r#"{"policy":"prefill_load","prefill_busy_threshold":1,"decode_busy_threshold":0.9}"#;
    let start = |prefill: &str, decode: &str| {
        Process::start(&[
            "frontend",
            "--port=0",
            "--admin-port=0",
            "--router-mode=kv",
            "--router-conditional-disagg",
            "--router-conditional-disagg-config",
            rule,
            "--worker",
            &worker("prefill", prefill),
            "--worker",
            &worker("decode", decode),
        ])
    };
    const SAYS: &str = "the rule of bypasses asks how busy these workers are";
    for (prefill, decode, fields) in [
        ("", "", vec!["max_num_batched_tokens", "total_kv_blocks"]),
        (",max_num_batched_tokens=8192", "", vec!["total_kv_blocks"]),
        (",max_num_batched_tokens=8192", ",total_kv_blocks=4096", vec![]),
    ] {
        let frontend = start(prefill, decode);
        frontend.logged("frontend is up").await;
        frontend.signal("TERM");
        let log = frontend.end().stderr;
        let warned = log.lines().filter(|line| line.contains(SAYS)).map(|line| {
            let entry: Value = serde_json::from_str(line).unwrap();
            assert_eq!(entry["level"], "WARN");
            entry["fields"]["field"].as_str().unwrap().to_owned()
        });
        assert_eq!(warned.collect::<Vec<_>>(), fields, "{log}");
        assert!(log.contains("prefill router target activated"), "{log}");
    }
}
