//! A worker whose answers disagree with what was predicted of them.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod rig;

use kvroute::{
    fleet::WorkerSpec,
    frontend::AdmissionCheck,
    select::Mode,
    worker::mock::{MockEngine, MockSettings, Omissions},
};
use serde_json::{Value, json};

use crate::rig::{MODEL, Rig, engine_settings, eventually, plan, worker};

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
    let rig = self::rig(AdmissionCheck::Off, false).await;
    send(&rig, 24).await;
    assert!(missing(&rig).await > 0.5, "{}", missing(&rig).await);
    assert_eq!(parity(&rig).await["verdict"], "unchecked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_does_not_tell_what_it_evicts_loses_its_credit_after_a_second_look() {
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
}
