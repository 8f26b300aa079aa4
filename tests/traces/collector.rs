//! A collector: takes OTLP over HTTP, and reads of it what a test asks.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use axum::{Router, extract::State, routing::post};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use kvroute::frontend::OtlpEndpoint;
use parking_lot::Mutex;
use tokio::{net::TcpListener, task::AbortHandle};

use crate::protobuf::{Field, fields};

/// A span as it came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Span {
    pub(crate) trace: String,
    pub(crate) id: String,
    /// Empty for the first of a trace.
    pub(crate) parent: String,
    pub(crate) name: String,
    /// 1 internal, 2 server, 3 client.
    pub(crate) kind: u64,
    pub(crate) began: u64,
    pub(crate) ended: u64,
    pub(crate) attributes: BTreeMap<String, String>,
    pub(crate) events: Vec<String>,
    /// Whether its status is an error.
    pub(crate) failed: bool,
}

/// A running collector. Dropping it stops it.
pub(crate) struct Collector {
    address: SocketAddr,
    bodies: Arc<Mutex<Vec<Bytes>>>,
    server: AbortHandle,
}

impl Collector {
    pub(crate) async fn start() -> Self {
        Self::start_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await
    }

    pub(crate) async fn start_at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let bodies = Arc::<Mutex<Vec<Bytes>>>::default();
        let router = Router::new().route("/v1/traces", post(take)).with_state(Arc::clone(&bodies));
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() }).abort_handle();
        Self { address, bodies, server }
    }

    pub(crate) fn endpoint(&self) -> Option<OtlpEndpoint> {
        Some(format!("http://{}", self.address).parse().unwrap())
    }

    /// All that was sent, as it came.
    pub(crate) fn bodies(&self) -> Vec<Bytes> {
        self.bodies.lock().clone()
    }

    /// All spans that were sent.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let of_scopes = |body: &[u8]| -> Vec<Span> {
            let resources = fields(body).filter(|field| field.number == 1);
            let scopes =
                resources.flat_map(|resource| fields(resource.bytes).filter(|field| field.number == 2));
            let spans = scopes.flat_map(|scope| fields(scope.bytes).filter(|field| field.number == 2));
            spans.map(|span| read(span.bytes)).collect()
        };
        self.bodies().iter().flat_map(|body| of_scopes(body)).collect()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn take(State(bodies): State<Arc<Mutex<Vec<Bytes>>>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    assert_eq!(headers["content-type"], "application/x-protobuf");
    bodies.lock().push(body);
    StatusCode::OK
}

/// A `Span` of `opentelemetry/proto/trace/v1/trace.proto`.
fn read(bytes: &[u8]) -> Span {
    let mut span = Span::default();
    for field in fields(bytes) {
        match field.number {
            1 => span.trace = hex::encode(field.bytes),
            2 => span.id = hex::encode(field.bytes),
            4 => span.parent = hex::encode(field.bytes),
            5 => span.name = field.text(),
            6 => span.kind = field.value,
            7 => span.began = field.value,
            8 => span.ended = field.value,
            9 => span.attributes.extend([attribute(&field)]),
            11 => span
                .events
                .extend(fields(field.bytes).filter(|field| field.number == 2).map(|name| name.text())),
            15 => span.failed = fields(field.bytes).any(|field| field.number == 3 && field.value == 2),
            _ => {}
        }
    }
    span
}

/// A `KeyValue` whose value is a string, a truth value or a whole number.
fn attribute(field: &Field<'_>) -> (String, String) {
    let (mut key, mut value) = (String::new(), String::new());
    for part in fields(field.bytes) {
        match part.number {
            1 => key = part.text(),
            _ => {
                let any = fields(part.bytes).next().unwrap();
                value = if any.number == 1 { any.text() } else { any.value.to_string() };
            }
        }
    }
    (key, value)
}
