//! An engine that is no engine: it records what it is sent and answers what the scenario says.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use axum::{Router, body::Body, extract::State, response::Response};
use bytes::Bytes;
use http::HeaderMap;
use http_body_util::BodyExt as _;
use kvroute::fleet::WorkerSpec;
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedRwLockWriteGuard, RwLock},
    task::AbortHandle,
};

/// One request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

/// A running upstream. Dropping it stops it.
pub(crate) struct Upstream {
    address: SocketAddr,
    recorded: Arc<Mutex<Vec<Recorded>>>,
    held: Arc<RwLock<()>>,
    server: AbortHandle,
}

type Answerer = fn(&str) -> (u16, &'static str, &'static str);

/// Answers everything with the same small JSON.
pub(crate) fn plain(_: &str) -> (u16, &'static str, &'static str) {
    (200, "application/json", PLAIN)
}

/// What [`plain`] answers.
pub(crate) const PLAIN: &str = "{\"id\": \"x\", \"choices\":[ {\"finish_reason\":\"stop\"} ]}\n";

#[derive(Clone)]
struct Shared {
    answer: Answerer,
    recorded: Arc<Mutex<Vec<Recorded>>>,
    held: Arc<RwLock<()>>,
}

impl Upstream {
    /// Listens; `answer` gives status, content type and body for a path.
    pub(crate) async fn start(answer: Answerer) -> Self {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (recorded, held) = <(Arc<_>, Arc<_>)>::default();
        let shared = Shared { answer, recorded: Arc::clone(&recorded), held: Arc::clone(&held) };
        let router = Router::new().fallback(record).with_state(shared);
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, recorded, held, server: server.abort_handle() }
    }

    /// How a frontend is told of it.
    pub(crate) fn worker(&self, id: u64, model: &str) -> WorkerSpec {
        WorkerSpec { id: Some(id), ..WorkerSpec::new(&format!("http://{}", self.address), model) }
    }

    /// Until the guard is dropped requests are recorded and not answered.
    pub(crate) async fn hold(&self) -> OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.held).write_owned().await
    }

    pub(crate) fn recorded(&self) -> Vec<Recorded> {
        self.recorded.lock().clone()
    }

    /// The last request.
    pub(crate) fn last(&self) -> Recorded {
        self.recorded().pop().unwrap()
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn record(State(shared): State<Shared>, request: axum::extract::Request) -> Response {
    let (head, body) = request.into_parts();
    let body: Bytes = body.collect().await.unwrap().to_bytes();
    let path = head.uri.path().to_owned();
    let (status, kind, answer) = (shared.answer)(&path);
    let body = String::from_utf8_lossy(&body).into_owned();
    // The frontend looks once whether a new worker is there; that is no client's request.
    if path != "/health" {
        shared.recorded.lock().push(Recorded { path, headers: head.headers, body });
        drop(shared.held.read().await);
    }
    Response::builder().status(status).header("content-type", kind).body(Body::from(answer)).unwrap()
}
