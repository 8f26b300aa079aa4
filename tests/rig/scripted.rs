//! A worker of which a test says, request by request, what it answers.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    response::Response,
};
use bytes::Bytes;
use futures_util::StreamExt as _;
use http_body_util::BodyExt as _;
use kvroute::fleet::WorkerSpec;
use tokio::task::AbortHandle;

use super::MODEL;

type Script = Arc<dyn Fn(usize) -> Response + Send + Sync>;

/// A running worker. Dropping it stops it.
pub(crate) struct Scripted {
    address: SocketAddr,
    shared: Shared,
    server: AbortHandle,
}

#[derive(Clone)]
struct Shared {
    script: Script,
    /// Requests so far, without those for its health.
    seen: Arc<AtomicUsize>,
    /// What `GET /health` answers; 0 is nothing at all.
    health: Arc<AtomicU16>,
    asked: Arc<AtomicUsize>,
}

impl Scripted {
    /// Listens; `script` answers the n-th request, from 0.
    pub(crate) async fn start(script: impl Fn(usize) -> Response + Send + Sync + 'static) -> Self {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, asked, health) = <(Arc<_>, Arc<_>, Arc<_>)>::default();
        let shared = Shared { script: Arc::new(script), seen, health, asked };
        shared.health.store(200, Relaxed);
        let router = Router::new().fallback(serve).with_state(shared.clone());
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, shared, server: server.abort_handle() }
    }

    /// How a frontend is told of it.
    pub(crate) fn worker(&self, id: u64) -> WorkerSpec {
        WorkerSpec { id: Some(id), ..WorkerSpec::new(&format!("http://{}", self.address), MODEL) }
    }

    /// Requests so far, without those for its health.
    pub(crate) fn seen(&self) -> usize {
        self.shared.seen.load(Relaxed)
    }

    /// Times that it was asked for its health.
    pub(crate) fn asked(&self) -> usize {
        self.shared.asked.load(Relaxed)
    }

    /// What it says of its health from now on; 0 is nothing at all.
    pub(crate) fn set_health(&self, status: u16) {
        self.shared.health.store(status, Relaxed);
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(State(shared): State<Shared>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    if head.uri.path() == "/health" {
        shared.asked.fetch_add(1, Relaxed);
        return match shared.health.load(Relaxed) {
            0 => std::future::pending().await,
            status => answer(status, &[], "{}"),
        };
    }
    body.collect().await.unwrap();
    (shared.script)(shared.seen.fetch_add(1, Relaxed))
}

/// An answer in JSON.
pub(crate) fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Response {
    let mut response = Response::builder().status(status).header("content-type", "application/json");
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    response.body(Body::from(body.to_owned())).unwrap()
}

/// An answer that serves the request, and says by whom.
pub(crate) fn served(by: u64) -> Response {
    answer(200, &[("x-by", &by.to_string())], "{\"choices\":[]}")
}

/// An answer that does not end: events so many milliseconds apart, for ever.
pub(crate) fn endless(millis: u64) -> Response {
    let event = Bytes::from("data: {\"choices\":[{\"index\":0,\"text\":\"x\"}]}\n\n");
    let events = futures_util::stream::repeat(event).then(move |event| async move {
        tokio::time::sleep(Duration::from_millis(millis)).await;
        Ok::<_, std::convert::Infallible>(event)
    });
    let response = Response::builder().header("content-type", "text/event-stream");
    response.body(Body::from_stream(events)).unwrap()
}
