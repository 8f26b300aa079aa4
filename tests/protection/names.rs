//! Names of requests, and traces.

use http::{HeaderMap, Method};
use kvroute::fleet::{Api, ModelType, WorkerSpec, WorkerType};
use serde_json::json;

use crate::{
    planned,
    rig::{
        MODEL, Rig,
        pools::CHAT,
        upstream::{Upstream, plain},
    },
};

/// A worker that serves every route that is asked here.
fn embedding(upstream: &Upstream) -> WorkerSpec {
    let model_type = ModelType::of(&[Api::Chat, Api::Completions, Api::Embedding]);
    WorkerSpec { model_type, ..upstream.worker(1, MODEL) }
}

/// What every route takes for a body.
fn body() -> serde_json::Value {
    json!({ "model": MODEL, "prompt": [1, 2, 3], "messages": [], "input": "x" })
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_tells_the_name_that_the_worker_was_told() {
    let upstream = Upstream::start(plain).await;
    let rig = Rig::start_plan(planned(vec![embedding(&upstream)], |settings| settings), Vec::new()).await;
    for path in ["/v1/completions", "/v1/embeddings"] {
        for (given, taken) in
            [(Some("job/7"), true), (Some("two words"), false), (Some(""), false), (None, false)]
        {
            let headers: Vec<_> = given.map(|name| ("x-request-id", name)).into_iter().collect();
            let url = format!("{}{path}", rig.public());
            let answer = rig.client.request(Method::POST, &url, &headers, &body()).await;
            let told = answer.headers["x-request-id"].to_str().unwrap();
            assert_eq!(Some(told) == given, taken, "{given:?}: {told}");
            assert!(taken || told.len() == 32, "{told}");
            let seen: Vec<_> = upstream.last().headers.get_all("x-request-id").iter().cloned().collect();
            assert_eq!(seen, [told]);
        }
    }
    let url = |path: &str| format!("{}{path}", rig.public());
    for (method, path) in [
        (Method::GET, "/health"),
        (Method::GET, "/v1/models"),
        (Method::GET, "/nowhere"),
        (Method::PUT, CHAT),
        (Method::POST, CHAT),
    ] {
        let answer = rig.client.request(method, &url(path), &[("x-request-id", "a-1")], &json!({})).await;
        assert_eq!(answer.headers["x-request-id"], "a-1", "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_passes_to_the_worker_as_it_came() {
    let upstream = Upstream::start(plain).await;
    let rig = Rig::start_plan(planned(vec![embedding(&upstream)], |settings| settings), Vec::new()).await;
    let trace = [
        ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("tracestate", "rojo=00f067aa0ba902b7"),
        ("tracestate", "congo=t61rcWkgMzE"),
        ("baggage", "user=7"),
    ];
    let of_trace = |headers: &HeaderMap| -> Vec<_> {
        let values =
            ["traceparent", "tracestate", "baggage"].into_iter().flat_map(|name| headers.get_all(name));
        values.map(|value| value.to_str().unwrap().to_owned()).collect()
    };
    for path in ["/v1/completions", "/v1/embeddings"] {
        let answer =
            rig.client.request(Method::POST, &format!("{}{path}", rig.public()), &trace, &body()).await;
        assert_eq!(answer.status, 200);
        assert_eq!(of_trace(&upstream.last().headers), trace.map(|(_, value)| value));
    }
    rig.client.post(&format!("{}/v1/completions", rig.public()), &body()).await;
    assert!(of_trace(&upstream.last().headers).is_empty(), "none is made up");
}

#[tokio::test(flavor = "multi_thread")]
async fn both_hops_of_a_split_request_carry_its_name_and_trace() {
    let [prefill, decode] = [Upstream::start(plain).await, Upstream::start(plain).await];
    let mut workers = vec![prefill.worker(1, MODEL), decode.worker(2, MODEL)];
    workers[0].worker_type = WorkerType::Prefill;
    workers[1].worker_type = WorkerType::Decode;
    let rig = Rig::start_plan(planned(workers, |settings| settings), Vec::new()).await;
    let headers = [("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")];
    // Of a stream, since a prefill that ends at once ends other requests.
    let ask = json!({ "model": MODEL, "prompt": [1, 2, 3], "stream": true });
    let url = format!("{}/v1/completions", rig.public());
    let answer = rig.client.request(Method::POST, &url, &headers, &ask).await;
    let name = &answer.headers["x-request-id"];
    for hop in [&prefill, &decode] {
        let seen = hop.last().headers;
        assert_eq!(&seen["x-request-id"], name);
        assert_eq!(seen["traceparent"], headers[0].1);
    }
}
