//! `kvroute doctor` against mock engines over real sockets: whatever differs is named, with what to change.

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

use std::{path::Path, sync::Arc, time::Duration};

use kvroute::{
    doctor::{Admission, Check, Ears, Finding, Patience, Report, Subject, Verdict, examine, judge},
    fleet::{StreamDirection, WorkerSpec},
    prompt::Encoder,
    proxy::PoolSettings,
    worker::mock::{Endpoint, MockEngine, MockSettings, Omissions},
};
use serde_json::Value;

use crate::{
    process::{FREE_PORTS, Process},
    rig::{
        MODEL, TINY, engine_settings, lasting_port, other_template, other_tokenizer, tool_template, worker,
    },
};

const PATIENCE: Patience = Patience {
    answer: Duration::from_secs(60),
    connection: Duration::from_millis(400),
    events: Duration::from_secs(2),
};

/// Holds an engine against `spec`, as a router would that has the project's tokenizer.
async fn report(spec: &WorkerSpec) -> Report {
    report_with(spec, Encoder::load(Path::new(TINY), None).unwrap()).await
}

/// The same of a router with another tokenizer or template.
async fn report_with(spec: &WorkerSpec, encoder: Encoder) -> Report {
    let encoder = Some(Arc::new(encoder));
    let subject = Subject { spec: spec.clone(), encoder, upstream: PoolSettings::default() };
    let evidence = examine(&subject, PATIENCE, Ears::Own).await.unwrap();
    judge(spec, &evidence)
}

/// The same of an engine with these settings, after `announce` had its say.
async fn examined(settings: MockSettings, announce: impl FnOnce(WorkerSpec) -> WorkerSpec) -> Report {
    let engine = MockEngine::start(settings).await.unwrap();
    let spec = announce(worker(1, &engine));
    let report = report(&spec).await;
    engine.stop().await;
    report
}

fn finding(report: &Report, check: Check) -> &Finding {
    report
        .findings
        .iter()
        .find(|finding| finding.check == check)
        .unwrap_or_else(|| panic!("no {check:?}: {report:?}"))
}

