//! What a worker is sent, and over which connection.

use std::{thread, time::Duration};

use http::{Request, Uri};
use kvroute::proxy::{ErrorKind, PoolSettings, Retry};

use crate::{
    router::{Log, Router, wait_for},
    worker::worker,
};

#[test]
fn a_request_arrives_whole_and_only_with_what_is_meant_for_the_worker() {
    let seen = Log::default();
    let record = seen.clone();
    let base = worker(move |mut connection| {
        let (head, body) = connection.request().unwrap();
        record.note(head);
        record.note(String::from_utf8(body).unwrap());
        connection
            .send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: x-a\r\nx-a: 1\r\nx-b: 2\r\n\r\nok");
        connection.closed();
    });
    let prefixed: Uri = format!("{base}engine/").parse().unwrap();
    let request = Request::post("/v1/completions?x=%20y")
        .header("host", "public.example")
        .header("connection", "keep-alive, x-hop")
        .header("x-hop", "1")
        .header("te", "trailers")
        .header("x-request-id", "rq-9")
        .header("content-length", "999")
        .body("{\"prompt\":[1]}")
        .unwrap();
    let response = Router::new(&PoolSettings::default()).ask(&prefixed, request).unwrap();
    let lines = seen.lines();
    let mut head: Vec<&str> = lines[0].trim_end().lines().collect();
    head[1..].sort_unstable();
    let host = format!("host: {}", base.authority().unwrap());
    let expected = [
        "post /engine/v1/completions?x=%20y http/1.1",
        "content-length: 14",
        &host,
        "via: 1.1 kvroute",
        "x-request-id: rq-9",
    ];
    assert_eq!(head, expected);
    assert_eq!(lines[1], "{\"prompt\":[1]}");
    assert!(!response.headers().contains_key("connection") && !response.headers().contains_key("x-a"));
    assert_eq!(response.headers()["x-b"], "2");
}

#[test]
fn a_connection_is_used_again_after_a_complete_answer() {
    let base = worker(|mut connection| {
        while connection.request().is_some() {
            let number = connection.number;
            connection.send(format!("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{number}"));
        }
    });
    let router = Router::new(&PoolSettings::default());
    for _ in 0..5 {
        assert_eq!(router.post(&base).unwrap().body(), "0");
        // The connection goes back to the pool on a task of its own.
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_kept_connection_that_was_closed_is_replaced() {
    let log = Log::default();
    let closed = log.clone();
    let base = worker(move |mut connection| {
        connection.request().unwrap();
        let number = connection.number;
        connection.send(format!("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{number}"));
        drop(connection);
        closed.note("closed");
    });
    let router = Router::new(&PoolSettings::default());
    assert_eq!(router.post(&base).unwrap().body(), "0");
    wait_for("the close", || log.has("closed"));
    thread::sleep(Duration::from_millis(50));
    assert_eq!(router.post(&base).unwrap().body(), "1");
}

#[test]
fn a_request_lost_on_a_kept_connection_is_not_sent_twice_behind_our_back() {
    let log = Log::default();
    let requests = log.clone();
    let base = worker(move |mut connection| {
        connection.request().unwrap();
        requests.note("request");
        connection.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
        if connection.request().is_some() {
            requests.note("request");
        }
    });
    let router = Router::new(&PoolSettings::default());
    router.post(&base).unwrap();
    thread::sleep(Duration::from_millis(20));
    let error = router.post(&base).unwrap_err();
    assert_eq!((error.kind, error.retry()), (ErrorKind::Reset, Retry::Unsafe));
    assert_eq!(log.lines().len(), 2, "the worker may have run it, so it is the caller's to decide");
}
