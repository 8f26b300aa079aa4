//! Prefill and decode on different workers: each hop goes its own way, and nobody goes on quietly without the other.

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

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{Method, StatusCode};
use kvroute::{
    config::FrontendPlan,
    fleet::{OnConfigMismatch, RouterConfig, WorkerSpec, WorkerType},
    frontend::PrefillFallback,
    select::Mode,
    worker::mock::{MockEngine, MockSettings, Role},
};
use serde_json::{Value, json};

use crate::{
    process::Process,
    rig::{Answer, Http, Rig, Transcript, chat, engine_settings, eventually, plan, prose, stream_of, worker},
};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Engines of both roles, prefill first, and how the frontend is told of them.
struct Pools {
    engines: Vec<MockEngine>,
    workers: Vec<WorkerSpec>,
}

impl Pools {
    async fn start(prefill: usize, decode: usize) -> Self {
        Self::start_with(prefill, decode, engine_settings()).await
    }

    async fn start_with(prefill: usize, decode: usize, settings: MockSettings) -> Self {
        let mut pools = Self { engines: Vec::new(), workers: Vec::new() };
        for _ in 0..prefill {
            pools.add(Role::Prefill, settings.clone()).await;
        }
        for _ in 0..decode {
            pools.add(Role::Decode, settings.clone()).await;
        }
        pools
    }

    async fn add(&mut self, role: Role, settings: MockSettings) {
        let engine = MockEngine::start(MockSettings { role, ..settings }).await.unwrap();
        let worker_type = match role {
            Role::Aggregated => WorkerType::Aggregated,
            Role::Prefill => WorkerType::Prefill,
            Role::Decode => WorkerType::Decode,
        };
        let id = self.engines.len() as u64 + 1;
        self.workers.push(WorkerSpec { worker_type, ..worker(id, &engine) });
        self.engines.push(engine);
    }

    /// Every worker of a role advertises `mode`.
    fn advertise(mut self, role: WorkerType, mode: Mode) -> Self {
        let config = RouterConfig { mode, ..RouterConfig::default() };
        for worker in self.workers.iter_mut().filter(|worker| worker.worker_type == role) {
            worker.router_config = Some(config.clone());
        }
        self
    }

    /// Behind a frontend that routes by `mode`.
    async fn behind(self, mode: Mode) -> Rig {
        self.behind_plan(|workers| plan(mode, workers)).await
    }

    async fn behind_plan(self, plan: impl FnOnce(Vec<WorkerSpec>) -> FrontendPlan) -> Rig {
        Rig::assemble(plan(self.workers), self.engines).await
    }
}

/// A chat of which `turns` turns were had, so that each asks what the one before asked and more.
fn growing(turns: u64) -> Value {
    let mut messages = vec![json!({ "role": "system", "content": prose(1, 60) })];
    for turn in 0..=turns {
        messages.push(json!({ "role": "user", "content": prose(100 + turn, 20) }));
    }
    json!({
        "model": rig::MODEL,
        "max_tokens": 20,
        "messages": messages,
        "nvext": { "extra_fields": ["worker_id"] },
    })
}

fn small() -> Value {
    let mut body = chat("a", "b");
    body["nvext"] = json!({ "extra_fields": ["worker_id"] });
    body
}

/// The workers of both hops, as the answer names them.
fn hops(answer: &Answer) -> (u64, u64) {
    assert_eq!(answer.status, 200, "{}", answer.text);
    let workers = &answer.json["nvext"]["worker_id"];
    (workers["prefill_worker_id"].as_u64().unwrap(), workers["decode_worker_id"].as_u64().unwrap())
}

/// Sends the same growing chat; the workers of each turn's hops.
async fn converse(rig: &Rig, turns: u64) -> (Vec<u64>, Vec<u64>) {
    let (mut prefill, mut decode) = (Vec::new(), Vec::new());
    for turn in 0..turns {
        let answer = rig.post(CHAT, &growing(turn)).await;
        let (first, second) = hops(&answer);
        assert_eq!(answer.json["usage"]["completion_tokens"], 20, "the decode hop has the client's limit");
        assert_eq!(answer.cached_tokens(), answer.prompt_tokens() - 1, "the prompt was computed elsewhere");
        prefill.push(first);
        decode.push(second);
        rig.wait_for_events().await;
    }
    (prefill, decode)
}

