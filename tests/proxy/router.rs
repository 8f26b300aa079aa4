//! The router with an observer that takes notes, and the client that reads the bytes on the wire.

use std::{
    convert::Infallible,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kvroute::proxy::{End, Observer, Pool, PoolSettings, ProxyError, Usage};
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};

const PATIENCE: Duration = Duration::from_secs(2);

/// What an observer was told, in order, and `dropped` when it was.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn note(&self, what: impl Into<String>) {
        self.0.lock().push(what.into());
    }

    pub(crate) fn has(&self, what: &str) -> bool {
        self.0.lock().iter().any(|line| line == what)
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

pub(crate) struct Probe(pub(crate) Log);

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

pub(crate) struct Router {
    pub(crate) runtime: Runtime,
    pub(crate) pool: Pool,
    pub(crate) log: Log,
}

impl Router {
    pub(crate) fn new(settings: &PoolSettings) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        Self { runtime, pool: Pool::new(settings), log: Log::default() }
    }

    /// Sends one request and collects the answer, without a server in between.
    pub(crate) fn ask(
        &self,
        base: &Uri,
        request: Request<&'static str>,
    ) -> Result<Response<Bytes>, ProxyError> {
        let (head, body) = request.into_parts();
        self.runtime.block_on(async {
            let answer = self.pool.forward(base, &head, Bytes::from(body)).await?;
            let (head, body) = answer.relay(Probe(self.log.clone())).into_parts();
            Ok(Response::from_parts(head, body.collect().await?.to_bytes()))
        })
    }

    pub(crate) fn post(&self, base: &Uri) -> Result<Response<Bytes>, ProxyError> {
        self.ask(base, Request::post("/v1/completions").body("{}").unwrap())
    }

    /// Starts a server that forwards everything to `base`, for one connection.
    pub(crate) fn server(&self, base: &Uri) -> SocketAddr {
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
    pub(crate) fn client(&self, base: &Uri) -> TcpStream {
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
pub(crate) fn wait_for(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what} did not happen within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Reads a response until the connection closes or its last chunk has come.
pub(crate) fn read_chunked(client: &mut TcpStream) -> (String, Vec<u8>, bool) {
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
