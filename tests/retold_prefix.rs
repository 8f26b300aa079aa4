//! A prefix that an engine publishes once more is still held once: it is gone when it is evicted.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod rig;

use kvroute::{select::Mode, worker::mock::MockSettings};
use serde_json::{Value, json};

use crate::rig::{MODEL, Rig, credit, engine_settings};

const BLOCK: usize = 16;

/// Prompts with equal `family` begin alike.
fn tokens(family: u32, count: usize) -> Vec<u32> {
    (0..count as u32).map(|token| 300 + (family * 97 + token * 13) % 1500).collect()
}

fn completion(prompt: &[u32]) -> Value {
    json!({ "model": MODEL, "max_tokens": 1, "prompt": prompt })
}

/// Sends a prompt. What the router credits for it beforehand, and what the engine has of it, in blocks.
async fn send(rig: &Rig, body: &Value) -> (u64, u64) {
    rig.wait_for_idle().await;
    rig.wait_for_events().await;
    let credited = credit(&rig.explain(body).await, 1);
    let answer = rig.post("/v1/completions", body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    (credited, answer.cached_tokens() / BLOCK as u64)
}

/// Sends other prompts until nothing of earlier ones is left.
async fn evict(rig: &Rig, family: u32) {
    for other in 0..4 {
        send(rig, &completion(&tokens(family + other, 10 * BLOCK + 1))).await;
    }
}

async fn rig() -> Rig {
    let engine = MockSettings { num_gpu_blocks: 33, max_model_len: 512, ..engine_settings() };
    Rig::start_with(Mode::Kv, vec![engine]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_that_is_published_again_leaves_no_ghost() {
    let rig = rig().await;
    let plain = completion(&tokens(1, 5 * BLOCK + 3));
    let mut reporting = plain.clone();
    reporting["vllm_xargs"] = json!({ "kv_cache_report_mode": "full" });
    assert_eq!(send(&rig, &plain).await, (0, 0));
    for _ in 0..3 {
        assert_eq!(send(&rig, &reporting).await, (5, 5));
    }
    evict(&rig, 10).await;
    assert_eq!(send(&rig, &plain).await, (0, 0), "credited for what was told again");
    assert_eq!(send(&rig, &plain).await, (5, 5));
}
