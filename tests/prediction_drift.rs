//! A worker whose answers disagree with what was predicted of them.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod log_capture;
mod rig;

use kvroute::{
    fleet::WorkerSpec,
    frontend::AdmissionCheck,
    select::Mode,
    worker::mock::{MockEngine, MockSettings, Omissions},
};
use serde_json::{Value, json};

use crate::{
    log_capture::Log,
    rig::{MODEL, Rig, engine_settings, eventually, plan, worker},
};

/// Usable blocks of the engine's cache.
const BLOCKS: u32 = 63;

/// A frontend over an engine that evicts, and says so only if `told`.
async fn rig(check: AdmissionCheck, told: bool) -> Rig {
    let settings = MockSettings {
        num_gpu_blocks: BLOCKS + 1,
        max_model_len: 600,
        omissions: Omissions { removals: !told, ..Omissions::default() },
        ..engine_settings()
    };
    let engine = MockEngine::start(settings).await.unwrap();
    let spec = WorkerSpec { total_kv_blocks: Some(u64::from(BLOCKS)), ..worker(1, &engine) };
    let mut plan = plan(Mode::Kv, vec![spec]);
    plan.settings.admission_check = check;
    Rig::assemble(plan, vec![engine]).await
}

/// Sends prompts in turn that are together more than the cache holds, so that each is gone when it comes again.
async fn send(rig: &Rig, count: u32) {
    for number in 0..count {
        let tokens: Vec<_> = (0..400).map(|token| 300 + number % 4 * 100 + token % 100).collect();
        let answer =
            rig.post("/v1/completions", &json!({ "model": MODEL, "prompt": tokens, "max_tokens": 1 })).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        rig.wait_for_events().await;
    }
}

async fn parity(rig: &Rig) -> Value {
    rig.workers().await[0]["parity"].clone()
}

async fn missing(rig: &Rig) -> f64 {
    rig.metric("kvroute_prediction_missing_ratio", "tier=\"gpu\"").await
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_compared_whether_or_not_anybody_checks() {
    let rig = rig(AdmissionCheck::Off, true).await;
    send(&rig, 24).await;
    assert_eq!(missing(&rig).await, 0.0, "removals were told");
    assert_eq!(rig.metric("kvroute_prediction_answers", "tier=\"gpu\"").await, 24.0);
    assert_eq!(rig.metric("kvroute_prediction_observed_ratio", "").await, 1.0);
    let rig = self::rig(AdmissionCheck::Off, false).await;
    send(&rig, 24).await;
    assert!(missing(&rig).await > 0.5, "{}", missing(&rig).await);
    assert_eq!(parity(&rig).await["verdict"], "unchecked");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_compared_whose_clients_ask_for_their_usage_and_nothing_is_added_to_requests() {
    let rig = rig(AdmissionCheck::Off, true).await;
    let ask = async |usage: bool| {
        let tokens: Vec<_> = (300..400).collect();
        let mut body = json!({ "model": MODEL, "prompt": tokens, "max_tokens": 1, "stream": true });
        if usage {
            body["stream_options"] = json!({ "include_usage": true });
        }
        let answer = rig.post("/v1/completions", &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(answer.text.contains("cached_tokens"), usage, "{}", answer.text);
        rig.wait_for_idle().await;
    };
    let answers = async || rig.metric("kvroute_prediction_answers", "tier=\"gpu\"").await;
    ask(true).await;
    assert_eq!((answers().await, rig.metric("kvroute_prediction_observed_ratio", "").await), (1.0, 1.0));
    ask(false).await;
    assert_eq!((answers().await, rig.metric("kvroute_prediction_observed_ratio", "").await), (1.0, 0.5));
    // The engine has to say it, too.
    let silent =
        MockEngine::start(MockSettings { prompt_tokens_details: false, ..engine_settings() }).await.unwrap();
    let rig = Rig::assemble(plan(Mode::Kv, vec![worker(1, &silent)]), vec![silent]).await;
    let body = json!({ "model": MODEL, "prompt": "hello", "max_tokens": 1 });
    assert_eq!(rig.post("/v1/completions", &body).await.status, 200);
    rig.wait_for_idle().await;
    assert_eq!(rig.metric("kvroute_prediction_observed_ratio", "").await, 0.0);
    assert_eq!(rig.metric("kvroute_reported_answers_total", "").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_does_not_tell_what_it_evicts_loses_its_credit_after_a_second_look() {
    let log = Log::start("info");
    let rig = rig(AdmissionCheck::Strict, false).await;
    eventually("it is admitted at first", async || parity(&rig).await["verdict"] == "admit").await;
    eventually("its answers take its credit away", async || {
        send(&rig, 8).await;
        parity(&rig).await["verdict"] == "load_only"
    })
    .await;
    let stands = parity(&rig).await;
    let reason = stands["reason"].as_str().unwrap();
    assert!(
        reason.contains("predicted to be cached") && reason.contains("does not report all removals"),
        "{reason}"
    );
    assert_eq!(stands["overlap_withheld"], true);
    let replays = rig.metric("kvroute_worker_event_replays_total", "").await;
    assert!(replays >= 2.0, "the stream was read anew before: {replays}");
    // A canary finds nothing wrong, so it gets another try.
    eventually("it is admitted again", async || parity(&rig).await["verdict"] == "admit").await;
    assert_eq!(parity(&rig).await["overlap_withheld"], false);
    let said = |word: &str| {
        log.text().lines().filter(|line| line.contains("worker=1 ") && line.contains(word)).count()
    };
    assert_eq!(said("the worker's event stream is read anew"), 1, "{}", log.text());
    let warning = "parity check: the worker is routed by load alone";
    assert_eq!(said(warning), 1, "{}", log.text());
    let line = log.text().lines().find(|line| line.contains(warning)).unwrap().to_owned();
    assert!(line.contains("WARN") && line.contains("does not report all removals"), "{line}");
}
