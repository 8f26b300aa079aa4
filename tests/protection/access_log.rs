//! The access log: a line a request, and nothing of prompts in it.

use std::{fs, path::Path, sync::Arc};

use http::Method;
use kvroute::frontend::{AccessLogTarget, ApiKeys, FrontendSettings};
use serde_json::{Value, json};
use tempfile::tempdir;

use crate::{
    KEY, bearer, planned,
    process::Process,
    rig,
    rig::{
        Http, MODEL, Rig, Transcript, chat, engine_settings, eventually,
        pools::{CHAT, Pools},
        prose, stream_of,
    },
};

/// Stands wherever a prompt could stand by mistake.
const SECRET: &str = "dolphinsecret";

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    assert!(!text.contains(SECRET) && !text.contains("sk-"), "{text}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The line of a request, once it is there.
async fn line_of(path: &Path, name: &str) -> Value {
    let find = || lines(path).into_iter().find(|line| line["request_id"] == name);
    eventually(&format!("{name} is logged"), async || find().is_some()).await;
    find().unwrap()
}

fn logged(settings: FrontendSettings, path: &Path) -> FrontendSettings {
    FrontendSettings { access_log: Some(AccessLogTarget::File(path.to_owned())), ..settings }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_says_who_asked_what_and_what_came_of_it() {
    let folder = tempdir().unwrap();
    let (path, keys) = (folder.path().join("access"), folder.path().join("keys"));
    fs::write(&keys, format!("{KEY} search")).unwrap();
    let api_keys = Some(Arc::new(ApiKeys::open(&keys).unwrap()));
    let rig = rig(1, |settings| FrontendSettings { api_keys, ..logged(settings, &path) }).await;
    let bearer = bearer(KEY);
    let send = async |method: Method, target: &str, name: &str, body: &Value| {
        let headers = [
            ("authorization", bearer.as_str()),
            ("x-request-id", name),
            ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ];
        rig.client.request(method, &format!("{}{target}", rig.public()), &headers, body).await
    };

    let body = chat("be brief", SECRET);
    let answer = send(Method::POST, &format!("{CHAT}?{SECRET}"), "whole", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let line = line_of(&path, "whole").await;
    let expected = json!({
        "request_id": "whole", "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "key": "search", "method": "POST",
        "path": CHAT, "version": "HTTP/1.1", "status": 200, "outcome": "ok", "model": MODEL, "worker": 1, "rank": 0,
        "stream": false, "prompt_tokens": answer.prompt_tokens(), "cached_tokens": answer.cached_tokens(),
        "completion_tokens": 4, "bytes_in": body.to_string().len(), "bytes_out": answer.text.len(),
    });
    let mut rest = line.as_object().unwrap().clone();
    let [time, first, duration] =
        ["time", "first_byte_ms", "duration_ms"].map(|name| rest.remove(name).unwrap());
    assert_eq!(Value::Object(rest), expected);
    let time = time.as_str().unwrap();
    assert!(time.ends_with('Z') && time.as_bytes()[10] == b'T' && time.len() == 27, "{time}");
    assert!(0.0 < first.as_f64().unwrap() && first.as_f64() <= duration.as_f64());

    let streamed = send(Method::POST, "/v1/completions", "stream", &stream_of(SECRET, 5)).await;
    let line = line_of(&path, "stream").await;
    let said = ["stream", "outcome", "completion_tokens", "bytes_out"].map(|name| line[name].clone());
    assert_eq!(said, [json!(true), json!("ok"), json!(5), json!(streamed.text.len())]);

    let other = json!({ "model": SECRET, "messages": [{ "role": "user", "content": SECRET }] });
    for (method, target, name, body, status, outcome, error) in [
        (Method::POST, CHAT, "unknown-model", &other, 404, "client_error", "model_not_found"),
        (Method::POST, CHAT, "unreadable", &json!(SECRET), 400, "client_error", "invalid_request_error"),
        (Method::GET, "/nowhere", "nowhere", &json!({}), 404, "client_error", "invalid_request_error"),
        (Method::PUT, CHAT, "put", &json!({}), 405, "client_error", "invalid_request_error"),
    ] {
        assert_eq!(send(method, target, name, body).await.status, status);
        let line = line_of(&path, name).await;
        assert_eq!(
            (&line["status"], &line["outcome"], &line["error"]),
            (&json!(status), &json!(outcome), &json!(error))
        );
        assert!(line.get("worker").is_none() && line.get("model").is_none(), "{line}");
    }
    send(Method::GET, "/v1/models", "models", &json!({})).await;
    assert_eq!(line_of(&path, "models").await["outcome"], "ok");

    let headers = [("x-request-id", "stranger"), ("authorization", "Bearer sk-not-one-of-them")];
    rig.client.request(Method::POST, &format!("{}{CHAT}", rig.public()), &headers, &body).await;
    let line = line_of(&path, "stranger").await;
    assert_eq!((&line["status"], &line["error"]), (&json!(401), &json!("invalid_api_key")));
    assert!(line.get("key").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_has_a_line_whenever_it_leaves() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("access");
    let slow = kvroute::worker::mock::MockSettings { speedup: 0.05, ..engine_settings() };
    let pools = Pools::of(vec![slow]).await;
    let rig = pools.behind_plan(|workers| planned(workers, |settings| logged(settings, &path))).await;
    let mut open = rig.client.open(&format!("{}/v1/completions", rig.public()), &stream_of("a", 1000)).await;
    let name = open.headers()["x-request-id"].to_str().unwrap().to_owned();
    let mut transcript = Transcript::default();
    transcript.read(open.body_mut(), |so_far| so_far.tokens() > 1).await;
    drop(open);
    let line = line_of(&path, &name).await;
    assert_eq!(
        (&line["status"], &line["outcome"], &line["worker"]),
        (&json!(200), &json!("cancelled"), &json!(1))
    );
    assert!(line["bytes_out"].as_u64() > Some(0));

    // Before there is an answer.
    let url = format!("{}{CHAT}", rig.public());
    let body = chat(&prose(1, 1000), "hello");
    let early = rig.client.request(Method::POST, &url, &[("x-request-id", "early")], &body);
    assert!(tokio::time::timeout(std::time::Duration::from_millis(300), early).await.is_err());
    let line = line_of(&path, "early").await;
    assert_eq!(line["outcome"], "cancelled");
    assert!(line.get("status").is_none() && line.get("first_byte_ms").is_none(), "{line}");
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_in_two_hops_names_both_workers() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("access");
    let pools = Pools::start(1, 1).await;
    let rig = pools.behind_plan(|workers| planned(workers, |settings| logged(settings, &path))).await;
    let headers = [("x-request-id", "split")];
    let answer =
        rig.client.request(Method::POST, &format!("{}{CHAT}", rig.public()), &headers, &chat("a", "b")).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let line = line_of(&path, "split").await;
    assert_eq!((&line["prefill_worker"], &line["worker"]), (&json!(1), &json!(2)));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_request_has_one_line_and_a_stop_waits_for_the_last() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("access");
    let rig = rig(2, |settings| logged(settings, &path)).await;
    let asked: Vec<_> = (0..40)
        .map(|number| {
            let (client, url) = (rig.client.clone(), format!("{}{CHAT}", rig.public()));
            let body = chat("a", &format!("question {number}"));
            tokio::spawn(async move {
                client.post(&url, &body).await.headers["x-request-id"].to_str().unwrap().to_owned()
            })
        })
        .collect();
    let mut told = Vec::new();
    for answer in asked {
        told.push(answer.await.unwrap());
    }
    let Rig { frontend, .. } = rig;
    assert!(frontend.stop().await);
    let mut logged: Vec<_> =
        lines(&path).iter().map(|line| line["request_id"].as_str().unwrap().to_owned()).collect();
    told.sort();
    logged.sort();
    assert_eq!(logged, told);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dash_is_the_standard_output() {
    let router = Process::start(&["frontend", "--port", "0", "--admin-port", "0", "--access-log", "-"]);
    let up = router.logged("frontend is up").await;
    let answer = Http::new().get(&format!("http://{}/health", up["public"].as_str().unwrap())).await;
    let printed = router.printed("\"path\":\"/health\"").await;
    assert!(printed.contains(answer.headers["x-request-id"].to_str().unwrap()), "{printed}");
}
