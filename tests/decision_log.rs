//! The decision log of a frontend: written while it serves, asked about by request, made again from the file.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod process;
mod recorded_fleet;
mod rig;

use std::{
    fs,
    path::{Path, PathBuf},
};

use http::Method;
use kvroute::{
    cli::assemble,
    config::FrontendPlan,
    decisions::{Decision, Finish, Outcome, replay},
    frontend::{DecisionLogSettings, FrontendSettings},
    select::{Mode, Phase},
    worker::mock::MockEngine,
};
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

use crate::{
    process::{Process, file, path},
    recorded_fleet::Fleet,
    rig::{
        MODEL, Rig, Transcript, chat, engine_settings, eventually, plan, pools::Pools, prose, stream_of,
        upstream::Upstream, worker,
    },
};

/// Two engines behind a frontend by mode kv that records as `settings` say.
async fn recording(settings: DecisionLogSettings) -> Rig {
    let pools = Pools::of(vec![engine_settings(); 2]).await;
    pools.behind_plan(|workers| recorded(plan(Mode::Kv, workers), settings)).await
}

fn recorded(plan: FrontendPlan, settings: DecisionLogSettings) -> FrontendPlan {
    let settings = FrontendSettings { decision_log: Some(settings), ..plan.settings };
    FrontendPlan { settings, ..plan }
}

fn log() -> (TempDir, DecisionLogSettings) {
    let folder = tempdir().unwrap();
    let settings = DecisionLogSettings::new(folder.path().join("decisions"));
    (folder, settings)
}

/// What a file holds, once its frontend has stopped.
async fn stopped(rig: Rig, path: &Path) -> (Vec<Decision>, Vec<(u64, Outcome)>) {
    rig.wait_for_idle().await;
    assert!(rig.frontend.stop().await);
    recorded_fleet::read(&fs::read(path).unwrap())
}

