//! What a worker is sent, and over which connection.

use std::{
    sync::{Arc, Barrier},
    thread,
    time::Duration,
};

use http::{Request, Uri};
use kvroute::proxy::{ErrorKind, PoolSettings, Retry};

use crate::{
    router::{Log, Router, wait_for},
    worker::{EVENT, STREAM_HEAD, worker},
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
        for round in 0.. {
            if connection.request().is_none() {
                return;
            }
            let number = connection.number;
            match round % 3 {
                0 => connection.send(format!("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{number}")),
                1 => connection.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
                _ => {
                    connection.send(STREAM_HEAD);
                    for piece in [EVENT, &format!("data: {number}\n\n")] {
                        connection.chunk(piece);
                    }
                    connection.send("0\r\n\r\n");
                }
            }
        }
    });
    let router = Router::new(&PoolSettings::default());
    for _ in 0..5 {
        assert_eq!(router.post(&base).unwrap().body(), "0");
        assert_eq!(router.post(&base).unwrap().body(), "");
        assert!(router.post(&base).unwrap().body().ends_with(b"data: 0\n\n"));
    }
}

#[test]
fn a_connection_that_nobody_uses_is_closed_after_its_time() {
    let log = Log::default();
    let closed = log.clone();
    let base = worker(move |mut connection| {
        connection.request().unwrap();
        connection.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
        connection.closed();
        closed.note(format!("closed {}", connection.number));
    });
    let keep_alive = Duration::from_millis(50);
    let router = Router::new(&PoolSettings { keep_alive, ..PoolSettings::default() });
    // Twice, since the sweep ends when nothing is left.
    for number in ["closed 0", "closed 1"] {
        router.post(&base).unwrap();
        wait_for(number, || log.has(number));
    }
}

#[test]
fn no_more_connections_are_kept_than_may_be() {
    let log = Log::default();
    let closed = log.clone();
    let both = Arc::new(Barrier::new(2));
    let base = worker(move |mut connection| {
        connection.request().unwrap();
        // Both requests are under way at once, so that there are two connections.
        both.wait();
        connection.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
        connection.closed();
        closed.note("closed");
    });
    let router = Router::new(&PoolSettings { max_idle_connections: 1, ..PoolSettings::default() });
    thread::scope(|threads| {
        let asking = [(); 2].map(|()| threads.spawn(|| router.post(&base).unwrap()));
        asking.into_iter().for_each(|asking| assert_eq!(asking.join().unwrap().status(), 200));
    });
    wait_for("the second is closed", || !log.lines().is_empty());
    thread::sleep(Duration::from_millis(50));
    assert_eq!(log.lines().len(), 1);
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
