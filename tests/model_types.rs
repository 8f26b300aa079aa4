//! A worker's model type says at which routes its model is served.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod rig;

use kvroute::{fleet::WorkerSpec, select::Mode};
use serde_json::{Value, json};

use crate::rig::{
    MODEL, Rig, chat, plan, registration,
    upstream::{Upstream, plain},
};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
const EMBED: &str = "/v1/embeddings";

/// A worker of `model` in a component of its own.
fn serving(upstream: &Upstream, id: u64, model: &str, model_type: &str) -> WorkerSpec {
    WorkerSpec {
        component: format!("component-{id}"),
        model_type: model_type.parse().unwrap(),
        ..upstream.worker(id, model)
    }
}

fn asking(model: &str) -> Value {
    let mut body = chat("a", "b");
    body["model"] = json!(model);
    body["prompt"] = json!("hello");
    body["input"] = json!("hello");
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_served_at_the_routes_of_its_type() {
    let upstream = Upstream::start(plain).await;
    let types =
        ["chat|completions", "chat", "completions", "embedding", "images", "audios", "videos", "tensor"];
    let workers = (1..).zip(types).map(|(id, model_type)| serving(&upstream, id, model_type, model_type));
    let rig = Rig::assemble(plan(Mode::RoundRobin, workers.collect()), Vec::new()).await;
    for (path, needed) in [
        (CHAT, "chat"),
        ("/v1/responses", "chat"),
        ("/v1/messages", "chat"),
        (TEXT, "completions"),
        (EMBED, "embedding"),
        ("/v1/images/generations", "images"),
        ("/v1/audio/speech", "audios"),
        ("/v1/videos", "videos"),
    ] {
        for model_type in types {
            let answer = rig.post(path, &asking(model_type)).await;
            if model_type.split('|').any(|part| part == needed) {
                assert_eq!(answer.status, 200, "{model_type} at {path}: {}", answer.text);
                assert_eq!(upstream.last().path, path);
                continue;
            }
            assert_eq!(answer.status, 404, "{model_type} at {path}: {}", answer.text);
            let error = &answer.json["error"];
            assert_eq!((&error["param"], &error["code"]), (&json!("model"), &json!("model_not_found")));
            assert_eq!(
                error["message"],
                format!(
                    "the model '{model_type}' is not served at {path}: its workers would need {needed} in their \
                     model_type, and have {}",
                    model_type.replace('|', ", ")
                )
            );
        }
    }
    // Routes that no type is about go to whoever serves the model.
    for model_type in types {
        assert_eq!(rig.post("/v1/rerank", &asking(model_type)).await.status, 200, "{model_type}");
    }
}

/// Two sets of one model that serve different things do not get each other's requests.
#[tokio::test(flavor = "multi_thread")]
async fn of_several_sets_only_those_that_serve_the_route_are_candidates() {
    let upstreams = [Upstream::start(plain).await, Upstream::start(plain).await];
    let workers = vec![
        serving(&upstreams[0], 1, MODEL, "chat"),
        serving(&upstreams[1], 2, MODEL, "completions|embedding"),
    ];
    let rig = Rig::assemble(plan(Mode::RoundRobin, workers), Vec::new()).await;
    for _ in 0..8 {
        for path in [CHAT, TEXT, EMBED] {
            assert_eq!(rig.post(path, &asking(MODEL)).await.status, 200, "{path}");
        }
    }
    let seen = |at: usize, path: &str| upstreams[at].recorded().iter().filter(|one| one.path == path).count();
    assert_eq!((seen(0, CHAT), seen(0, TEXT), seen(0, EMBED)), (8, 0, 0));
    assert_eq!((seen(1, CHAT), seen(1, TEXT), seen(1, EMBED)), (0, 8, 8));
    // A pin does not open a route that the worker's set does not have.
    let mut pinned = asking(MODEL);
    pinned["nvext"] = json!({ "backend_instance_id": 2 });
    assert_eq!(rig.post(CHAT, &pinned).await.status, 400);
    // Explain asks the same sets.
    assert_eq!(
        rig.explain(&asking(MODEL)).await["worker_set"],
        format!("{MODEL}@default.component-1.generate/aggregated")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn spellings_of_one_type_are_one_set_and_unknown_parts_are_refused() {
    let upstream = Upstream::start(plain).await;
    let rig = Rig::assemble(plan(Mode::RoundRobin, vec![upstream.worker(1, MODEL)]), Vec::new()).await;
    let register = async |id: u64, model_type: &str| {
        let mut body = registration(&upstream.worker(id, MODEL), None);
        body["model_type"] = json!(model_type);
        rig.ask("/v1/workers", &body).await
    };
    assert_eq!(register(2, "Completions | Chat").await.status, 201);
    let sets = rig.client.get(&format!("{}/v1/worker-sets", rig.admin())).await.json;
    let sets = sets["worker_sets"].as_array().unwrap();
    assert_eq!(sets.len(), 1, "{sets:?}");
    assert_eq!((&sets[0]["model_type"], &sets[0]["workers"]), (&json!("chat|completions"), &json!(2)));
    for unknown in ["", "chta", "chat|everything"] {
        let refused = register(3, unknown).await;
        assert_eq!(refused.status, 400, "{}", refused.text);
        let error = &refused.json["error"];
        assert_eq!(error["param"], "model_type");
        assert!(error["message"].as_str().unwrap().contains("accepted are chat, completions"), "{error}");
    }
}
