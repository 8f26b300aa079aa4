//! The way to the collector: the SDK's requests, over connections of the router's own making.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, Uri};
use opentelemetry_http::{HttpClient, HttpError};
use tokio::runtime::Handle;
use tracing::{info, warn};

use super::endpoint::TRACES;
use crate::proxy::Caller;

/// For how long a collector is waited for: OTLP's own default.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sends batches. The SDK waits for them on a thread of its own, which has no runtime.
#[derive(Debug)]
pub(super) struct Collector {
    base: Uri,
    caller: Caller,
    runtime: Handle,
    exports: Arc<Exports>,
}

/// What became of them. Relaxed: statistics.
#[derive(Debug, Default)]
pub(super) struct Exports {
    sent: AtomicU64,
    failed: AtomicU64,
    failing: AtomicBool,
}

impl Collector {
    /// The collector at a base URL. To be called on the runtime that is to serve its connections.
    pub(super) fn new(base: &Uri, exports: Arc<Exports>) -> Self {
        Self { base: base.clone(), caller: Caller::new(PATIENCE), runtime: Handle::current(), exports }
    }

    async fn exchange(&self, request: Request<Bytes>) -> Result<Response<Bytes>, String> {
        let (mut head, body) = request.into_parts();
        // The SDK has the whole URL there; the caller puts what it sends below the base by itself.
        head.uri = Uri::from_static(TRACES);
        let base = self.base.clone();
        let caller = self.caller.clone();
        let asked = self.runtime.spawn(async move { caller.exchange(&base, &head, body).await });
        let reply = asked.await.map_err(|error| error.to_string())??;
        let mut response = Response::new(reply.body);
        *response.status_mut() = reply.status;
        Ok(response)
    }
}

#[async_trait::async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let response = self.exchange(request).await;
        self.exports.note(match &response {
            Ok(response) if response.status().is_success() => Ok(()),
            Ok(response) => Err(format!("it answers {}", response.status())),
            Err(problem) => Err(problem.clone()),
        });
        Ok(response?)
    }
}

impl Exports {
    fn note(&self, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => {
                self.sent.fetch_add(1, Relaxed);
                if self.failing.swap(false, Relaxed) {
                    info!(lost = self.failed.load(Relaxed), "the collector takes traces again");
                }
            }
            Err(problem) => {
                self.failed.fetch_add(1, Relaxed);
                if !self.failing.swap(true, Relaxed) {
                    warn!(
                        problem,
                        "the collector does not take traces: they are lost until it does, and requests are served all the same; \
                         --otlp-endpoint has to be the base URL of a receiver of OTLP over HTTP"
                    );
                }
            }
        }
    }

    /// How many were sent, how many not, and whether the last was not.
    pub(super) fn counts(&self) -> ([u64; 2], bool) {
        ([self.sent.load(Relaxed), self.failed.load(Relaxed)], self.failing.load(Relaxed))
    }
}
