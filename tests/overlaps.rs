//! Of many prompts at once, what is cached where: `POST /v1/route/overlaps`.

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

use crate::rig::{MODEL, Rig};

fn tokens(first: u32, count: u32) -> Vec<u32> {
    (first..first + count).map(|token| token % 200).collect()
}

fn completion(prompt: &[u32]) -> Value {
    json!({ "model": MODEL, "prompt": prompt, "max_tokens": 1, "nvext": { "extra_fields": ["worker_id"] } })
}

#[tokio::test(flavor = "multi_thread")]
async fn each_prompt_is_found_where_it_was_computed() {
    let rig = Rig::start(Mode::RoundRobin, 2).await;
    let (cached, fresh) = (tokens(3, 160), tokens(77, 160));
    let answer = rig.post("/v1/completions", &completion(&cached)).await;
    let worker = answer.worker();
    rig.wait_for_events().await;
    // Another tail, one that is not there at all, one that is too short for a block, and none.
    let branched = [&cached[..64], &fresh[..]].concat();
    let prompts = json!([cached, branched, fresh, [1, 2, 3], []]);
    let answer = rig.ask("/v1/route/overlaps", &json!({ "model": MODEL, "prompts": prompts })).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let held = |blocks: u64| {
        let overlap = json!({ "gpu": blocks, "host": 0, "disk": 0, "external": 0 });
        json!([{ "worker_id": worker, "dp_rank": 0, "overlap_blocks": overlap }])
    };
    let expected = json!([
        { "blocks": 10, "held_by": held(10) },
        { "blocks": 14, "held_by": held(4) },
        { "blocks": 10, "held_by": [] },
        { "blocks": 0, "held_by": [] },
        { "blocks": 0, "held_by": [] },
    ]);
    assert_eq!((&answer.json["prompts"], &answer.json["block_size"]), (&expected, &json!(16)));
    // Another salt is another cache.
    let salted = json!({ "model": MODEL, "prompts": [cached], "cache_salt": "other" });
    let answer = rig.ask("/v1/route/overlaps", &salted).await;
    assert_eq!(answer.json["prompts"], json!([{ "blocks": 10, "held_by": [] }]));
    assert_eq!(rig.metric("kvroute_hash_batches_total", "").await, 2.0);
    assert_eq!(rig.metric("kvroute_hash_batch_blocks_total", "").await, 44.0);
    assert_eq!(rig.metric("kvroute_hash_device", "").await, 1.0, "it has one state");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_cannot_be_answered_is_refused() {
    let rig = Rig::start(Mode::Kv, 1).await;
    for (body, status, says) in [
        (json!({ "prompts": [[1]] }), 400, "'model' is missing"),
        (json!({ "model": MODEL }), 400, "'prompts' is missing"),
        (json!({ "model": MODEL, "prompts": "hello" }), 400, "prompts"),
        (json!({ "model": MODEL, "prompts": [[-1]] }), 400, "prompts"),
        (json!({ "model": "nobody", "prompts": [[1]] }), 404, "nobody"),
    ] {
        let answer = rig.ask("/v1/route/overlaps", &body).await;
        assert_eq!(answer.status, status, "{}", answer.text);
        assert!(answer.text.contains(says), "{}", answer.text);
    }
    // Clients learn nothing about caches.
    let body = json!({ "model": MODEL, "prompts": [[1]] });
    let answer = rig.post("/v1/route/overlaps", &body).await;
    assert_ne!(answer.status, 200, "{}", answer.text);
}
