//! How much gets in: heads, bodies that do not come, requests and connections at a time.

use std::time::Duration;

use http::Method;
use kvroute::frontend::FrontendSettings;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, timeout},
};

use crate::{
    planned, rig,
    rig::{
        Http, MODEL, Rig, chat, eventually,
        pools::CHAT,
        upstream::{Upstream, plain},
    },
};

#[tokio::test(flavor = "multi_thread")]
async fn a_head_beyond_the_limit_is_a_431_that_says_so() {
    let rig = rig(1, |settings| FrontendSettings { max_header_bytes: 4096, ..settings }).await;
    let url = format!("{}{CHAT}", rig.public());
    let http2 = Http::over_http2();
    for client in [&rig.client, &http2] {
        let long = "x".repeat(4096);
        let answer = client.request(Method::POST, &url, &[("x-long", &long)], &chat("a", "b")).await;
        assert_eq!(answer.status, 431, "{}", answer.text);
        assert!(answer.json["error"]["message"].as_str().unwrap().contains("--max-header-bytes"));
        let answer = client.request(Method::POST, &url, &[("x-long", &long[..3000])], &chat("a", "b")).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    // What the server itself does not take has no body.
    let mut request = http::Request::get(format!("{}/health", rig.public()));
    for number in 0..200 {
        request = request.header(format!("x-{number}"), "1");
    }
    let answer = rig.client.send(request.body(http_body_util::Full::default()).unwrap()).await;
    assert_eq!((answer.status.as_u16(), answer.text.as_str()), (431, ""));
    assert_eq!(rig.metric("kvroute_turned_away_total", "reason=\"header_too_large\"").await, 2.0);
    assert_eq!(rig.post(CHAT, &chat("a", "b")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_request_too_many_is_a_503_and_a_place_is_free_when_an_answer_is_over() {
    let upstream = Upstream::start(plain).await;
    let plan = planned(vec![upstream.worker(1, MODEL)], |settings| FrontendSettings {
        max_concurrent_requests: Some(2),
        ..settings
    });
    let rig = Rig::start_plan(plan, Vec::new()).await;
    let body = json!({ "model": MODEL, "prompt": [1, 2, 3] });
    let url = format!("{}/v1/completions", rig.public());
    let held = upstream.hold().await;
    let open: Vec<_> = (0..2)
        .map(|_| {
            let (client, url, body) = (rig.client.clone(), url.clone(), body.clone());
            tokio::spawn(async move { client.post(&url, &body).await.status })
        })
        .collect();
    eventually("two are in", async || rig.metric("kvroute_open_requests", "").await == 2.0).await;
    for path in ["/v1/completions", CHAT, "/v1/embeddings"] {
        let answer = rig.post(path, &body).await;
        assert_eq!(answer.status, 503, "{}", answer.text);
        assert_eq!(answer.json["error"]["code"], "too_many_requests");
        assert!(answer.headers.contains_key("retry-after") && answer.headers.contains_key("x-request-id"));
    }
    assert_eq!(rig.client.get(&format!("{}/v1/models", rig.public())).await.status, 200, "asking is free");
    drop(held);
    for answer in open {
        assert_eq!(answer.await.unwrap(), 200);
    }
    assert_eq!(rig.post("/v1/completions", &body).await.status, 200);
    assert_eq!(rig.metric("kvroute_turned_away_total", "reason=\"too_many_requests\"").await, 3.0);

    // Nor does one stay taken by a client that left.
    let held = upstream.hold().await;
    for _ in 0..5 {
        let left = rig.client.post(&url, &body);
        assert!(timeout(Duration::from_millis(100), left).await.is_err());
        eventually("its place is free", async || rig.metric("kvroute_open_requests", "").await == 0.0).await;
    }
    drop(held);
    rig.wait_for_idle().await;
}

/// Reads to the end, which a server that closes makes.
async fn rest(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = timeout(Duration::from_secs(60), stream.read_to_end(&mut answer)).await.expect("it stays open");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_has_one_host() {
    let rig = rig(1, |settings| settings).await;
    for (head, status) in [
        ("GET /health HTTP/1.1\r\nhost: x\r\n", 200),
        ("GET /health HTTP/1.0\r\n", 200),
        ("GET /health HTTP/1.1\r\n", 400),
        ("GET /health HTTP/1.1\r\nhost: x\r\nhost: x\r\n", 400),
    ] {
        let mut stream = TcpStream::connect(rig.frontend.public_addr()).await.unwrap();
        stream.write_all(format!("{head}connection: close\r\n\r\n").as_bytes()).await.unwrap();
        let answer = rest(&mut stream).await;
        assert_eq!(answer[9..12], status.to_string(), "{head:?}: {answer}");
    }
    assert_eq!(rig.metric("kvroute_turned_away_total", "reason=\"no_host\"").await, 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_slow_to_ask_is_let_go_and_whoever_waits_for_an_answer_is_not() {
    let read_timeout = Duration::from_millis(400);
    let upstream = Upstream::start(plain).await;
    let plan =
        planned(vec![upstream.worker(1, MODEL)], |settings| FrontendSettings { read_timeout, ..settings });
    let rig = Rig::start_plan(plan, Vec::new()).await;
    let connect = async || TcpStream::connect(rig.frontend.public_addr()).await.unwrap();
    let began = Instant::now();
    for sent in
        ["", "P", "PRI * HTTP/2.0\r\n", "GET /health HT", "GET /health HTTP/1.1\r\nhost: x\r\nx-slow: "]
    {
        let mut stream = connect().await;
        stream.write_all(sent.as_bytes()).await.unwrap();
        assert!(!rest(&mut stream).await.contains(" 200 "), "{sent:?}");
    }
    assert!(began.elapsed() >= 5 * read_timeout);

    // One that has been served may ask again for a while, and is then let go.
    let mut kept = connect().await;
    kept.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let answer = rest(&mut kept).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");

    let mut body = connect().await;
    let head =
        format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\nconnection: close\r\n\r\n{{");
    body.write_all(head.as_bytes()).await.unwrap();
    let answer = rest(&mut body).await;
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("--request-read-timeout"), "{answer}");

    let held = upstream.hold().await;
    let (client, url) = (rig.client.clone(), format!("{}/v1/completions", rig.public()));
    let waiting =
        tokio::spawn(
            async move { client.post(&url, &json!({ "model": MODEL, "prompt": [1] })).await.status },
        );
    tokio::time::sleep(5 * read_timeout).await;
    drop(held);
    assert_eq!(waiting.await.unwrap(), 200);
    eventually("no connection is left", async || {
        rig.metric("kvroute_connections", "listener=\"public\"").await == 0.0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_beyond_the_limit_wait_for_one_to_close() {
    let rig = rig(1, |settings| FrontendSettings { max_connections: Some(2), ..settings }).await;
    let at = rig.frontend.public_addr();
    let (first, second) = (TcpStream::connect(at).await.unwrap(), TcpStream::connect(at).await.unwrap());
    eventually("two are open", async || {
        rig.metric("kvroute_connections", "listener=\"public\"").await == 2.0
    })
    .await;
    let (client, url) = (rig.client.clone(), format!("{}/health", rig.public()));
    let mut third = tokio::spawn(async move { client.get(&url).await.json });
    assert!(timeout(Duration::from_millis(300), &mut third).await.is_err());
    drop((first, second));
    let answer: Value = third.await.unwrap();
    assert_eq!(answer["status"], "ok");
}
