//! The public listener reveals nothing of the index, of workers, or of other clients.

use http::Method;
use kvroute::{fleet::WorkerSpec, select::Mode};
use serde_json::{Value, json};

use crate::{
    planned,
    rig::{
        Answer, MODEL, Rig, chat, engine_settings, plan,
        pools::{CHAT, COMPLETIONS, Pools},
        prose,
        upstream::{Upstream, plain},
    },
};

/// Numbers that appear nowhere by chance.
const WORKERS: [u64; 2] = [7_340_033_001, 7_340_033_002];

/// What would tell a client where its request went, or what is cached of whom.
const TELLING: [&str; 11] = [
    "overlap",
    "worker_id",
    "dp_rank",
    "hit_rate",
    "cohort",
    "block_size",
    "generation",
    "127.0.0.1",
    "localhost",
    "http://",
    "tcp://",
];

fn assert_silent(what: &str, answer: &Answer, known: &[String]) {
    let headers: Vec<_> = answer.headers.iter().map(|(name, value)| format!("{name}: {value:?}")).collect();
    let all = format!("{}\n{}", headers.join("\n"), answer.text);
    let lower = all.to_ascii_lowercase();
    for told in known.iter().map(String::as_str).chain(TELLING) {
        assert!(!lower.contains(told), "{what} tells {told}: {all}");
    }
    // Beside what HTTP itself has, the request's name is a header of ours, and of an error whose it is.
    let of_errors = ["x-kvroute-error-source", "x-kvroute-error-retry"];
    let failed = answer.status.is_client_error() || answer.status.is_server_error();
    let ours = [
        "content-type",
        "content-length",
        "date",
        "x-request-id",
        "retry-after",
        "allow",
        "transfer-encoding",
    ];
    for name in answer.headers.keys() {
        let known = ours.contains(&name.as_str()) || (failed && of_errors.contains(&name.as_str()));
        assert!(known || name == "cache-control", "{what} has {name}: {all}");
    }
}

/// Every public route, as it should be asked and as it should not.
fn questions() -> Vec<(Method, &'static str, Value)> {
    let long = chat(&prose(1, 120), "hello");
    let text = json!({ "model": MODEL, "prompt": prose(2, 120), "max_tokens": 2 });
    let streamed = json!({ "model": MODEL, "prompt": "a", "max_tokens": 2, "stream": true });
    let asks = |key: &str, value: Value| {
        let mut body = chat("a", "b");
        body["nvext"] = json!({ key: value });
        body
    };
    vec![
        (Method::POST, CHAT, long.clone()),
        // Again, when it is cached.
        (Method::POST, CHAT, long),
        (Method::POST, COMPLETIONS, text.clone()),
        (Method::POST, COMPLETIONS, text),
        (Method::POST, COMPLETIONS, streamed),
        (Method::POST, CHAT, json!({})),
        (Method::POST, CHAT, json!({ "model": "nobody", "messages": [] })),
        (Method::POST, CHAT, json!([1])),
        (Method::POST, CHAT, asks("backend_instance_id", json!(5))),
        (Method::POST, CHAT, asks("backend_instance_id", json!("x"))),
        (Method::POST, CHAT, asks("annotations", json!(["query_instance_id:"]))),
        (Method::POST, CHAT, asks("extra_fields", json!(["timing"]))),
        (Method::POST, "/v1/embeddings", json!({ "model": MODEL, "input": "x" })),
        (Method::POST, "/v1/load_lora_adapter", json!({ "model": MODEL })),
        (Method::PUT, CHAT, Value::Null),
        (Method::GET, CHAT, Value::Null),
        (Method::GET, "/v1/models", Value::Null),
        (Method::GET, "/v1/models/mock", Value::Null),
        (Method::GET, "/v1/models/nobody", Value::Null),
        (Method::GET, "/health", Value::Null),
        (Method::GET, "/ready", Value::Null),
        // What operators ask, on their own listener.
        (Method::GET, "/metrics", Value::Null),
        (Method::GET, "/v1/workers", Value::Null),
        (Method::GET, "/v1/workers/1", Value::Null),
        (Method::GET, "/v1/worker-sets", Value::Null),
        (Method::GET, "/busy_threshold", Value::Null),
        (Method::GET, "/v1/route/decisions/x", Value::Null),
        (Method::POST, "/v1/route/explain", json!({ "model": MODEL, "prompt": "x" })),
        (Method::POST, "/v1/route/overlaps", json!({ "model": MODEL, "prompts": [[1, 2, 3]] })),
        (Method::POST, "/v1/workers", json!({ "model": MODEL, "url": "x" })),
        (Method::POST, "/v1/workers/1/drain", json!({ "model": MODEL })),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_tells_where_a_request_went_or_what_is_cached() {
    let mut pools = Pools::of(vec![engine_settings(); 2]).await;
    for (worker, id) in pools.workers.iter_mut().zip(WORKERS) {
        worker.id = Some(id);
    }
    let mut known: Vec<String> = WORKERS.iter().map(ToString::to_string).collect();
    let rig = Rig::assemble(plan(Mode::Kv, pools.workers), pools.engines).await;
    known.extend(rig.engines.iter().map(|engine| engine.http_addr().to_string()));
    known.push(rig.frontend.admin_addr().to_string());
    for (method, path, body) in questions() {
        let url = format!("{}{path}", rig.public());
        let answer = rig.client.request(method.clone(), &url, &[], &body).await;
        assert_silent(&format!("{method} {path} {body}"), &answer, &known);
    }
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nor_does_an_error_of_a_worker_or_of_a_fleet_that_cannot_serve() {
    let gone = Upstream::start(plain).await;
    let WorkerSpec { url, .. } = gone.worker(1, MODEL);
    let worker = gone.worker(WORKERS[0], MODEL);
    drop(gone);
    let known = [url.trim_start_matches("http://").to_owned(), WORKERS[0].to_string()];
    let rig = Rig::start_plan(planned(vec![worker], |settings| settings), Vec::new()).await;
    let ask = json!({ "model": MODEL, "prompt": [1, 2, 3] });
    let unreachable = rig.post(COMPLETIONS, &ask).await;
    assert!(unreachable.status.is_server_error(), "{}", unreachable.text);
    assert_silent("a worker that is gone", &unreachable, &known);
    rig.ask(&format!("/v1/workers/{}/drain", WORKERS[0]), &json!({})).await;
    let drained = rig.post(COMPLETIONS, &ask).await;
    assert_eq!(drained.status, 503, "{}", drained.text);
    assert_silent("a fleet that drains", &drained, &known);
}
