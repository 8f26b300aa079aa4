//! Answers that do not stream.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt;
use kvroute::proxy::PoolSettings;

use crate::{
    router::{Router, wait_for},
    worker::worker,
};

#[test]
fn an_answer_of_one_piece_keeps_status_length_and_usage() {
    let json = r#"{"usage":{"prompt_tokens":5,"completion_tokens":2},"error":"x"}"#;
    let base = worker(move |mut connection| {
        connection.request().unwrap();
        let length = json.len();
        connection.send(format!(
            "HTTP/1.1 418 Odd\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{json}"
        ));
        connection.closed();
    });
    let router = Router::new(&PoolSettings::default());
    let response = router.post(&base).unwrap();
    assert_eq!(response.status(), 418);
    assert_eq!(response.headers()["content-length"], json.len().to_string());
    assert_eq!(response.body(), json);
    assert_eq!(router.log.lines(), ["first byte", "usage 5 2 None", "Complete", "dropped"]);
}

#[test]
fn a_length_beside_chunks_is_not_believed() {
    let json = r#"{"object":"list","data":[1,2,3]}"#;
    let base = worker(move |mut connection| {
        connection.request().unwrap();
        connection.send(format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{json}\r\n0\r\n\r\n",
            json.len()
        ));
        connection.closed();
    });
    let router = Router::new(&PoolSettings::default());
    let response = router.post(&base).unwrap();
    assert_eq!(response.body(), json);
    assert!(!response.headers().contains_key("content-length"));
}

#[test]
fn an_empty_answer_is_complete_at_once() {
    let base = worker(|mut connection| {
        while connection.request().is_some() {
            connection.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
        }
    });
    let router = Router::new(&PoolSettings::default());
    assert!(router.post(&base).unwrap().body().is_empty());
    assert_eq!(router.log.lines(), ["Complete", "dropped"]);
}

#[test]
fn trailers_pass() {
    let base = worker(|mut connection| {
        connection.request().unwrap();
        connection.send("HTTP/1.1 200 OK\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n");
        connection.chunk("abc");
        connection.send("0\r\nx-sum: 7\r\n\r\n");
        connection.closed();
    });
    let router = Router::new(&PoolSettings::default());
    let head = Request::get("/").body(()).unwrap().into_parts().0;
    let body = router.runtime.block_on(async {
        let answer = router.pool.forward(&base, &head, Bytes::new()).await.unwrap();
        answer.relay(()).into_body().collect().await.unwrap()
    });
    assert_eq!(body.trailers().unwrap()["x-sum"], "7");
}

#[test]
fn a_large_body_waits_for_the_client_to_read() {
    const SIZE: usize = 64 << 20;
    let written = Arc::new(AtomicUsize::new(0));
    let progress = Arc::clone(&written);
    let base = worker(move |mut connection| {
        connection.request().unwrap();
        connection.send(format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {SIZE}\r\n\r\n"
        ));
        let piece: Vec<u8> = (0..=255).cycle().take(1 << 16).collect();
        for _ in 0..SIZE / piece.len() {
            connection.send(&piece);
            progress.fetch_add(piece.len(), Ordering::Relaxed);
        }
        connection.closed();
    });
    let settings = PoolSettings { idle_timeout: Duration::from_secs(1), ..PoolSettings::default() };
    let router = Router::new(&settings);
    let mut client = BufReader::new(router.client(&base));
    // The client does not read: what the worker can write is what buffers on the way hold, most of them the system's.
    let before = loop {
        let before = written.load(Ordering::Relaxed);
        thread::sleep(Duration::from_millis(200));
        if before > 0 && before == written.load(Ordering::Relaxed) {
            break before;
        }
    };
    assert!(
        before < SIZE / 2,
        "{before} of {SIZE} bytes were taken from the worker, and the client read none"
    );
    // The client's pause is longer than the worker may be silent, which is not the worker's fault.
    thread::sleep(Duration::from_millis(1500));
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        client.read_line(&mut line).unwrap();
    }
    let mut expected = (0..=255_u8).cycle();
    let mut piece = vec![0; 1 << 16];
    for _ in 0..SIZE / piece.len() {
        client.read_exact(&mut piece).unwrap();
        assert!(piece.iter().all(|&byte| Some(byte) == expected.next()));
    }
    wait_for("the end", || router.log.has("Complete"));
}
