//! Worker sets whose members disagree: who stops, who goes on, and how a configuration changes under load.

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
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use kvroute::{
    config::{ConfigFile, FrontendPlan, ModelEntry},
    fleet::{DeviceKind, OnConfigMismatch, RouterConfig, WorkerSpec},
    select::{Mode, Tuning},
    worker::mock::{MockEngine, MockSettings},
};
use serde_json::{Value, json};

use crate::rig::{
    Answer, MODEL, Rig, TINY, Transcript, candidate, chat, engine_settings, eventually, plan, prose,
    registration, worker,
};

const CHAT: &str = "/v1/chat/completions";

/// Longer than any test takes.
const LEASE: Option<f64> = Some(600.0);

fn advertised(mode: Mode, credit: f64) -> Option<RouterConfig> {
    Some(RouterConfig { mode, tuning: Tuning { overlap_score_credit: credit, ..Tuning::default() } })
}

async fn engine(model: &str) -> MockEngine {
    MockEngine::start(MockSettings { model: model.to_owned(), ..engine_settings() }).await.unwrap()
}

/// How the frontend is told of an engine of `model`.
fn of(model: &str, id: u64, engine: &MockEngine) -> WorkerSpec {
    WorkerSpec { model: model.to_owned(), ..worker(id, engine) }
}

/// A frontend that inherits round-robin, with one tokenizer for all models.
fn round_robin(workers: Vec<WorkerSpec>, policy: OnConfigMismatch) -> FrontendPlan {
    let mut plan = plan(Mode::RoundRobin, workers);
    plan.settings.on_config_mismatch = policy;
    plan.models = vec![ModelEntry { name: "*".to_owned(), tokenizer: TINY.into(), chat_template: None }];
    plan
}

/// What the admin listener says of the set of `model`.
async fn set_of(rig: &Rig, model: &str) -> Value {
    let sets = rig.client.get(&format!("{}/v1/worker-sets", rig.admin())).await.json;
    let sets = sets["worker_sets"].as_array().unwrap();
    sets.iter().find(|set| set["model"] == model).unwrap_or_else(|| panic!("{sets:?}")).clone()
}

fn asking(model: &str, prompt: u64) -> Value {
    let mut body = chat(&prose(prompt, 80), "who?");
    body["model"] = json!(model);
    body["nvext"] = json!({ "extra_fields": ["worker_id"] });
    body
}

async fn ask(rig: &Rig, model: &str, prompt: u64) -> Answer {
    let answer = rig.post(CHAT, &asking(model, prompt)).await;
    assert_eq!(answer.status, 200, "{model}: {}", answer.text);
    answer
}

/// Each of the three sets routes as it should.
async fn check_kv(rig: &Rig, prompt: u64) {
    let first = ask(rig, "a", prompt).await.worker();
    for _ in 0..3 {
        let home = async || {
            let explain = rig.explain(&asking("a", prompt)).await;
            rig::credit(&explain, first) > 0
        };
        eventually("the prefix is credited", home).await;
        rig.wait_for_idle().await;
        assert_eq!(ask(rig, "a", prompt).await.worker(), first, "the prefix was not kept together");
    }
}

async fn check_round_robin(rig: &Rig) {
    let mut turns = Vec::new();
    for prompt in 0..4 {
        turns.push(ask(rig, "b", prompt).await.worker());
    }
    assert!(turns == [3, 4, 3, 4] || turns == [4, 3, 4, 3], "{turns:?}");
}

async fn check_device_aware(rig: &Rig) {
    // An idle accelerator is always before an idle CPU.
    for prompt in 0..3 {
        assert_eq!(ask(rig, "c", prompt).await.worker(), 6);
        rig.wait_for_idle().await;
    }
}

/// Sets A (kv, credit 2), B (inherits round-robin) and C (device-aware-weighted, a CPU and an accelerator), with two
/// engines each.
async fn three_sets() -> Rig {
    let (mut engines, mut workers) = (Vec::new(), Vec::new());
    for (model, id) in [("a", 1), ("a", 2), ("b", 3), ("b", 4), ("c", 5), ("c", 6)] {
        let engine = engine(model).await;
        let spec = of(model, id, &engine);
        workers.push(match model {
            "a" => WorkerSpec { router_config: advertised(Mode::Kv, 2.0), ..spec },
            "b" => spec,
            _ => WorkerSpec {
                device: if id == 5 { DeviceKind::Cpu } else { DeviceKind::Cuda },
                router_config: advertised(Mode::DeviceAwareWeighted, 1.0),
                ..spec
            },
        });
        engines.push(engine);
    }
    Rig::assemble(round_robin(workers, OnConfigMismatch::Stop), engines).await
}

