//! A client that leaves is noticed at once: its engine stops, and nothing stays booked.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod rig;

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpListener,
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use kvroute::{fleet::WorkerSpec, select::Mode, worker::mock::MockSettings};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::rig::{Http, MODEL, Rig, Transcript, engine_settings, eventually, plan, prose, stream_of};

/// An engine that would be at it for minutes.
fn slow() -> MockSettings {
    MockSettings {
        speedup: 1.0,
        decode_tokens_per_second: 20.0,
        prefill_tokens_per_second: 4_000.0,
        step_overhead: Duration::from_millis(1),
        ..engine_settings()
    }
}

/// One whose prefill takes minutes.
fn slow_to_start() -> MockSettings {
    MockSettings { prefill_tokens_per_second: 100.0, max_num_batched_tokens: 32, ..slow() }
}

async fn wait_until_booked(rig: &Rig, what: &str) {
    eventually(&format!("the request runs and has {what} booked"), async || {
        let load = &rig.workers().await[0]["load"];
        rig.engines[0].running() == 1 && load["requests"] == 1 && load[what] != 0
    })
    .await;
}

/// The engine stops, the router's books are empty, and the request counts as left by its client.
async fn expect_all_returned(rig: &Rig) {
    rig.wait_for_free_engines().await;
    rig.wait_for_idle().await;
    eventually("the request is counted as cancelled", async || rig.outcomes("cancelled").await == 1).await;
    assert_eq!(rig.metric("kvroute_requests_total", "").await, 1.0, "and as nothing else");
}

/// Sends a request, leaves while it waits for its answer.
async fn leave_before_the_answer(rig: &Rig, client: &Http, path: &str, body: &Value) {
    let (client, url, sent) = (client.clone(), format!("{}{path}", rig.public()), body.clone());
    let request = tokio::spawn(async move { client.post(&url, &sent).await });
    wait_until_booked(rig, "prefill_tokens").await;
    assert!(!request.is_finished(), "the answer takes minutes");
    request.abort();
    assert!(request.await.unwrap_err().is_cancelled());
}

