//! Requests, as clients and workers would send them.

use http::StatusCode;
use kvroute::select::Mode;
use serde_json::{Value, json};

use crate::{
    mutation::Inputs,
    rig::{MODEL, Rig, chat, prose, registration, worker},
};

fn corpus(bodies: &[Value]) -> Vec<Vec<u8>> {
    bodies.iter().map(|body| body.to_string().into_bytes()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_chats_and_completions_are_answered() {
    let rig = Rig::start(Mode::Kv, 2).await;
    let tool = json!({ "type": "function", "function": { "name": "f", "parameters": { "type": "object" } } });
    let corpus = corpus(&[
        chat(&prose(1, 40), "hello"),
        json!({ "model": MODEL, "max_tokens": 2, "stream": true, "stream_options": { "include_usage": true },
            "messages": [{ "role": "user", "content": [{ "type": "text", "text": "what?" }] }] }),
        json!({ "model": MODEL, "max_tokens": 1, "tools": [tool], "tool_choice": "auto", "user": "u",
            "messages": [{ "role": "assistant", "content": null, "tool_calls": [] }, { "role": "user", "content": "x" }] }),
        json!({ "model": MODEL, "max_tokens": 1, "messages": [{ "role": "user", "content": "x" }],
            "nvext": { "backend_instance_id": 1, "router_overrides": { "overlap_score_weight": 1.0 }, "priority": 3,
                "extra_fields": ["worker_id"], "annotations": ["a"] } }),
        json!({ "model": MODEL, "max_tokens": 1, "prompt": "once upon a time" }),
        json!({ "model": MODEL, "max_tokens": 1, "prompt": [1, 2, 3, 4, 5, 6, 7, 8] }),
        json!({ "model": MODEL, "max_tokens": 1, "prompt": ["one", "two"], "cache_salt": "s" }),
    ]);
    let (mut inputs, mut answers) = (0, [0_u64; 6]);
    for input in Inputs::of(&corpus) {
        for path in ["/v1/chat/completions", "/v1/completions"] {
            let answer = rig.client.post_bytes(&format!("{}{path}", rig.public()), input.bytes.clone()).await;
            let status = answer.status;
            // An engine may refuse what the router lets through; the router has no error of its own.
            assert_ne!(status, StatusCode::INTERNAL_SERVER_ERROR, "{path}: {}", answer.text);
            assert_ne!(status, StatusCode::BAD_GATEWAY, "{path}: {}", answer.text);
            if status.is_client_error() {
                assert!(answer.json["error"]["message"].is_string(), "{path}: {}", answer.text);
            }
            answers[usize::from(status.as_u16() / 100)] += 1;
        }
        let explained =
            rig.client.post_bytes(&format!("{}/v1/route/explain", rig.admin()), input.bytes.clone()).await;
        assert_ne!(explained.status, StatusCode::INTERNAL_SERVER_ERROR, "explain: {}", explained.text);
        inputs += 1;
    }
    println!("{inputs} inputs, answers by hundreds of their status: {answers:?}");
    assert!(answers[2] > 0 && answers[4] > 0, "one kind of answer only: {answers:?}");
    assert_eq!(rig.post("/v1/chat/completions", &chat(&prose(2, 40), "hello")).await.status, StatusCode::OK);
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_registrations_and_heartbeats_are_answered() {
    let rig = Rig::start(Mode::Kv, 1).await;
    let mut spec = worker(7, &rig.engines[0]);
    spec.kv_events_endpoint = None;
    let gpu = json!({ "uuid": "GPU-a", "readings": { "power_watts": 500, "nvlinks": "not_supported" } });
    let registrations = [registration(&spec, Some(5.0)), {
        let mut card = registration(&spec, None);
        card["router_config"] = json!({ "router_mode": "kv", "kv_router_config": { "overlap_score_weight": 2.0, "router_temperature": 0.5 } });
        card["adapters"] = json!([{ "name": "a" }]);
        card
    }];
    let beats = [
        json!({ "devices": { "ranks": [{ "capability": 0.5, "gpus": [gpu] }] } }),
        json!({ "lease_secs": 5.0, "adapters": ["a"] }),
    ];
    let corpus = corpus(&[registrations.as_slice(), &beats].concat());
    let mut inputs = 0;
    for input in Inputs::of(&corpus) {
        for path in ["/v1/workers", "/v1/workers/1/heartbeat", "/busy_threshold", "/v1/route/overlaps"] {
            let answer = rig.client.post_bytes(&format!("{}{path}", rig.admin()), input.bytes.clone()).await;
            assert!(!answer.status.is_server_error(), "{path}: {} {}", answer.status, answer.text);
        }
        // Else the fleet is of those that happened to be good.
        for rank in rig.workers().await {
            let id = rank["id"].as_u64().unwrap();
            if id != 1 {
                rig.remove(id).await;
            }
        }
        inputs += 1;
    }
    println!("{inputs} inputs");
    assert_eq!(rig.post("/v1/chat/completions", &chat(&prose(2, 40), "hello")).await.status, StatusCode::OK);
    rig.wait_for_idle().await;
}