#[tokio::test(flavor = "multi_thread")]
async fn three_sets_do_not_interact_and_only_the_one_that_disagrees_stops() {
    let rig = three_sets().await;
    check_kv(&rig, 100).await;
    check_round_robin(&rig).await;
    check_device_aware(&rig).await;
    for (model, mode, source) in
        [("a", "k_v", "card"), ("b", "round_robin", "frontend"), ("c", "device_aware_weighted", "card")]
    {
        let set = set_of(&rig, model).await;
        assert_eq!((&set["state"], &set["router_config_from"]), (&json!("serving"), &json!(source)), "{set}");
        assert_eq!(set["router_config"]["router_mode"], mode, "{set}");
        assert_eq!(set["cohorts"].as_array().unwrap().len(), 1, "{set}");
    }

    // A long answer of A is on its way when a replica with other flags comes.
    let slow = MockSettings { model: "a".to_owned(), speedup: 1.0, ..engine_settings() };
    let slow = MockEngine::start(slow).await.unwrap();
    let spec = WorkerSpec { router_config: advertised(Mode::Kv, 2.0), ..of("a", 7, &slow) };
    assert_eq!(rig.register(&spec, LEASE).await.json.get("excluded"), None);
    let mut long = asking("a", 1);
    (long["stream"], long["max_tokens"], long["nvext"]) =
        (json!(true), json!(60), json!({ "backend_instance_id": 7 }));
    let mut open = rig.client.open(&format!("{}{CHAT}", rig.public()), &long).await.into_body();
    let mut transcript = Transcript::default();
    transcript.read(&mut open, |so_far| so_far.tokens() >= 2).await;

    let other = engine("a").await;
    let other_spec = WorkerSpec { router_config: advertised(Mode::Kv, 1.5), ..of("a", 8, &other) };
    let told = rig.register(&other_spec, LEASE).await;
    let field = "router_config.kv_router_config.overlap_score_credit";
    assert_eq!(told.json["differing_fields"], json!([field]), "{}", told.text);

    let refused = rig.post(CHAT, &asking("a", 2)).await;
    assert_eq!(refused.status, 503, "{}", refused.text);
    let message = refused.json["error"]["message"].as_str().unwrap();
    assert!(message.contains("a@default.backend.generate") && message.contains(field), "{message}");
    assert!(refused.headers.contains_key("retry-after"));
    check_round_robin(&rig).await;
    for prompt in 0..3 {
        ask(&rig, "c", prompt).await;
    }

    let set = set_of(&rig, "a").await;
    assert_eq!((&set["state"], &set["router_config"]), (&json!("conflict"), &json!(null)), "{set}");
    assert_eq!(set["differing_fields"], json!([field]));
    let members: Vec<_> = set["cohorts"].as_array().unwrap().iter().map(|of| &of["workers"]).collect();
    assert_eq!(members, [&json!([1, 2, 7]), &json!([8])], "{set}");
    for worker in rig.workers().await {
        let of_a = worker["model"] == "a";
        assert_eq!(worker["excluded"] == "conflicting_configuration", of_a, "{worker}");
    }
    let explain = rig.explain(&asking("a", 2)).await;
    assert_eq!(explain["worker_set_state"], "conflict", "{explain}");
    assert!(
        candidate(&explain, 1)["why"].as_str().unwrap().contains("conflicting configuration"),
        "{explain}"
    );
    assert_eq!(rig.metric("kvroute_worker_set_conflict", "model=\"a\"").await, 1.0);
    assert_eq!(rig.metric("kvroute_worker_set_cohorts", "model=\"a\"").await, 2.0);
    assert_eq!(rig.metric("kvroute_worker_set_conflict", "").await, 1.0, "another set is in conflict, too");

    transcript.read(&mut open, |_| false).await;
    assert!(transcript.is_done() && !transcript.broken, "the open answer was cut: {}", transcript.text);
    assert!(transcript.tokens() >= 60, "{}", transcript.text);

    rig.remove(8).await;
    assert_eq!(set_of(&rig, "a").await["state"], "serving");
    assert_eq!(rig.metric("kvroute_worker_set_conflict", "model=\"a\"").await, 0.0);
    check_kv(&rig, 200).await;
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_waits_out_a_short_conflict() {
    let engines = [engine(MODEL).await, engine(MODEL).await];
    let other = WorkerSpec { max_model_len: Some(4096), ..worker(2, &engines[1]) };
    let workers = vec![worker(1, &engines[0])];
    let rig = Arc::new(Rig::assemble(round_robin(workers, OnConfigMismatch::Stop), engines.into()).await);
    let mut waited = false;
    // On a machine that stands still for a second the wait may be over before the conflict is.
    for _ in 0..20 {
        rig.register(&other, LEASE).await;
        let asking = tokio::spawn({
            let rig = Arc::clone(&rig);
            async move { rig.post(CHAT, &asking(MODEL, 1)).await }
        });
        let waits =
            async || rig.metric("kvroute_requests_in_flight", "").await == 1.0 || asking.is_finished();
        eventually("the request is there", waits).await;
        rig.remove(2).await;
        let answer = asking.await.unwrap();
        if answer.status == 200 {
            assert_eq!(answer.worker(), 1);
            waited = true;
            break;
        }
    }
    assert!(waited, "no request outlived a conflict");
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_ends_with_the_lease_of_whoever_disagrees() {
    let engines = [engine(MODEL).await, engine(MODEL).await];
    let workers = vec![worker(1, &engines[0])];
    let other = WorkerSpec { router_config: advertised(Mode::Random, 1.0), ..worker(2, &engines[1]) };
    let rig = Rig::assemble(round_robin(workers, OnConfigMismatch::Stop), engines.into()).await;
    assert_eq!(rig.register(&other, Some(1.0)).await.status, 201);
    assert_eq!(set_of(&rig, MODEL).await["state"], "conflict");
    eventually("silence ends it", async || set_of(&rig, MODEL).await["state"] == "serving").await;
    assert_eq!(ask(&rig, MODEL, 1).await.worker(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_advertised_and_what_is_inherited_may_be_the_same() {
    let engines = [engine(MODEL).await, engine(MODEL).await];
    let says_it = WorkerSpec { router_config: advertised(Mode::RoundRobin, 1.0), ..worker(2, &engines[1]) };
    let workers = vec![worker(1, &engines[0])];
    let rig = Rig::assemble(round_robin(workers, OnConfigMismatch::Stop), engines.into()).await;
    assert_eq!(set_of(&rig, MODEL).await["router_config_from"], "frontend");
    assert_eq!(rig.register(&says_it, LEASE).await.json.get("excluded"), None);
    let set = set_of(&rig, MODEL).await;
    assert_eq!(set["cohorts"][0]["workers"], json!([1, 2]), "{set}");
    assert_eq!((&set["state"], &set["router_config_from"]), (&json!("serving"), &json!("card")));
    let (one, other) = (ask(&rig, MODEL, 1).await.worker(), ask(&rig, MODEL, 1).await.worker());
    assert_eq!(one + other, 3, "both take their turn");
}

/// A configuration that cannot be used is said to be that, not that registering failed, and disturbs nobody.
#[tokio::test(flavor = "multi_thread")]
async fn review_finding_02_a_bad_configuration_is_refused_as_such() {
    let engines = [engine(MODEL).await, engine(MODEL).await];
    let (first, second) = (worker(1, &engines[0]), worker(2, &engines[1]));
    let rig = Rig::assemble(round_robin(vec![first], OnConfigMismatch::Stop), engines.into()).await;
    for (config, says) in [
        (json!({ "router_mode": "bogus" }), "unknown router mode 'bogus'"),
        (json!({ "router_mode": "k_v", "kv_router_config": { "overlap_credit": 1 } }), "overlap_credit"),
        (
            json!({ "router_mode": "k_v", "kv_router_config": { "router_replica_sync": true } }),
            "router_replica_sync = true is not supported by this version",
        ),
    ] {
        let mut body = registration(&second, None);
        body["router_config"] = config;
        let answer = rig.ask("/v1/workers", &body).await;
        assert_eq!(answer.status, 400, "{}", answer.text);
        assert!(answer.text.contains(says) && answer.text.contains("router_config"), "{}", answer.text);
        let set = set_of(&rig, MODEL).await;
        assert_eq!((&set["state"], &set["workers"]), (&json!("serving"), &json!(1)), "{set}");
    }
    ask(&rig, MODEL, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keep_first_serves_on_and_follows_those_who_wait() {
    let engines = [engine(MODEL).await, engine(MODEL).await];
    let waiting = WorkerSpec { router_config: advertised(Mode::Kv, 2.0), ..worker(2, &engines[1]) };
    let workers = vec![worker(1, &engines[0])];
    let rig = Rig::assemble(round_robin(workers, OnConfigMismatch::KeepFirst), engines.into()).await;
    let told = rig.register(&waiting, LEASE).await;
    assert_eq!(told.json["excluded"], "conflicting_configuration", "{}", told.text);
    rig.wait_for_streams("live").await;
    for prompt in 0..4 {
        assert_eq!(ask(&rig, MODEL, prompt).await.worker(), 1);
    }
    let set = set_of(&rig, MODEL).await;
    assert_eq!(
        (&set["state"], &set["router_config"]["router_mode"]),
        (&json!("serving"), &json!("round_robin"))
    );
    let admitted: Vec<_> = set["cohorts"].as_array().unwrap().iter().map(|of| &of["admitted"]).collect();
    assert_eq!(admitted, [&json!(true), &json!(false)], "{set}");
    assert_eq!(rig.metric("kvroute_worker_set_conflict", "").await, 0.0);
    assert_eq!(rig.metric("kvroute_worker_set_cohorts", "").await, 2.0);
    let mut pinned = asking(MODEL, 1);
    pinned["nvext"]["backend_instance_id"] = json!(2);
    let refused = rig.post(CHAT, &pinned).await;
    assert_eq!(refused.status, 503, "{}", refused.text);
    assert!(refused.text.contains("conflicting configuration"), "{}", refused.text);

    // Somebody else fills the cache of the one that waits: what it holds is known by the time it is admitted.
    let mut direct = asking(MODEL, 50);
    direct.as_object_mut().unwrap().remove("nvext");
    let url = format!("http://{}{CHAT}", rig.engines[1].http_addr());
    assert_eq!(rig.client.post(&url, &direct).await.status, 200);
    eventually("its blocks are there", async || {
        rig.workers().await[1]["cached_blocks"]["gpu"].as_u64().unwrap() > 3
    })
    .await;
    rig.remove(1).await;
    assert_eq!(set_of(&rig, MODEL).await["router_config"]["router_mode"], "k_v");
    let answer = ask(&rig, MODEL, 50).await;
    assert!(answer.worker() == 2 && answer.cached_tokens() > 0, "{}", answer.text);
    let explain = rig.explain(&asking(MODEL, 50)).await;
    assert!(rig::credit(&explain, 2) > 3, "{explain}");
}

/// What stands between a line that opens a block of `language` and the one that closes it.
fn example(language: &str) -> &'static str {
    let page = include_str!("../docs/per-worker-router-configuration.md");
    let (_, rest) = page.split_once(&format!("```{language}\n")).unwrap();
    rest.split_once("```").unwrap().0
}

#[test]
fn the_examples_of_the_page_read() {
    let file: ConfigFile = toml::from_str(example("toml")).unwrap();
    let modes: Vec<_> =
        file.worker.iter().map(|spec| spec.router_config.as_ref().map(|config| config.mode)).collect();
    assert_eq!(modes, [Some(Mode::Kv), None, Some(Mode::DeviceAwareWeighted)]);
    let (_, body) = example("sh").split_once("-d '").unwrap();
    let mut body: Value = serde_json::from_str(body.trim().trim_end_matches('\'')).unwrap();
    assert!(body.as_object_mut().unwrap().remove("lease_secs").is_some());
    let registered: WorkerSpec = serde_json::from_value(body).unwrap();
    assert_eq!(registered.router_config, file.worker[0].router_config, "the page says that it is the same");
}

/// Clients that ask without a pause until they are told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    clients: Vec<tokio::task::JoinHandle<Vec<String>>>,
}

impl Load {
    fn start(rig: &Rig, clients: u64) -> Self {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let client = |number: u64| {
            let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
            let (http, url) = (rig.client.clone(), format!("{}{CHAT}", rig.public()));
            tokio::spawn(async move {
                let mut refused = Vec::new();
                while !stop.load(SeqCst) {
                    let answer = http.post(&url, &asking(MODEL, number)).await;
                    if answer.status != 200 {
                        refused.push(format!("{}: {}", answer.status, answer.text));
                    }
                    answered.fetch_add(1, SeqCst);
                }
                refused
            })
        };
        let clients = (0..clients).map(client).collect();
        Self { stop, answered, clients }
    }

    /// Until every client has had some answers since.
    async fn goes_on(&self) {
        let enough = self.answered.load(SeqCst) + 5 * self.clients.len() as u64;
        eventually("requests are answered", async || self.answered.load(SeqCst) >= enough).await;
    }

    /// How many were answered, and what the others were told.
    async fn stop(self) -> (u64, Vec<String>) {
        self.stop.store(true, SeqCst);
        let mut refused = Vec::new();
        for client in self.clients {
            refused.extend(client.await.unwrap());
        }
        (self.answered.load(SeqCst), refused)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_change_under_load_drops_no_request() {
    let mut engines = Vec::new();
    for _ in 0..6 {
        engines.push(engine(MODEL).await);
    }
    let old = (1..).zip(&engines[..3]).map(|(id, engine)| worker(id, engine)).collect();
    let new: Vec<_> = (4..)
        .zip(&engines[3..])
        .map(|(id, engine)| WorkerSpec { router_config: advertised(Mode::Kv, 2.0), ..worker(id, engine) })
        .collect();
    let rig = Rig::assemble(round_robin(old, OnConfigMismatch::KeepFirst), engines).await;
    let load = Load::start(&rig, 6);
    load.goes_on().await;
    for spec in &new {
        assert_eq!(rig.register(spec, LEASE).await.status, 201);
        load.goes_on().await;
    }
    let chosen =
        async |worker: u64| rig.metric("kvroute_worker_chosen_total", &format!("worker=\"{worker}\"")).await;
    assert_eq!(chosen(4).await + chosen(5).await + chosen(6).await, 0.0, "who waits got requests");
    rig.remove(1).await;
    load.goes_on().await;
    // One leaves politely.
    rig.ask("/v1/workers/2/drain", &json!({})).await;
    load.goes_on().await;
    rig.remove(2).await;
    load.goes_on().await;
    assert_eq!(set_of(&rig, MODEL).await["router_config"]["router_mode"], "round_robin");
    rig.remove(3).await;
    assert_eq!(set_of(&rig, MODEL).await["router_config"]["router_mode"], "k_v");
    load.goes_on().await;
    let (answered, refused) = load.stop().await;
    assert!(refused.is_empty(), "{} of {answered} requests: {refused:#?}", refused.len());
    assert_eq!(rig.outcomes("ok").await, answered);
    assert!(chosen(4).await + chosen(5).await + chosen(6).await > 0.0);
    rig.wait_for_idle().await;
}

/// The same many times in a row, one worker after the other: requests cross the step in every phase of theirs.
#[tokio::test(flavor = "multi_thread")]
async fn no_request_falls_between_two_configurations() {
    let engines = [engine(MODEL).await, engine(MODEL).await];
    let specs = [
        worker(1, &engines[0]),
        WorkerSpec { router_config: advertised(Mode::Kv, 2.0), ..worker(2, &engines[1]) },
    ];
    let plan = round_robin(vec![specs[0].clone()], OnConfigMismatch::KeepFirst);
    let rig = Rig::assemble(plan, engines.into()).await;
    let load = Load::start(&rig, 6);
    for round in 0..40 {
        let (leaves, comes) = if round % 2 == 0 { (1, &specs[1]) } else { (2, &specs[0]) };
        assert_eq!(rig.register(comes, LEASE).await.status, 201);
        if round % 4 < 2 {
            rig.ask(&format!("/v1/workers/{leaves}/drain"), &json!({})).await;
        }
        rig.remove(leaves).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    load.goes_on().await;
    let (answered, refused) = load.stop().await;
    assert!(refused.is_empty(), "{} of {answered} requests: {refused:#?}", refused.len());
    rig.wait_for_idle().await;
}