async fn leave_in_the_middle(client: Http) {
    let rig = Rig::start_with(Mode::Kv, vec![slow()]).await;
    let url = format!("{}/v1/completions", rig.public());
    let mut response = client.open(&url, &stream_of(&prose(1, 100), 4_000)).await;
    let mut seen = Transcript::default();
    seen.read(response.body_mut(), |seen| seen.tokens() >= 3).await;
    assert!(!seen.broken && !seen.is_done(), "{}", seen.text);
    wait_until_booked(&rig, "decode_blocks").await;
    assert_eq!(rig.workers().await[0]["load"]["prefill_tokens"], 0, "the prefill is over");
    assert!(rig.engines[0].used_blocks() > 0);
    drop(response);
    expect_all_returned(&rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_the_middle_of_a_stream() {
    leave_in_the_middle(Http::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_the_middle_of_a_stream_over_http2() {
    // The connection stays: only the stream is given up.
    leave_in_the_middle(Http::over_http2()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_first_token_of_a_stream() {
    let rig = Rig::start_with(Mode::Kv, vec![slow_to_start()]).await;
    leave_before_the_answer(&rig, &rig.client, "/v1/completions", &stream_of(&prose(2, 1_000), 10)).await;
    expect_all_returned(&rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_first_token_of_a_stream_over_http2() {
    let rig = Rig::start_with(Mode::Kv, vec![slow_to_start()]).await;
    let client = Http::over_http2();
    leave_before_the_answer(&rig, &client, "/v1/completions", &stream_of(&prose(2, 1_000), 10)).await;
    expect_all_returned(&rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn before_an_answer_that_does_not_stream() {
    let rig = Rig::start_with(Mode::Kv, vec![slow()]).await;
    let body = json!({ "model": MODEL, "max_tokens": 4_000, "prompt": prose(3, 100) });
    leave_before_the_answer(&rig, &rig.client, "/v1/completions", &body).await;
    expect_all_returned(&rig).await;
}

/// A line too many behind a request is the beginning of the next one, behind which the server does not look for the end.
#[tokio::test(flavor = "multi_thread")]
async fn with_a_line_too_many_behind_its_request() {
    // Nothing is written meanwhile that would show it.
    let slower = MockSettings { prefill_tokens_per_second: 10.0, ..slow_to_start() };
    let rig = Rig::start_with(Mode::Kv, vec![slower]).await;
    let body = stream_of(&prose(5, 1_000), 10).to_string();
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}\r\n",
        body.len()
    );
    let mut client =
        tokio::net::TcpStream::connect(rig.public().trim_start_matches("http://")).await.unwrap();
    client.write_all(request.as_bytes()).await.unwrap();
    wait_until_booked(&rig, "prefill_tokens").await;
    drop(client);
    expect_all_returned(&rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn and_leaves_the_blocks_that_were_computed_for_the_next_one() {
    let rig = Rig::start_with(Mode::Kv, vec![slow()]).await;
    let body = json!({ "model": MODEL, "max_tokens": 4_000, "prompt": prose(4, 100) });
    leave_before_the_answer(&rig, &rig.client, "/v1/completions", &body).await;
    expect_all_returned(&rig).await;
    rig.wait_for_events().await;
    let next = json!({ "model": MODEL, "max_tokens": 1, "prompt": prose(4, 100) });
    let predicted = rig.explain(&next).await["choice"]["overlap_blocks"].as_u64().unwrap();
    let answer = rig.post("/v1/completions", &next).await;
    assert!(answer.cached_tokens() > 0, "{}", answer.text);
    assert_eq!(predicted.min((answer.prompt_tokens() - 1) / 16) * 16, answer.cached_tokens());
}

/// A host that vanishes cannot be had here: what is looked at is whether the system will ask.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_silent_is_asked_whether_it_is_there() {
    let rig = Rig::start(Mode::RoundRobin, 1).await;
    for url in [rig.public(), rig.admin()] {
        let client = tokio::net::TcpStream::connect(url.trim_start_matches("http://")).await.unwrap();
        let ports = [client.peer_addr().unwrap(), client.local_addr().unwrap()];
        let [server, client_port] = ports.map(|address| format!(":{:04X}", address.port()));
        // By the timer that runs: 2 is that of keep-alive (proc_net_tcp.txt).
        eventually("the system will ask", async || {
            let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
            let mut rows = table.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
            rows.any(|row| {
                row[1].ends_with(&server) && row[2].ends_with(&client_port) && row[5].starts_with("02:")
            })
        })
        .await;
    }
}

/// A worker that says `answer` to one request, and tells when it has read it and when its connection is closed.
fn watching(answer: &'static str) -> (WorkerSpec, Receiver<Instant>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let worker = WorkerSpec::new(&format!("http://{}", listener.local_addr().unwrap()), MODEL);
    let (tell, told) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).unwrap() > 0 {}
            // The look at its health when the frontend starts.
            if !head.starts_with("POST") {
                continue;
            }
            let length = head.to_ascii_lowercase();
            let length =
                length.split_once("content-length: ").unwrap().1.lines().next().unwrap().parse().unwrap();
            stream.read_exact(&mut vec![0; length]).unwrap();
            stream.get_mut().write_all(answer.as_bytes()).unwrap();
            tell.send(Instant::now()).unwrap();
            while stream.read(&mut [0; 64]).is_ok_and(|read| read > 0) {}
            let _ = tell.send(Instant::now());
        }
    });
    (worker, told)
}

const BEGUN: &str = concat!(
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
    "2c\r\ndata: {\"choices\":[{\"index\":0,\"text\":\"x\"}]}\n\n\r\n",
);

/// An engine stops when its connection closes, so that is what may not be waited for. What is promised is a tenth of a second; the bound
/// here has room for a machine that does other things.
#[tokio::test(flavor = "multi_thread")]
async fn and_the_worker_s_connection_closes_at_once() {
    for (how, client) in [("HTTP/1.1", Http::new()), ("HTTP/2", Http::over_http2())] {
        for begun in [true, false] {
            let (worker, told) = watching(if begun { BEGUN } else { "" });
            let rig = Rig::start_plan(plan(Mode::RoundRobin, vec![worker]), Vec::new()).await;
            let (client, url) = (client.clone(), format!("{}/v1/completions", rig.public()));
            let request = tokio::spawn(async move {
                let mut response = client.open(&url, &stream_of(&prose(1, 10), 10)).await;
                Transcript::of(response.body_mut()).await
            });
            let told = tokio::task::spawn_blocking(move || {
                told.recv().unwrap();
                told
            })
            .await
            .unwrap();
            if begun {
                eventually("the answer begins", async || {
                    rig.metric("kvroute_time_to_first_byte_seconds_count", "").await == 1.0
                })
                .await;
            }
            let left = Instant::now();
            request.abort();
            let closed = tokio::task::spawn_blocking(move || told.recv().unwrap()).await.unwrap();
            let took = closed.saturating_duration_since(left);
            println!("{how}, answer begun: {begun}: closed after {took:?}");
            assert!(took < Duration::from_secs(1), "{how}, answer begun: {begun}: {took:?}");
            rig.wait_for_idle().await;
            assert_eq!(rig.outcomes("cancelled").await, 1);
        }
    }
}
