//! The main job: a repeated prompt goes to the worker that holds it, and everyone can see why.

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
use serde_json::json;

use crate::rig::{Rig, chat, prose};

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_prompt_goes_where_it_is_cached_and_explain_says_why() {
    let rig = Rig::start(Mode::Kv, 4).await;
    let mut body = chat(&prose(1, 120), "what now?");
    body["nvext"] = json!({ "extra_fields": ["worker_id"] });

    let first = rig.post("/v1/chat/completions", &body).await;
    assert_eq!((first.status.as_u16(), first.cached_tokens()), (200, 0), "{}", first.text);
    rig.wait_for_events().await;

    let full_blocks = (first.prompt_tokens() - 1) / 16;
    let explain = rig.ask("/v1/route/explain", &body).await.json;
    assert_eq!(explain["choice"]["worker_id"], first.worker());
    assert!(explain["choice"]["overlap_blocks"].as_u64().unwrap() >= full_blocks);
    let candidates = explain["candidates"].as_array().unwrap();
    assert_eq!(candidates.len(), 4);
    for candidate in candidates {
        let chosen = candidate["worker_id"] == first.worker();
        let why = candidate["why"].as_str().unwrap();
        assert_eq!(why.contains("chosen by kv"), chosen, "{why}");
        assert_eq!(why.contains("seconds more than the chosen one"), !chosen, "{why}");
        assert!(candidate["cost"]["total"].is_number() && candidate["cost"]["unit"] == "seconds");
    }

    let second = rig.post("/v1/chat/completions", &body).await;
    assert_eq!(second.worker(), first.worker());
    assert_eq!(second.cached_tokens(), full_blocks * 16);
    rig.wait_for_idle().await;

    let labels = format!("worker=\"{}\"", first.worker());
    assert_eq!(rig.metric("kvroute_worker_chosen_total", &labels).await, 2.0);
    assert_eq!(rig.metric("kvroute_reported_cached_tokens_total", "").await, (full_blocks * 16) as f64);
    let overlap = rig.metric("kvroute_choice_overlap_blocks_total", "").await;
    assert!(overlap >= full_blocks as f64, "{overlap}");
    let cached = rig.metric("kvroute_worker_cached_blocks", &labels).await;
    assert!(cached >= full_blocks as f64, "{cached}");
}

#[tokio::test(flavor = "multi_thread")]
async fn round_robin_spreads_what_kv_keeps_together() {
    let rig = Rig::start(Mode::RoundRobin, 3).await;
    let mut body = chat(&prose(2, 60), "hello");
    body["nvext"] = json!({ "extra_fields": ["worker_id"] });
    let mut workers = Vec::new();
    for _ in 0..3 {
        workers.push(rig.post("/v1/chat/completions", &body).await.worker());
    }
    workers.sort_unstable();
    assert_eq!(workers, [1, 2, 3]);
}
