//! The proxy between real sockets: a worker that does as each test says, a server in the middle, a client that reads
//! the bytes on the wire.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

use std::{
    convert::Infallible,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kvroute::proxy::{End, ErrorKind, Observer, Pool, PoolSettings, ProxyError, Retry, Usage};
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};

const PATIENCE: Duration = Duration::from_secs(2);
const EVENT: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hé 漢\"}}]}\n\n";
const LAST: &str = concat!(
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":200,\"completion_tokens\":3,",
    "\"prompt_tokens_details\":{\"cached_tokens\":192}}}\n\n",
    "data: [DONE]\n\n",
);
const STREAM_HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

// ---- the worker ----

/// A connection to the worker, as the worker sees it.
struct Connection {
    /// 0 for the first connection, 1 for the next.
    number: usize,
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Reads a request; `None` once the other side has closed.
    fn request(&mut self) -> Option<(String, Vec<u8>)> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.stream.read_line(&mut head).unwrap_or(0) == 0 {
                return None;
            }
        }
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        self.stream.read_exact(&mut body).ok()?;
        Some((head, body))
    }

    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        // The other side may be gone, which is what some tests are about.
        let _ = self.stream.get_mut().write_all(bytes.as_ref());
    }

    fn chunk(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        self.send(format!("{:x}\r\n", bytes.len()));
        self.send(bytes);
        self.send("\r\n");
    }

    /// Waits until the other side closes.
    fn closed(&mut self) {
        while self.stream.read(&mut [0; 64]).is_ok_and(|read| read > 0) {}
    }
}

/// Starts a worker that runs `script` on a thread of its own for each connection.
fn worker(script: impl Fn(Connection) + Send + Sync + 'static) -> Uri {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let script = Arc::new(script);
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let script = Arc::clone(&script);
            let stream = stream.unwrap();
            stream.set_nodelay(true).unwrap();
            thread::spawn(move || script(Connection { number, stream: BufReader::new(stream) }));
        }
    });
    uri
}

// ---- the router ----

/// What an observer was told, in order, and `dropped` when it was.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn note(&self, what: impl Into<String>) {
        self.0.lock().push(what.into());
    }

    fn has(&self, what: &str) -> bool {
        self.0.lock().iter().any(|line| line == what)
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

struct Probe(Log);

impl Observer for Probe {
    fn first_byte(&mut self) {
        self.0.note("first byte");
    }

    fn first_token(&mut self) {
        self.0.note("first token");
    }

    fn output(&mut self, steps: u32) {
        for _ in 0..steps {
            self.0.note("step");
        }
    }

    fn usage(&mut self, usage: Usage) {
        let Usage { prompt_tokens, completion_tokens, cached_tokens } = usage;
        self.0.note(format!("usage {prompt_tokens} {completion_tokens} {cached_tokens:?}"));
    }

    fn end(&mut self, end: End) {
        self.0.note(format!("{end:?}"));
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.0.note("dropped");
    }
}

struct Router {
    runtime: Runtime,
    pool: Pool,
    log: Log,
}

impl Router {
    fn new(settings: &PoolSettings) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        Self { runtime, pool: Pool::new(settings), log: Log::default() }
    }

    /// Sends one request and collects the answer, without a server in between.
    fn ask(&self, base: &Uri, request: Request<&'static str>) -> Result<Response<Bytes>, ProxyError> {
        let (head, body) = request.into_parts();
        self.runtime.block_on(async {
            let answer = self.pool.forward(base, &head, Bytes::from(body)).await?;
            let (head, body) = answer.relay(Probe(self.log.clone())).into_parts();
            Ok(Response::from_parts(head, body.collect().await?.to_bytes()))
        })
    }

    fn post(&self, base: &Uri) -> Result<Response<Bytes>, ProxyError> {
        self.ask(base, Request::post("/v1/completions").body("{}").unwrap())
    }

    /// Starts a server that forwards everything to `base`, for one connection.
    fn server(&self, base: &Uri) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let (pool, log, base) = (self.pool.clone(), self.log.clone(), base.clone());
        self.runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            let service = service_fn(move |request| serve(pool.clone(), base.clone(), log.clone(), request));
            let _ = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
        address
    }

    /// Sends a request over HTTP/1.1 to such a server.
    fn client(&self, base: &Uri) -> TcpStream {
        let address = self.server(base);
        let mut client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        client
            .write_all(b"POST /v1/chat/completions HTTP/1.1\r\nhost: r\r\ncontent-length: 2\r\n\r\n{}")
            .unwrap();
        client
    }
}

async fn serve(
    pool: Pool,
    base: Uri,
    log: Log,
    request: Request<Incoming>,
) -> Result<Response<BoxBody<Bytes, ProxyError>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Ok(match pool.forward(&base, &head, body).await {
        Ok(answer) => answer.relay(Probe(log)).map(BodyExt::boxed),
        Err(error) => {
            let body = Full::from(error.client_json().to_string());
            let body = body.map_err(|never| match never {}).boxed();
            Response::builder().status(error.kind.status()).body(body).unwrap()
        }
    })
}

/// Polls until `holds`, or fails the test.
fn wait_for(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what} did not happen within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Reads a response until the connection closes or its last chunk has come.
fn read_chunked(client: &mut TcpStream) -> (String, Vec<u8>, bool) {
    let mut wire = Vec::new();
    let mut piece = [0; 4096];
    while !wire.ends_with(b"0\r\n\r\n") {
        match client.read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(read) => wire.extend_from_slice(&piece[..read]),
        }
    }
    let split = wire.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    let head = String::from_utf8(wire[..split].to_vec()).unwrap();
    let mut rest = &wire[split..];
    let mut body = Vec::new();
    while let Some(line) = rest.windows(2).position(|two| two == b"\r\n") {
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        if length == 0 {
            return (head, body, true);
        }
        body.extend_from_slice(&rest[line + 2..line + 2 + length]);
        rest = &rest[line + 4 + length..];
    }
    (head, body, false)
}

// ---- streams ----

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

// ---- other answers ----

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

// ---- failures before the first byte ----

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

// ---- requests and connections ----

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
