//! A small HTTP client and a small mock engine, shared by the tests of the mock engine.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of it")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use kvroute::prompt::Encoder;
use kvroute::worker::mock::{MockEngine, MockSettings};
use serde_json::{Value, json};

/// As fast as it goes, with a cache of 63 usable blocks of 16.
pub fn settings() -> MockSettings {
    let encoder = Arc::new(Encoder::tiny().unwrap());
    MockSettings {
        model: "m".into(),
        loras: vec!["ad1".into()],
        num_gpu_blocks: 64,
        max_model_len: 512,
        speedup: f64::INFINITY,
        ..MockSettings::new(encoder)
    }
}

pub async fn start() -> MockEngine {
    MockEngine::start(settings()).await.unwrap()
}

/// A token list that shares no block with one of another `family`.
pub fn tokens(family: u32, count: u32) -> Vec<u32> {
    let name = [20 + family % 100, 20 + family / 100];
    let rest = (0..).map(|n| 20 + (n * 7 + family * 31) % 100);
    name.into_iter().chain(rest).take(count as usize).collect()
}

pub fn client() -> Client<HttpConnector, Full<Bytes>> {
    Client::builder(TokioExecutor::new()).build_http()
}

pub struct Reply {
    pub status: StatusCode,
    pub headers: http::HeaderMap,
    pub body: Bytes,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }

    /// The `data:` payloads of a stream.
    pub fn events(&self) -> Vec<String> {
        let text = std::str::from_utf8(&self.body).unwrap();
        assert!(text.ends_with("\n\n"), "{text}");
        text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap().to_owned()).collect()
    }

    /// The parsed chunks of a stream that ended as it should.
    pub fn chunks(&self) -> Vec<Value> {
        let mut events = self.events();
        assert_eq!(events.pop().unwrap(), "[DONE]");
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}

pub async fn post_with(engine: &MockEngine, path: &str, body: &Value, headers: &[(&str, &str)]) -> Reply {
    post_raw(engine.http_addr(), path, body.to_string(), headers).await
}

pub async fn post_raw(address: SocketAddr, path: &str, body: String, headers: &[(&str, &str)]) -> Reply {
    let mut request =
        Request::post(format!("http://{address}{path}")).header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = client().request(request.body(Full::from(body)).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Reply { status: parts.status, headers: parts.headers, body }
}

pub async fn post(engine: &MockEngine, path: &str, body: Value) -> Reply {
    post_with(engine, path, &body, &[]).await
}

pub async fn get(engine: &MockEngine, path: &str) -> Reply {
    let request = Request::get(format!("http://{}{path}", engine.http_addr())).body(Full::default()).unwrap();
    let (parts, body) = client().request(request).await.unwrap().into_parts();
    Reply { status: parts.status, headers: parts.headers, body: body.collect().await.unwrap().to_bytes() }
}

/// Completes a token list with one output token and returns the cached tokens.
pub async fn complete(engine: &MockEngine, prompt: &[u32]) -> u64 {
    let body = json!({"model": "m", "prompt": prompt, "max_tokens": 1});
    let reply = post(engine, "/v1/completions", body).await;
    assert_eq!(reply.status, 200, "{:?}", reply.body);
    reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

/// Waits until `ready`, which something else will make true.
pub async fn eventually(what: &str, mut ready: impl FnMut() -> bool) {
    for _ in 0..500 {
        if ready() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not within five seconds: {what}");
}
