//! What the router predicts is what the engine reports, request by request.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod rig;

use kvroute::select::Mode;
use serde_json::{Value, json};

use crate::rig::{MODEL, Rig, prose};

const BLOCK: u64 = 16;

/// Requests that repeat, extend and fork a few conversations, by chat, by text and by token ids.
fn request(number: u64) -> (&'static str, Value) {
    let mut rng = fastrand::Rng::with_seed(number);
    let group = rng.u64(..6);
    let tail = prose(1000 + rng.u64(..40), rng.usize(1..60));
    match rng.u8(..3) {
        0 => ("/v1/chat/completions", rig::chat(&prose(group, 80), &tail)),
        1 => {
            let prompt = format!("{} {tail}", prose(group, 80));
            ("/v1/completions", json!({ "model": MODEL, "max_tokens": 3, "prompt": prompt }))
        }
        _ => {
            let shared = (0..160 + 16 * group as u32).map(|token| 300 + (token * 7 + group as u32) % 1500);
            let own = (0..rng.u32(1..50)).map(|token| 300 + (token * 13 + number as u32) % 1500);
            let prompt: Vec<u32> = shared.chain(own).collect();
            ("/v1/completions", json!({ "model": MODEL, "max_tokens": 3, "prompt": prompt }))
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_predictions_are_right_to_the_block() {
    let rig = Rig::start(Mode::Kv, 3).await;
    let mut hits = 0;
    for number in 0..200 {
        let (path, mut body) = request(number);
        rig.wait_for_events().await;
        let explain = rig.ask("/v1/route/explain", &body).await.json;
        let choice = &explain["choice"];
        body["nvext"] = json!({
            "extra_fields": ["worker_id"],
            "backend_instance_id": choice["worker_id"],
        });
        let answer = rig.post(path, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(answer.json["nvext"]["worker_id"]["decode_worker_id"], choice["worker_id"]);
        assert_eq!(explain["prompt_tokens"], answer.prompt_tokens(), "request {number}: {body}");
        // The engine always computes the last token, and with it that token's block.
        let reachable = (answer.prompt_tokens() - 1) / BLOCK;
        let predicted = choice["overlap_blocks"].as_u64().unwrap().min(reachable) * BLOCK;
        assert_eq!(predicted, answer.cached_tokens(), "request {number}: {explain}");
        hits += u64::from(predicted > 0);
    }
    assert!(hits > 100, "only {hits} requests had anything to predict");
}