async fn decisions_of(rig: &Rig, name: &str) -> rig::Answer {
    rig.client.get(&format!("{}/v1/route/decisions/{name}", rig.admin())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_can_be_asked_about_by_the_name_that_its_answer_carries() {
    let (_folder, settings) = log();
    let rig = recording(settings.clone()).await;
    let body = chat(&prose(1, 300), "why there?");
    assert_eq!(rig.post("/v1/chat/completions", &body).await.status, 200);
    rig.wait_for_events().await;
    let answer = rig.post("/v1/chat/completions", &body).await;
    let name = answer.headers["x-request-id"].to_str().unwrap().to_owned();
    rig.wait_for_idle().await;

    let told = decisions_of(&rig, &name).await;
    assert_eq!((told.status.as_u16(), &told.json["request_id"]), (200, &json!(name)), "{}", told.text);
    let [decision] = &told.json["decisions"].as_array().unwrap()[..] else { panic!("{}", told.text) };
    assert!(decision["choice"]["cached_tokens"].as_u64().unwrap() > 0, "{decision}");
    assert_eq!(decision["outcome"]["cached_tokens"], answer.cached_tokens());
    assert_eq!(decision["outcome"]["prompt_tokens"], answer.prompt_tokens());
    assert_eq!((&decision["outcome"]["finish"], &decision["outcome"]["status"]), (&json!("ok"), &json!(200)));
    assert_eq!(decision["outcome"]["first_token_seconds"], Value::Null, "the answer came in one piece");

    // The shape is that of a live question, and so is all that did not change since.
    let live = rig.explain(&body).await;
    let keys = |value: &Value| -> Vec<_> { value.as_object().unwrap().keys().cloned().collect() };
    let (mut then, now) = (keys(decision), keys(&live));
    then.retain(|key| key != "decision" && key != "outcome");
    assert_eq!(then, now);
    for (then, now) in
        decision["candidates"].as_array().unwrap().iter().zip(live["candidates"].as_array().unwrap())
    {
        assert_eq!(keys(then), keys(now));
        for key in ["worker_id", "url", "overlap_blocks", "cached_tokens", "prefill_work"] {
            assert_eq!(then[key], now[key], "{key}");
        }
    }
    for key in
        ["model", "worker_set", "phase", "router_mode", "router_config", "prompt_tokens", "prompt_blocks"]
    {
        assert_eq!(decision[key], live[key], "{key}");
    }

    let unknown = decisions_of(&rig, "nobody").await;
    assert_eq!(unknown.status, 404);
    assert!(unknown.text.contains("the last 1000 recorded decisions"), "{}", unknown.text);
    assert_eq!(rig.metric("kvroute_recent_decisions", "").await, 2.0);
    assert!(rig.metric("kvroute_recent_decision_bytes", "").await > 500.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_real_traffic_is_reproduced_with_its_outcomes() {
    let (_folder, settings) = log();
    let rig = recording(settings.clone()).await;
    let url = format!("{}/v1/completions", rig.public());
    for seed in 0..12 {
        let body = stream_of(&prose(seed % 4, 200), 3);
        let mut body = rig.client.open(&url, &body).await.into_body();
        assert!(Transcript::of(&mut body).await.is_done());
    }
    // A client that leaves, a name of the client's own, and a request that is pinned to nobody.
    let long = rig.client.open(&url, &stream_of(&prose(9, 100), 4000)).await;
    let left = long.headers()["x-request-id"].to_str().unwrap().to_owned();
    drop(long);
    let short = json!({ "model": MODEL, "prompt": "short", "max_tokens": 1 });
    let named = [("x-request-id", "job/7")];
    let answer = rig.client.request(Method::POST, &url, &named, &short).await;
    assert_eq!(answer.headers["x-request-id"], "job/7");
    assert_eq!(decisions_of(&rig, "job%2F7").await.status, 200);
    let lost = json!({ "model": MODEL, "prompt": "x", "nvext": { "backend_instance_id": 99 } });
    assert_eq!(rig.post("/v1/completions", &lost).await.status, 400);
    assert_eq!(rig.metric("kvroute_decision_log_records_total", "result=\"dropped\"").await, 0.0);

    let (decisions, outcomes) = stopped(rig, &settings.path).await;
    assert_eq!((decisions.len(), outcomes.len()), (15, 14), "a refusal has no outcome");
    for decision in &decisions {
        assert_eq!(replay(decision).difference(decision), None);
    }
    let finishes = |finish| outcomes.iter().filter(|(_, outcome)| outcome.finish == finish).count();
    assert_eq!((finishes(Finish::Ok), finishes(Finish::Cancelled)), (13, 1));
    let streamed = outcomes.iter().filter(|(_, outcome)| outcome.first_token.is_some());
    for (_, outcome) in streamed.filter(|(_, outcome)| outcome.finish == Finish::Ok) {
        assert!(outcome.first_token.unwrap() <= outcome.lasted, "{outcome:?}");
        assert!(outcome.prompt_tokens.unwrap() > 100 && outcome.cached_tokens.is_some(), "{outcome:?}");
    }
    let left = decisions.iter().find(|decision| decision.request == left).unwrap();
    let cancelled = outcomes.iter().find(|(_, outcome)| outcome.finish == Finish::Cancelled).unwrap();
    assert_eq!(cancelled.0, left.number);
    let file = fs::read(&settings.path).unwrap();
    assert!(!contains(&file, prose(9, 3).as_bytes()), "no prompt is in it");
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

#[tokio::test(flavor = "multi_thread")]
async fn both_hops_of_a_request_are_recorded_under_its_name() {
    let (_folder, settings) = log();
    let recording = |workers| recorded(plan(Mode::Kv, workers), settings.clone());
    let rig = Pools::start(1, 1).await.behind_plan(recording).await;
    let answer = rig.post("/v1/chat/completions", &chat("in two hops", "please")).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    rig.wait_for_idle().await;
    let name = answer.headers["x-request-id"].to_str().unwrap().to_owned();
    let told = decisions_of(&rig, &name).await.json;
    let phases: Vec<_> =
        told["decisions"].as_array().unwrap().iter().map(|decision| decision["phase"].clone()).collect();
    assert_eq!(phases, ["prefill", "decode"]);
    let (decisions, outcomes) = stopped(rig, &settings.path).await;
    let of = |phase| decisions.iter().find(|decision| decision.question.phase == phase).unwrap();
    for phase in [Phase::Prefill, Phase::Decode] {
        assert_eq!(of(phase).request, name);
        assert_eq!(replay(of(phase)).difference(of(phase)), None);
        let (_, outcome) = outcomes.iter().find(|(number, _)| *number == of(phase).number).unwrap();
        assert_eq!(outcome.finish, Finish::Ok, "{phase}");
    }
}

/// A decision is of the fleet that its request saw: another one's generation would say that who is missing was passed over.
#[tokio::test(flavor = "multi_thread")]
async fn a_decision_has_the_generation_of_the_fleet_that_it_was_made_in() {
    let (_folder, settings) = log();
    let failing = Upstream::start(|_| (502, "text/plain", "no")).await;
    let engine = MockEngine::start(engine_settings()).await.unwrap();
    let plan = recorded(plan(Mode::RoundRobin, vec![failing.worker(1, MODEL)]), settings.clone());
    let rig = Rig::start_plan(plan, Vec::new()).await;
    let generation = async || {
        let workers = rig.client.get(&format!("{}/v1/workers", rig.admin())).await;
        workers.json["generation"].as_u64().unwrap()
    };
    let held = failing.hold().await;
    let (url, body) = (
        format!("{}/v1/completions", rig.public()),
        json!({ "model": MODEL, "prompt": "x", "max_tokens": 1 }),
    );
    let (before, client) = (generation().await, rig.client.clone());
    let request = tokio::spawn(async move { client.post(&url, &body).await.status });
    eventually("the request is at the first worker", async || failing.recorded().len() == 1).await;
    assert_eq!(rig.register(&worker(2, &engine), Some(3600.0)).await.status, 201);
    let after = generation().await;
    assert!(after > before);
    drop(held);
    assert_eq!(request.await.unwrap(), 200);
    let (decisions, _) = stopped(rig, &settings.path).await;
    let made: Vec<_> = decisions.iter().map(|decision| (decision.generation, decision.rows.len())).collect();
    assert_eq!(made, [(before, 1), (before, 1), (after, 2)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_share_of_the_requests_is_recorded_and_all_have_names() {
    let (_folder, settings) = log();
    let rig = recording(DecisionLogSettings { sample: 0.5, ..settings.clone() }).await;
    let mut names = Vec::new();
    for seed in 0..40 {
        let answer = rig
            .post("/v1/completions", &json!({ "model": MODEL, "prompt": prose(seed, 5), "max_tokens": 1 }))
            .await;
        names.push(answer.headers["x-request-id"].to_str().unwrap().to_owned());
    }
    let mut known = 0;
    for name in &names {
        let told = decisions_of(&rig, name).await;
        known += usize::from(told.status == 200);
        assert!(told.status == 200 || told.text.contains("a share of 0.5"), "{}", told.text);
    }
    let (decisions, outcomes) = stopped(rig, &settings.path).await;
    assert_eq!((decisions.len(), outcomes.len()), (known, known));
    assert!((1..40).contains(&known), "{known} of 40");
    assert!(decisions.iter().all(|decision| names.contains(&decision.request)));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_flag_nothing_is_kept() {
    let rig = Rig::start(Mode::Kv, 1).await;
    let answer = rig.post("/v1/chat/completions", &chat("a", "b")).await;
    let told = decisions_of(&rig, answer.headers["x-request-id"].to_str().unwrap()).await;
    assert_eq!(told.status, 404);
    assert!(told.text.contains("--decision-log only"), "{}", told.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frontend_whose_log_cannot_be_opened_does_not_start() {
    let folder = tempdir().unwrap();
    let precious = folder.path().join("precious.txt");
    fs::write(&precious, "something else altogether").unwrap();
    for (path, says) in [
        (precious.clone(), "is no decision log"),
        (PathBuf::from("/nowhere/at/all"), "may create and write"),
        (PathBuf::from("/dev/null"), "is no decision log"),
    ] {
        let plan = recorded(plan(Mode::Kv, Vec::new()), DecisionLogSettings::new(&path));
        let Err(error) = assemble(plan).await else { panic!("{} was opened", path.display()) };
        let text = error.to_string();
        assert!(
            text.contains(says) && text.contains(&format!("--decision-log {}", path.display())),
            "{text}"
        );
    }
    assert_eq!(fs::read_to_string(&precious).unwrap(), "something else altogether");
}

// What `kvroute simulate` makes of a file.

fn simulate(args: &[&str]) -> process::Ended {
    Process::run(&[&["simulate"], args].concat())
}

#[test]
fn simulate_makes_ten_thousand_decisions_again() {
    let fleet = Fleet::record(41, 10_000);
    let log = file(fleet.log());
    let ended = simulate(&["--decisions", path(&log)]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("10000 of 10000 are reproduced, bit for bit"), "{}", ended.stdout);
    assert!(ended.stdout.contains(&format!("{} ok", fleet.outcomes.len())), "{}", ended.stdout);
}

#[test]
fn an_answer_that_cannot_be_printed_is_a_failure() {
    let log = file(Fleet::record(41, 100).log());
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_kvroute"));
    command.args(["simulate", "--decisions", path(&log)]).env_clear();
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let ended = command.stdout(full).stderr(std::process::Stdio::piped()).output().unwrap();
    let says = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code() == Some(1) && says.contains("stdout"), "{says}");
}

#[test]
fn simulate_tells_what_differs_and_fails() {
    let mut fleet = Fleet::record(42, 300);
    let mut bent = 0;
    for decision in &mut fleet.decisions {
        if decision.rows[0].is_eligible() && bent < 7 && decision.rule.mode == Mode::Kv {
            decision.rows[0].load.requests += 1_000_000;
            bent += u32::from(replay(decision).difference(decision).is_some());
        }
    }
    assert_eq!(bent, 7);
    let log = file(fleet.log());
    let ended = simulate(&["--decisions", path(&log)]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stdout.contains("293 of 300 are reproduced"), "{}", ended.stdout);
    assert_eq!(ended.stdout.matches("recorded worker").count(), 5, "{}", ended.stdout);
    assert!(ended.stdout.contains("and 2 more"), "{}", ended.stdout);
    assert!(ended.stderr.contains("7 of 300 decisions come out otherwise"), "{}", ended.stderr);
}

#[test]
fn simulate_asks_what_if() {
    let fleet = Fleet::record(43, 400);
    let log = file(fleet.log());
    let ended = simulate(&[
        "--decisions",
        path(&log),
        "--router-kv-overlap-score-credit",
        "0",
        "--router-cost-model",
        "blocks",
    ]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    for part in [
        "what if --router-cost-model blocks --router-kv-overlap-score-credit 0.0",
        "choices that change: ",
        "blocks, which is no time",
        "seconds of cost",
        "to the first token",
    ] {
        assert!(ended.stdout.contains(part), "{part}: {}", ended.stdout);
    }
    let ended = simulate(&[
        "--decisions",
        path(&log),
        "--router-temperature",
        "0",
        "--router-kv-overlap-score-credit",
        "1",
    ]);
    assert!(ended.stdout.contains("what if"), "{}", ended.stdout);
}

#[test]
fn simulate_shows_one_request() {
    let fleet = Fleet::record(44, 50);
    let log = file(fleet.log());
    let (number, _) = fleet.outcomes[3];
    let ended = simulate(&["--decisions", path(&log), "--request", &format!("request-{number}")]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("| * | "), "{}", ended.stdout);
    assert!(ended.stdout.contains("what came of it: ok with status 200"), "{}", ended.stdout);
    let ended = simulate(&["--decisions", path(&log), "--request", "nobody"]);
    assert!(ended.code == Some(1) && ended.stderr.contains("'nobody'"), "{}", ended.stderr);
}

#[test]
fn simulate_reads_a_torn_log_as_far_as_it_goes_and_no_corrupt_one_in_silence() {
    let fleet = Fleet::record(45, 20);
    let log = fleet.log();
    let torn = file(&log[..log.len() - 1]);
    let ended = simulate(&["--decisions", path(&torn)]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("is not whole"), "{}", ended.stdout);
    let mut corrupt = log.clone();
    corrupt[log.len() / 2] ^= 1;
    let corrupt = file(corrupt);
    let ended = simulate(&["--decisions", path(&corrupt)]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("is corrupt") && ended.stdout.contains("are reproduced"), "{ended:?}");
}

#[test]
fn what_simulate_cannot_answer_is_refused_with_the_reason() {
    let fleet = Fleet::record(46, 3);
    let mut other = fleet.log();
    other[8] += 1;
    let log = file(fleet.log());
    let of_another_format = file(other);
    for (args, says) in [
        (&["--decisions", path(&of_another_format)][..], "replay it with"),
        (&["--decisions", "/nowhere/log"], "/nowhere/log"),
        (&["--decisions", "Cargo.toml"], "no decision log"),
        (&["--decisions", path(&log), "--workload", "agents"], "cannot be used with"),
        (&["--decisions", path(&log), "--engines", "4"], "cannot be used with"),
        (
            &["--decisions", path(&log), "--no-router-track-active-blocks"],
            "what was not counted is not recorded",
        ),
        (&["--decisions", path(&log), "--router-mode", "direct"], "names its worker"),
        (
            &["--decisions", path(&log), "--request", "a", "--router-temperature", "1"],
            "leave --router-temperature",
        ),
        (&["--workload", "agents", "--router-temperature", "1"], "--policy"),
        (&["--request", "a"], "--decisions"),
    ] {
        let ended = simulate(args);
        assert_ne!(ended.code, Some(0), "{args:?}");
        assert!(ended.stderr.contains(says), "{args:?}: {}", ended.stderr);
    }
}