/// That `check` differs, and only what `others` names too; and that the outcome and what to change are these.
fn differs(report: &Report, check: Check, others: &[Check], outcome: Admission, change: &str) {
    let differing = report.findings.iter().filter(|finding| finding.verdict == Verdict::Differs);
    for found in differing {
        assert!(found.check == check || others.contains(&found.check), "{found:?}");
    }
    let found = finding(report, check);
    assert_eq!(found.verdict, Verdict::Differs, "{report:?}");
    assert_eq!(report.admission(), outcome, "{report:?}");
    assert!(found.change.as_deref().unwrap_or_default().contains(change), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_as_announced_is_admitted() {
    let settings = MockSettings { loras: vec!["ad".to_owned()], ..engine_settings() };
    let announce = |spec| WorkerSpec { lora_adapters: vec!["ad".to_owned()], ..spec };
    let report = examined(settings, announce).await;
    for found in &report.findings {
        // A mock engine names blocks by a rule of its own.
        let expected = if found.check == Check::EngineHash { Verdict::Unknown } else { Verdict::Ok };
        assert_eq!(found.verdict, expected, "{found:?}");
    }
    assert_eq!((report.findings.len(), report.admission()), (15, Admission::Admit), "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_template_is_named() {
    let report = examined(other_template(engine_settings()), |spec| spec).await;
    differs(&report, Check::ChatTemplate, &[Check::ToolTemplate], Admission::LoadOnly, "chat_template");
    assert_eq!(finding(&report, Check::Tokenizer).verdict, Verdict::Ok);
    assert_eq!(finding(&report, Check::HashRule).verdict, Verdict::Ok);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_has_tools_otherwise_is_named() {
    let engine = MockEngine::start(MockSettings { encoder: Arc::new(tool_template()), ..engine_settings() });
    let engine = engine.await.unwrap();
    let spec = worker(1, &engine);
    // The router's says nothing of tools.
    let other = report(&spec).await;
    differs(&other, Check::ToolTemplate, &[], Admission::LoadOnly, "chat_template");
    assert_eq!(finding(&other, Check::ChatTemplate).verdict, Verdict::Ok);
    let same = report_with(&spec, tool_template()).await;
    let [plain, tools] = [Check::ChatTemplate, Check::ToolTemplate].map(|check| finding(&same, check));
    assert_eq!((tools.verdict, same.admission()), (Verdict::Ok, Admission::Admit), "{same:?}");
    assert_ne!(plain.found, tools.found, "the tools are part of the prompt");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_tokenizer_is_named() {
    let report = examined(other_tokenizer(engine_settings()), |spec| spec).await;
    differs(&report, Check::Tokenizer, &[], Admission::LoadOnly, "--tokenizer");
    for check in [Check::ChatTemplate, Check::ToolTemplate] {
        assert_eq!(finding(&report, check).verdict, Verdict::Unknown, "{report:?}");
    }
    // The canary comes as tokens.
    assert_eq!(finding(&report, Check::HashRule).verdict, Verdict::Ok, "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_rank_than_the_engine_s_is_named() {
    let settings = MockSettings { data_parallel_rank: 1, ..engine_settings() };
    let report = examined(settings, |spec| spec).await;
    differs(&report, Check::Ranks, &[], Admission::LoadOnly, "first_rank = 1");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_block_size_is_named_with_the_real_one() {
    let settings = MockSettings { block_size: 32, ..engine_settings() };
    let report = examined(settings, |spec| spec).await;
    differs(&report, Check::BlockSize, &[], Admission::LoadOnly, "--engine-block-size 32");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_without_salts_are_named() {
    let omissions = Omissions { extra_keys: true, ..Omissions::default() };
    let report = examined(MockSettings { omissions, ..engine_settings() }, |spec| spec).await;
    differs(&report, Check::CacheSalt, &[], Admission::LoadOnly, "extra_keys");
}

#[tokio::test(flavor = "multi_thread")]
async fn adapters_that_are_not_served_or_not_named_are_named() {
    let served = MockSettings { loras: vec!["a".to_owned()], ..engine_settings() };
    let announce = |name: &str| {
        let name = name.to_owned();
        |spec| WorkerSpec { lora_adapters: vec![name], ..spec }
    };
    let report = examined(served.clone(), announce("b")).await;
    differs(&report, Check::LoraAdapters, &[], Admission::Refuse, "--lora-modules b=");
    let report = examined(served.clone(), |spec| spec).await;
    differs(&report, Check::LoraAdapters, &[], Admission::Admit, "lora_adapters");
    let omissions = Omissions { lora_names: true, ..Omissions::default() };
    let report = examined(MockSettings { omissions, ..served }, announce("a")).await;
    differs(&report, Check::LoraName, &[], Admission::LoadOnly, "lora_name");
}

#[tokio::test(flavor = "multi_thread")]
async fn more_ranks_than_the_engine_has_and_another_model_are_refused() {
    let report = examined(engine_settings(), |spec| WorkerSpec { ranks: 2, ..spec }).await;
    differs(&report, Check::Ranks, &[], Admission::Refuse, "--engine-ranks 1");
    let report = examined(engine_settings(), |spec| WorkerSpec { model: "other".to_owned(), ..spec }).await;
    differs(&report, Check::Model, &[], Admission::Refuse, "--served-model-name other");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_publishes_nothing_is_named_by_its_flag() {
    let settings = MockSettings { events: None, replay: None, ..engine_settings() };
    let endpoint = format!("tcp://127.0.0.1:{}", lasting_port());
    let announce = |spec| WorkerSpec { kv_events_endpoint: Some(endpoint), ..spec };
    let report = examined(settings.clone(), announce).await;
    let silent = [Check::Replay];
    differs(&report, Check::Events, &silent, Admission::LoadOnly, "enable_kv_cache_events");
    // One that is announced so is guessed about, which is said, and is no reason against it.
    let report = examined(settings, |spec| spec).await;
    differs(&report, Check::Events, &silent, Admission::Admit, "enable_kv_cache_events");
    assert!(finding(&report, Check::Events).found.contains("guessed"), "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_where_both_connect_or_both_listen_is_named() {
    let endpoint = format!("tcp://127.0.0.1:{}", lasting_port());
    // As vLLM: without a wildcard it connects.
    let connecting = MockSettings { events: Some(Endpoint::new(endpoint.clone())), ..engine_settings() };
    let announce = |direction| {
        let kv_events_endpoint = Some(endpoint.clone());
        move |spec| WorkerSpec { kv_events_endpoint, kv_events_direction: direction, ..spec }
    };
    let report = examined(connecting.clone(), announce(StreamDirection::Connect)).await;
    differs(&report, Check::Events, &[], Admission::LoadOnly, "wildcard");
    assert!(finding(&report, Check::Events).found.contains("nobody listens"), "{report:?}");
    let report = examined(connecting, announce(StreamDirection::Bind)).await;
    assert_eq!(report.admission(), Admission::Admit, "{report:?}");
    let listening = MockSettings { events: Some(Endpoint::bind(endpoint.clone())), ..engine_settings() };
    let report = examined(listening, announce(StreamDirection::Bind)).await;
    differs(&report, Check::Events, &[], Admission::LoadOnly, "connect");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_port_is_named_with_the_engine_s() {
    let endpoint = format!("tcp://127.0.0.1:{}", lasting_port());
    let announce = |spec| WorkerSpec { kv_events_endpoint: Some(endpoint), ..spec };
    let report = examined(engine_settings(), announce).await;
    differs(&report, Check::Events, &[], Admission::LoadOnly, "--kv-events-endpoint tcp://*:");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_engine_does_not_report_is_no_difference_but_says_the_flag() {
    let settings = MockSettings { prompt_tokens_details: false, ..engine_settings() };
    let report = examined(settings, |spec| spec).await;
    let found = finding(&report, Check::CachedTokens);
    assert_eq!((found.verdict, report.admission()), (Verdict::Unknown, Admission::Admit), "{report:?}");
    assert!(found.change.as_deref().unwrap().contains("--enable-prompt-tokens-details"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canary_leaves_nothing_that_a_prompt_could_match() {
    let engine = MockEngine::start(engine_settings()).await.unwrap();
    let spec = worker(1, &engine);
    report(&spec).await;
    let http = rig::Http::new();
    let body = serde_json::json!({ "model": MODEL, "prompt": [40, 41, 42], "max_tokens": 1 });
    let answer = http.post(&format!("{}/v1/completions", spec.url), &body).await;
    assert_eq!(answer.cached_tokens(), 0);
    assert!(engine.last_sequence().is_some(), "the canary was cached, under its own salt");
    engine.stop().await;
}

/// A mock engine's process and the URL of it.
async fn mock() -> (Process, String) {
    let mock = Process::start(&[&["mock"], &FREE_PORTS[..]].concat());
    let http = mock.logged("mock engine is up").await["http"].as_str().unwrap().to_owned();
    (mock, format!("http://{http}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_says_it_in_a_table_in_json_and_in_its_exit_status() {
    let (_mock, url) = mock().await;
    let run = |flags: &[&str]| {
        let flags = [&["doctor", "--engine-url", &url, "--tokenizer", TINY], flags].concat();
        Process::run(&flags)
    };
    let well = run(&[]);
    assert_eq!(well.code, Some(0), "{} {}", well.stdout, well.stderr);
    assert!(well.stdout.contains("hash rule") && well.stdout.contains("admit: "), "{}", well.stdout);
    let sized = run(&["--block-size", "32", "--json"]);
    let answer: Value = serde_json::from_str(&sized.stdout).unwrap();
    assert_eq!((sized.code, answer["admission"].as_str()), (Some(3), Some("load_only")), "{answer}");
    let checks = answer["checks"].as_array().unwrap();
    let row = checks.iter().find(|row| row["check"] == "block size").unwrap();
    assert_eq!(row["verdict"], "differs");
    assert!(row["change"].as_str().unwrap().contains("--engine-block-size 16"), "{row}");
    assert_eq!(run(&["--engine-ranks", "2"]).code, Some(4));
    let nobody = Process::run(&["doctor", "--engine-url", "http://127.0.0.1:1"]);
    assert_eq!(nobody.code, Some(1), "{}", nobody.stderr);
    assert_eq!(Process::run(&["doctor", "--engine-ranks", "0"]).code, Some(2));
}
