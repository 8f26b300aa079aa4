//! The cost in seconds on real answers: what is learned of them, and what a card can say of it.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod rig;

use std::convert::Infallible;

use axum::{body::Body, response::Response};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use kvroute::{
    fleet::WorkerSpec,
    select::{CostModel, Mode, Tuning},
    worker::mock::MockSettings,
};
use serde_json::json;

use crate::rig::{
    MODEL, Rig, Transcript, candidate, engine_settings, eventually, plan, prose, scripted::Scripted,
    stream_of,
};

/// Streams an answer to each of `prompts`, one after another, from one worker.
async fn stream_each(rig: &Rig, worker: u64, prompts: std::ops::Range<u64>) {
    for seed in prompts {
        let mut body = stream_of(&prose(seed, 400), 3);
        body["nvext"] = json!({ "backend_instance_id": worker });
        let url = format!("{}/v1/completions", rig.public());
        let mut answer = rig.client.open(&url, &body).await.into_body();
        let transcript = Transcript::of(&mut answer).await;
        assert!(transcript.is_done(), "{}", transcript.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn first_tokens_teach_how_fast_each_worker_is_and_are_held_against_what_was_predicted() {
    // One engine is twenty times as slow as the other.
    let paced = |speedup| MockSettings { speedup, ..engine_settings() };
    let rig = Rig::start_with(Mode::Kv, vec![paced(1.0), paced(20.0)]).await;
    stream_each(&rig, 1, 0..12).await;
    stream_each(&rig, 2, 100..112).await;
    rig.wait_for_idle().await;
    let speed = async |worker: u64| {
        rig.metric("kvroute_worker_prefill_seconds_per_token", &format!("worker=\"{worker}\"")).await
    };
    assert!(speed(1).await > speed(2).await, "{} {}", speed(1).await, speed(2).await);
    for name in ["first_token_seconds", "first_token_predicted_seconds", "first_token_error_seconds"] {
        assert_eq!(rig.metric(&format!("kvroute_{name}_count"), "worker_set=").await, 24.0, "{name}");
        assert!(rig.metric(&format!("kvroute_{name}_sum"), "").await > 0.0, "{name}");
    }
    let explain = rig.explain(&stream_of(&prose(999, 400), 3)).await;
    assert_eq!(explain["choice"]["worker_id"], 2, "{explain}");
    let seconds = |worker, term: &str| candidate(&explain, worker)["cost"][term].as_f64().unwrap();
    assert!(seconds(1, "first_token") > seconds(2, "first_token"));
    assert_eq!(explain["choice"]["first_token_seconds"].as_f64().unwrap(), seconds(2, "first_token"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_in_one_piece_teaches_nothing() {
    let rig = Rig::start(Mode::Kv, 1).await;
    let body = json!({ "model": MODEL, "prompt": prose(7, 300), "max_tokens": 3 });
    assert_eq!(rig.post("/v1/completions", &body).await.status, 200);
    rig.wait_for_idle().await;
    assert_eq!(rig.metric("kvroute_worker_prefill_seconds_per_token", "").await, 1e-4);
    assert_eq!(rig.metric("kvroute_first_token_seconds_count", "").await, 0.0);
}

/// What it says cannot be read: its first byte ends the prefill that is booked, and says nothing of the speed.
#[tokio::test(flavor = "multi_thread")]
async fn nor_does_a_compressed_stream_which_has_nothing_to_prefill_once_it_begins() {
    let worker = Scripted::start(|_| {
        let begun = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"\x1f\x8b\x08"))]);
        Response::builder()
            .header("content-type", "text/event-stream")
            .header("content-encoding", "gzip")
            .body(Body::from_stream(begun.chain(stream::pending())))
            .unwrap()
    })
    .await;
    let rig = Rig::start_plan(plan(Mode::Kv, vec![worker.worker(1)]), Vec::new()).await;
    let url = format!("{}/v1/completions", rig.public());
    let answer = rig.client.open(&url, &stream_of(&prose(1, 400), 3)).await;
    eventually("nothing is left to prefill", async || {
        let load = &rig.worker(1).await["load"];
        load["requests"] == 1 && load["prefill_tokens"] == 0
    })
    .await;
    assert_eq!(rig.metric("kvroute_first_token_seconds_count", "").await, 0.0);
    drop(answer);
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_names_a_cost_model_beside_its_configuration_and_cards_that_differ_in_it_conflict() {
    let rig = Rig::start(Mode::Kv, 1).await;
    let sets = async || {
        let sets = rig.client.get(&format!("{}/v1/worker-sets", rig.admin())).await.json;
        sets["worker_sets"].as_array().unwrap().clone()
    };
    assert_eq!(sets().await[0]["router_cost_model"], "time");
    let mut other = rig::worker(2, &rig.engines[0]);
    // The engine's own address twice would be one worker registered twice.
    other.url = "http://127.0.0.1:9".to_owned();
    other = WorkerSpec { kv_events_endpoint: None, kv_replay_endpoint: None, ..other };
    other.router_cost_model = Some(CostModel::Time);
    assert_eq!(rig.register(&other, None).await.status, 201);
    assert_eq!(sets().await[0]["state"], "serving", "what is equal in effect is equal");
    other.id = Some(3);
    other.url = "http://127.0.0.1:10".to_owned();
    other.router_cost_model = Some(CostModel::Blocks);
    assert_eq!(rig.register(&other, None).await.status, 201);
    let set = &sets().await[0];
    assert_eq!(
        (&set["state"], &set["differing_fields"]),
        (&json!("conflict"), &json!(["router_cost_model"]))
    );
    assert_eq!(set["cohorts"][1]["router_cost_model"], "blocks");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_blocks_model_predicts_no_first_token_and_learns_all_the_same() {
    let tuning = Tuning { cost_model: CostModel::Blocks, ..Tuning::default() };
    let rig = Rig::start_tuned(Mode::Kv, tuning, 1).await;
    stream_each(&rig, 1, 0..5).await;
    rig.wait_for_idle().await;
    assert_ne!(rig.metric("kvroute_worker_prefill_seconds_per_token", "").await, 1e-4);
    assert_eq!(rig.metric("kvroute_first_token_seconds_count", "").await, 0.0);
    assert!(rig.metric("kvroute_choice_cost_blocks_total", "").await > 0.0);
    assert_eq!(rig.metric("kvroute_choice_cost_seconds_total", "").await, 0.0);
}
