//! Streams: passed as they come, cut at either end.

use std::{io::Read as _, time::Duration};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kvroute::proxy::{ErrorKind, PoolSettings, Retry};

use crate::{
    router::{Log, Router, read_chunked, wait_for},
    worker::{EVENT, LAST, STREAM_HEAD, worker},
};

#[test]
fn a_stream_passes_unchanged_however_it_is_chunked() {
    let stream = format!(": ping\r\n\r\n{EVENT}{EVENT}{EVENT}{LAST}");
    for size in [1, 3, 7, 64, 10_000] {
        let sent = stream.clone();
        let base = worker(move |mut connection| {
            connection.request().unwrap();
            connection.send(STREAM_HEAD);
            for chunk in sent.as_bytes().chunks(size) {
                connection.chunk(chunk);
            }
            connection.send("0\r\n\r\n");
            connection.closed();
        });
        let router = Router::new(&PoolSettings::default());
        let (head, body, complete) = read_chunked(&mut router.client(&base));
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert_eq!(body, stream.as_bytes());
        assert!(complete);
        wait_for("the end", || router.log.has("dropped"));
        let told = [
            "first byte",
            "first token",
            "step",
            "step",
            "step",
            "usage 200 3 Some(192)",
            "Complete",
            "dropped",
        ];
        assert_eq!(router.log.lines(), told, "chunks of {size}");
    }
}

#[test]
fn a_client_that_leaves_is_noticed_by_the_worker_at_once() {
    let gone = Log::default();
    let noticed = gone.clone();
    let base = worker(move |mut connection| {
        connection.request().unwrap();
        connection.send(STREAM_HEAD);
        connection.chunk(EVENT);
        connection.closed();
        noticed.note("gone");
    });
    let router = Router::new(&PoolSettings::default());
    let mut client = router.client(&base);
    let mut wire = Vec::new();
    while !wire.ends_with(b"\n\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        wire.extend(byte);
    }
    assert!(!gone.has("gone") && !router.log.has("dropped"));
    drop(client);
    wait_for("the worker's notice", || gone.has("gone"));
    wait_for("the drop", || router.log.has("dropped"));
    assert_eq!(router.log.lines(), ["first byte", "first token", "step", "Dropped", "dropped"]);
}

#[test]
fn a_client_that_leaves_before_the_first_byte_is_noticed_too() {
    for head_first in [false, true] {
        let log = Log::default();
        let noticed = log.clone();
        let base = worker(move |mut connection| {
            connection.request().unwrap();
            if head_first {
                connection.send(STREAM_HEAD);
            }
            noticed.note("asked");
            connection.closed();
            noticed.note("gone");
        });
        let router = Router::new(&PoolSettings::default());
        let client = router.client(&base);
        wait_for("the request", || log.has("asked"));
        drop(client);
        wait_for("the worker's notice", || log.has("gone"));
        assert!(router.log.lines().is_empty(), "nothing was relayed");
    }
}

#[test]
fn a_stream_that_is_cut_ends_with_an_error_and_not_well() {
    // The worker breaks off between two events, in the middle of one, or goes silent.
    for (tail, silent, kind) in [
        ("", false, ErrorKind::Cut),
        ("data: {\"choices\":[{", false, ErrorKind::Cut),
        (": half a comment\r", true, ErrorKind::IdleTimeout),
    ] {
        let base = worker(move |mut connection| {
            connection.request().unwrap();
            connection.send(STREAM_HEAD);
            connection.chunk(format!("{EVENT}{tail}"));
            if silent {
                connection.closed();
            }
        });
        let settings = PoolSettings { idle_timeout: Duration::from_millis(50), ..PoolSettings::default() };
        let router = Router::new(&settings);
        let (_, body, complete) = read_chunked(&mut router.client(&base));
        assert!(!complete, "the final chunk must not come");
        let body = String::from_utf8(body).unwrap();
        let rest = body.strip_prefix(&format!("{EVENT}{tail}")).expect("the worker's bytes come first");
        let event = rest.trim_start_matches('\n').strip_prefix("data: ").expect("one more event");
        let event: serde_json::Value = serde_json::from_str(event.strip_suffix("\n\n").unwrap()).unwrap();
        assert_eq!(event["error"]["code"], kind.name());
        assert_eq!(rest.starts_with("\n\n"), !tail.is_empty(), "an event begins where an event can");
        assert!(!body.contains("[DONE]"));
        let told = router.log.lines();
        assert_eq!(told[3..], [format!("Cut({kind:?})"), "dropped".to_owned()]);
    }
}

#[test]
fn a_cut_stream_is_reset_over_http_2() {
    let base = worker(|mut connection| {
        connection.request().unwrap();
        connection.send(STREAM_HEAD);
        connection.chunk(EVENT);
    });
    let router = Router::new(&PoolSettings::default());
    let address = router.server(&base);
    let (body, error) = router.runtime.block_on(async {
        let stream = TokioIo::new(tokio::net::TcpStream::connect(address).await.unwrap());
        let (mut client, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        tokio::spawn(connection);
        let request = Request::post("http://router/v1/completions").body(Full::<Bytes>::from("{}")).unwrap();
        let mut response = client.send_request(request).await.unwrap();
        let mut body = Vec::new();
        loop {
            match response.body_mut().frame().await.expect("not a clean end") {
                Ok(frame) => body.extend_from_slice(frame.data_ref().unwrap()),
                Err(error) => break (String::from_utf8(body).unwrap(), error),
            }
        }
    });
    assert!(body.starts_with(EVENT) && body.contains("data: {\"error\""), "{body}");
    // hyper does not export the type that says so.
    assert!(format!("{error:?}").contains("Reset("), "{error:?}");
}

#[test]
fn a_stream_that_breaks_off_after_its_done_gets_no_error_event() {
    let base = worker(|mut connection| {
        connection.request().unwrap();
        connection.send(STREAM_HEAD);
        connection.chunk(format!("{EVENT}{LAST}"));
    });
    let router = Router::new(&PoolSettings::default());
    let mut client = router.client(&base);
    let mut wire = String::new();
    let _ = client.read_to_string(&mut wire);
    assert!(wire.contains("[DONE]") && !wire.contains("\"error\""), "{wire}");
    assert!(!wire.ends_with("0\r\n\r\n"));
}

#[test]
fn a_body_that_does_not_stream_is_cut_short() {
    let base = worker(|mut connection| {
        connection.request().unwrap();
        connection
            .send("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"id\":");
    });
    let router = Router::new(&PoolSettings::default());
    let error = router.post(&base).unwrap_err();
    assert_eq!((error.kind, error.retry()), (ErrorKind::Cut, Retry::Unsafe));
    assert_eq!(router.log.lines(), ["first byte", "Cut(Cut)", "dropped"]);
}