fn all_same(ids: &[u64]) -> bool {
    ids.windows(2).all(|pair| pair[0] == pair[1])
}

fn alternate(ids: &[u64]) -> bool {
    ids.windows(2).all(|pair| pair[0] != pair[1])
}

fn set<'a>(sets: &'a Value, role: &str) -> &'a Value {
    let sets = sets["worker_sets"].as_array().unwrap();
    sets.iter().find(|set| set["worker_type"] == role).unwrap_or_else(|| panic!("no {role} in {sets:?}"))
}

async fn sets(rig: &Rig) -> Value {
    rig.client.get(&format!("{}/v1/worker-sets", rig.admin())).await.json
}

#[tokio::test(flavor = "multi_thread")]
async fn a_growing_prompt_keeps_its_prefill_worker_while_decode_workers_rotate() {
    let pools = Pools::start(3, 2).await.advertise(WorkerType::Prefill, Mode::Kv);
    let rig = pools.behind(Mode::RoundRobin).await;
    let (prefill, decode) = converse(&rig, 6).await;
    assert!(all_same(&prefill) && (1..=3).contains(&prefill[0]), "{prefill:?}");
    assert!(alternate(&decode) && decode.iter().all(|id| [4, 5].contains(id)), "{decode:?}");
    rig.wait_for_idle().await;
    assert_eq!(rig.metric("kvroute_prefills_total", "handed_over").await, 6.0);

    // What the engines reported is the prefill workers' own cache.
    let reported = rig.metric("kvroute_reported_answers_total", "").await;
    assert_eq!(reported, 6.0);
    let cached = rig.metric("kvroute_worker_cached_tokens_total", "").await;
    let of_prefill =
        rig.metric("kvroute_worker_cached_tokens_total", &format!("worker=\"{}\"", prefill[0])).await;
    assert!(cached > 0.0 && cached == of_prefill, "{cached} {of_prefill}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_prefill_card_inherits_from_the_decode_set_and_not_from_the_frontend() {
    let pools = Pools::start(3, 1).await.advertise(WorkerType::Decode, Mode::Kv);
    let rig = pools.behind(Mode::RoundRobin).await;
    let sets = sets(&rig).await;
    let prefill = set(&sets, "prefill");
    assert_eq!(prefill["router_config"]["router_mode"], "k_v", "{prefill}");
    assert_eq!(prefill["router_config"]["kv_router_config"]["router_track_active_blocks"], false);
    assert_eq!(prefill["router_config_from"], "decode_set");
    let decode = set(&sets, "decode");
    assert_eq!(decode["prefill"]["state"], "active", "{decode}");
    assert_eq!(decode["router_config"]["kv_router_config"]["router_track_active_blocks"], true);
    let (prefill, decode) = converse(&rig, 4).await;
    assert!(all_same(&prefill) && all_same(&decode), "{prefill:?} {decode:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn and_the_other_way_round() {
    let pools = Pools::start(2, 2).await.advertise(WorkerType::Prefill, Mode::RoundRobin);
    let rig = pools.behind(Mode::Kv).await;
    let (prefill, _) = converse(&rig, 4).await;
    assert!(alternate(&prefill), "{prefill:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_decoded_with_the_client_s_own_options() {
    let rig = Pools::start(1, 1).await.behind(Mode::Kv).await;
    let mut response =
        rig.client.open(&format!("{}{COMPLETIONS}", rig.public()), &stream_of("hello", 12)).await;
    assert_eq!(response.status(), 200);
    let transcript = Transcript::of(response.body_mut()).await;
    assert!(transcript.is_done() && transcript.tokens() == 12, "{}", transcript.text);
    assert!(transcript.text.contains("\"usage\""), "{}", transcript.text);
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_shows_both_hops() {
    let rig =
        Pools::start(2, 2).await.advertise(WorkerType::Prefill, Mode::Kv).behind(Mode::RoundRobin).await;
    let (first, _) = hops(&rig.post(CHAT, &growing(0)).await);
    rig.wait_for_events().await;
    let explain = rig.explain(&growing(1)).await;
    assert_eq!((&explain["phase"], &explain["router_mode"]), (&json!("decode"), &json!("round-robin")));
    let prefill = &explain["prefill"];
    assert_eq!((&prefill["phase"], &prefill["router_mode"]), (&json!("prefill"), &json!("kv")), "{explain}");
    assert_eq!(prefill["choice"]["worker_id"], first);
    assert_eq!(prefill["pool"]["state"], "active");
    let ids = |hop: &Value| -> Vec<u64> {
        hop["candidates"].as_array().unwrap().iter().map(|row| row["worker_id"].as_u64().unwrap()).collect()
    };
    assert_eq!((ids(prefill), ids(&explain)), (vec![1, 2], vec![3, 4]));

    let mut question = growing(1);
    question["nvext"] = json!({ "annotations": ["query_instance_id:"] });
    let told = rig.ask(CHAT, &question).await.json["nvext"]["worker_id"].clone();
    assert_eq!(told["prefill_worker_id"], first);
    assert!([3, 4].contains(&told["decode_worker_id"].as_u64().unwrap()), "{told}");
}

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
    assert_eq!(set(&sets(&rig).await, "decode")["prefill"]["state"], "pending");
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
    let gone =
        rig.client.request(Method::DELETE, &format!("{}/v1/workers/2", rig.admin()), &[], &json!({})).await;
    assert_eq!(gone.status, 200);
    assert_eq!(hops(&rig.post(CHAT, &small()).await), (1, 3));
    let gone =
        rig.client.request(Method::DELETE, &format!("{}/v1/workers/1", rig.admin()), &[], &json!({})).await;
    assert_eq!(gone.status, 200);
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

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_that_fails_fails_the_request() {
    let rig = Pools::start(1, 1).await.behind(Mode::Kv).await;
    rig.engines[0].fail_next(StatusCode::INTERNAL_SERVER_ERROR);
    let answer = rig.post(CHAT, &small()).await;
    assert_eq!(answer.status, 500, "{}", answer.text);
    assert!(answer.text.contains("told to answer 500"), "the engine's own words: {}", answer.text);
    rig.wait_for_idle().await;
    assert_eq!(rig.metric("kvroute_prefills_total", "failed").await, 1.0);
    assert_eq!(rig.metric("kvroute_worker_chosen_total", "worker=\"2\"").await, 0.0, "nothing was decoded");
    assert_eq!(rig.outcomes("server_error").await, 1);

    let rig = {
        let mut pools = Pools::start(1, 1).await;
        // Nobody listens there.
        pools.workers[0].url = "http://127.0.0.1:9".to_owned();
        pools.workers[0].kv_events_endpoint = None;
        pools.workers[0].kv_replay_endpoint = None;
        pools.behind(Mode::Kv).await
    };
    let answer = rig.post(CHAT, &small()).await;
    assert!(answer.status.is_server_error(), "{}", answer.text);
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unless_the_decode_worker_may_go_on_alone() {
    let with = |workers| {
        let mut plan = plan(Mode::Kv, workers);
        plan.settings.prefill_fallback = PrefillFallback::Decode;
        plan
    };
    let rig = Pools::start(1, 1).await.behind_plan(with).await;
    rig.engines[0].fail_next(StatusCode::SERVICE_UNAVAILABLE);
    let answer = rig.post(CHAT, &small()).await;
    assert_eq!((hops(&answer), answer.cached_tokens()), ((2, 2), 0));
    // What the client did wrong stays wrong.
    rig.engines[0].fail_next(StatusCode::BAD_REQUEST);
    assert_eq!(rig.post(CHAT, &small()).await.status, 400);
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_during_the_prefill_leaves_nothing_behind() {
    let slow = MockSettings {
        speedup: 1.0,
        prefill_tokens_per_second: 100.0,
        max_num_batched_tokens: 32,
        step_overhead: Duration::from_millis(1),
        ..engine_settings()
    };
    let rig = Pools::start_with(1, 1, slow).await.behind(Mode::Kv).await;
    let (client, url) = (rig.client.clone(), format!("{}{COMPLETIONS}", rig.public()));
    let body = json!({ "model": rig::MODEL, "max_tokens": 4, "prompt": prose(2, 1_000) });
    let request = tokio::spawn(async move { client.post(&url, &body).await });
    eventually("the prefill runs and is booked", async || {
        let load = &rig.workers().await[0]["load"];
        rig.engines[0].running() == 1 && load["requests"] == 1 && load["prefill_tokens"] != 0
    })
    .await;
    let load = rig.workers().await[0]["load"].clone();
    assert_eq!(load["decode_blocks"], 0, "blocks in use are not tracked for a prefill");
    assert!(!request.is_finished(), "the prefill takes minutes");
    request.abort();
    assert!(request.await.unwrap_err().is_cancelled());
    rig.wait_for_free_engines().await;
    rig.wait_for_idle().await;
    eventually("the request is counted as cancelled", async || rig.outcomes("cancelled").await == 1).await;
    assert_eq!(rig.metric("kvroute_worker_chosen_total", "worker=\"2\"").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_that_ends_with_the_prefill_is_the_answer() {
    let mut pools = Pools::start(0, 0).await;
    pools.add(Role::Prefill, MockSettings { mean_output_tokens: Some(1), ..engine_settings() }).await;
    pools.add(Role::Decode, engine_settings()).await;
    let rig = pools.behind(Mode::Kv).await;
    let answer = rig.post(CHAT, &small()).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json["choices"][0]["finish_reason"], "stop", "{}", answer.text);
    let told = json!({ "prefill_worker_id": 1, "prefill_dp_rank": 0 });
    assert_eq!(answer.json["nvext"]["worker_id"], told, "nobody decoded");
    rig.wait_for_idle().await;
    assert_eq!(rig.outcomes("ok").await, 1);
    assert_eq!(rig.metric("kvroute_prefills_total", "ended").await, 1.0);
    // A stream is what the client asked for, so it gets one.
    let mut response = rig.client.open(&format!("{}{COMPLETIONS}", rig.public()), &stream_of("hi", 3)).await;
    assert!(Transcript::of(response.body_mut()).await.is_done());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_hands_nothing_over_costs_a_second_prefill_and_is_counted() {
    let mut pools = Pools::start(0, 0).await;
    pools.add(Role::Aggregated, engine_settings()).await;
    pools.add(Role::Decode, engine_settings()).await;
    pools.workers[0].worker_type = WorkerType::Prefill;
    let rig = pools.behind(Mode::Kv).await;
    let answer = rig.post(CHAT, &small()).await;
    assert_eq!((hops(&answer), answer.cached_tokens()), ((1, 2), 0));
    assert_eq!(rig.metric("kvroute_prefills_total", "missing").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_hop_has_its_own_pin() {
    let rig = Pools::start(2, 2).await.behind(Mode::RoundRobin).await;
    let ask = async |nvext: Value| {
        let mut body = small();
        body["nvext"] = nvext;
        body["nvext"]["extra_fields"] = json!(["worker_id"]);
        rig.post(CHAT, &body).await
    };
    for _ in 0..3 {
        let answer = ask(json!({ "prefill_worker_id": 2, "decode_worker_id": 3 })).await;
        assert_eq!(hops(&answer), (2, 3));
        assert_eq!(hops(&ask(json!({ "backend_instance_id": 4 })).await).1, 4);
        assert_eq!(hops(&ask(json!({ "backend_instance_id": 1 })).await).0, 1);
    }
    for unknown in [json!({ "prefill_worker_id": 3 }), json!({ "decode_worker_id": 1 })] {
        let answer = ask(unknown.clone()).await;
        assert_eq!(answer.status, 400, "{unknown}: {}", answer.text);
        assert!(answer.text.contains("does not identify a known worker"), "{}", answer.text);
    }
    // What no decode worker would take costs no prefill.
    let before = rig.metric("kvroute_prefills_total", "").await;
    ask(json!({ "backend_instance_id": 9 })).await;
    assert_eq!(rig.metric("kvroute_prefills_total", "").await, before);
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_direct_prefill_hop_has_to_be_named_as_such() {
    let rig = Pools::start(2, 1).await.advertise(WorkerType::Prefill, Mode::Direct).behind(Mode::Kv).await;
    let mut body = small();
    for nvext in [json!({}), json!({ "backend_instance_id": 1 })] {
        body["nvext"] = nvext;
        let refused = rig.post(CHAT, &body).await;
        assert_eq!(refused.status, 400, "{}", refused.text);
        let says = "Prefill worker ID required in Direct routing mode but none found in request";
        assert!(refused.text.contains(says) && refused.text.contains("x-dynamo-prefill-instance-id"));
    }
    body["nvext"] = json!({ "extra_fields": ["worker_id"] });
    let (url, named) = (format!("{}{CHAT}", rig.public()), [("x-dynamo-prefill-instance-id", "2")]);
    let answer = rig.client.request(Method::POST, &url, &named, &body).await;
    assert_eq!(hops(&answer), (2, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn several_prompts_at_once_are_refused() {
    let rig = Pools::start(1, 1).await.behind(Mode::Kv).await;
    let body = json!({ "model": rig::MODEL, "max_tokens": 2, "prompt": ["a", "b"] });
    let refused = rig.post(COMPLETIONS, &body).await;
    assert_eq!(refused.status, 400, "{}", refused.text);
    assert!(refused.text.contains("several prompts"), "{}", refused.text);
}

/// What a decode worker computes follows blocks that only prefill workers reported.
#[tokio::test(flavor = "multi_thread")]
async fn blocks_after_a_taken_prompt_are_held_and_start_no_resync() {
    let rig = Pools::start(1, 1).await.advertise(WorkerType::Prefill, Mode::Kv).behind(Mode::Kv).await;
    converse(&rig, 4).await;
    let decode = rig.workers().await[1].clone();
    assert!(decode["cached_blocks"]["gpu"].as_u64().unwrap() >= 4, "{decode}");
    assert_eq!(rig.metric("kvroute_index_pending_blocks", "").await, 0.0, "the parents' places are known");
    let stream = &decode["stream"];
    assert_eq!((&stream["state"], &stream["gaps"]), (&json!("live"), &json!(0)), "{decode}");
    assert!(stream["replays"].as_u64().unwrap() <= 1, "the first catch-up and no other: {decode}");
    // They do not make the worker hold a prompt's beginning, and it is not priced for a prefill that is done elsewhere.
    let explained = rig.explain(&growing(3)).await;
    assert_eq!(explained["choice"]["overlap_blocks"], 0);
    let cost = &explained["candidates"][0]["cost"];
    assert_eq!((&cost["prefill"], &cost["credit"]), (&json!(0.0), &json!(0.0)), "{explained}");
    assert!(explained["prefill"]["choice"]["overlap_blocks"].as_u64().unwrap() > 10, "{explained}");
}

/// `n` answers are wanted, and the prefill makes one.
#[tokio::test(flavor = "multi_thread")]
async fn several_answers_come_from_the_decode_hop() {
    let mut pools = Pools::start(0, 0).await;
    pools.add(Role::Prefill, MockSettings { mean_output_tokens: Some(1), ..engine_settings() }).await;
    pools.add(Role::Decode, engine_settings()).await;
    let rig = pools.behind(Mode::Kv).await;
    let mut body = small();
    body["n"] = json!(3);
    let answer = rig.post(CHAT, &body).await;
    assert_eq!((hops(&answer), answer.json["choices"].as_array().unwrap().len()), ((1, 2), 3));
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

/// Prefill workers whose cards differ are as much a reason to wait as those whose cards cannot be read.
#[tokio::test(flavor = "multi_thread")]
async fn prefill_workers_that_disagree_serve_when_they_agree_again() {
    let mut pools = Pools::start(2, 1).await.advertise(WorkerType::Prefill, Mode::Kv);
    pools.workers[1].router_config = Some(RouterConfig { mode: Mode::Random, ..RouterConfig::default() });
    let rig = pools.behind(Mode::RoundRobin).await;
    let refused = rig.post(CHAT, &small()).await;
    assert_eq!(refused.status, 503, "{}", refused.text);
    assert!(refused.text.contains("the cards of the prefill workers differ"), "{}", refused.text);
    assert_eq!(set(&sets(&rig).await, "decode")["prefill"]["state"], "pending");
    let gone = format!("{}/v1/workers/1", rig.admin());
    assert_eq!(rig.client.request(Method::DELETE, &gone, &[], &json!({})).await.status, 200);
    assert_eq!(hops(&rig.post(CHAT, &small()).await), (2, 3));
    assert_eq!(set(&sets(&rig).await, "prefill")["router_config"]["router_mode"], "random");
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
    assert_eq!(set(&sets(&rig).await, "prefill")["router_config"]["router_mode"], "k_v");
    let gone = format!("{}/v1/workers/1", rig.admin());
    assert_eq!(rig.client.request(Method::DELETE, &gone, &[], &json!({})).await.status, 200);
    assert_eq!(hops(&rig.post(CHAT, &small()).await), (2, 3));
    assert_eq!(set(&sets(&rig).await, "prefill")["router_config"]["router_mode"], "random");
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
        let last = format!("{}/v1/workers/{last}", rig.admin());
        assert_eq!(rig.client.request(Method::DELETE, &last, &[], &json!({})).await.status, 200);
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
