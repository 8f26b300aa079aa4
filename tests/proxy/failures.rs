//! Failures before the first byte.

use std::{net::TcpListener, time::Duration};

use http::Uri;
use kvroute::proxy::{ErrorKind, PoolSettings, Retry};

use crate::{
    router::Router,
    worker::{STREAM_HEAD, worker},
};

#[test]
fn a_refused_connection_is_safe_to_retry() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base: Uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    drop(listener);
    let error = Router::new(&PoolSettings::default()).post(&base).unwrap_err();
    assert_eq!((error.kind, error.retry()), (ErrorKind::Connect, Retry::Safe));
    assert!(error.to_string().contains(&base.to_string()), "{error}");
}

#[test]
fn a_worker_that_does_not_answer_is_given_up() {
    // Not a byte, or a head and not a byte of the body: the client could still be served elsewhere.
    for head in ["", STREAM_HEAD] {
        let base = worker(move |mut connection| {
            connection.request().unwrap();
            connection.send(head);
            connection.closed();
        });
        let settings =
            PoolSettings { first_byte_timeout: Duration::from_millis(100), ..PoolSettings::default() };
        let error = Router::new(&settings).post(&base).unwrap_err();
        assert_eq!((error.kind, error.retry()), (ErrorKind::FirstByteTimeout, Retry::Unsafe));
    }
}

#[test]
fn a_worker_that_hangs_up_or_talks_nonsense_is_named() {
    for (answer, kind) in [
        ("", ErrorKind::Reset),
        (STREAM_HEAD, ErrorKind::Reset),
        ("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", ErrorKind::Reset),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
            ErrorKind::InvalidResponse,
        ),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nno size\r\n", ErrorKind::InvalidResponse),
        ("SSH-2.0-OpenSSH_9.2\r\n\r\n", ErrorKind::InvalidResponse),
        (
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
            ErrorKind::InvalidResponse,
        ),
    ] {
        let base = worker(move |mut connection| {
            connection.request().unwrap();
            connection.send(answer);
        });
        let error = Router::new(&PoolSettings::default()).post(&base).unwrap_err();
        assert_eq!((error.kind, error.retry()), (kind, Retry::Unsafe), "{answer:?}: {error}");
    }
}
