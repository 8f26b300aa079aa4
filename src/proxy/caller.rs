//! Small requests of the router's own, with answers that are read whole: to an engine's or a frontend's own routes.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, Uri, header, request::Parts};
use http_body_util::{BodyExt as _, Limited};
use serde_json::Value;

use super::pool::{Pool, PoolSettings};

/// Largest answer that is read, in bytes. A metrics page of a large engine has some hundred thousand, a listing of
/// thousands of worker sets some million.
const LIMIT: usize = 64 << 20;

/// Asks engines and frontends. It tries once, and knows nothing of what it asks.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pool: Pool,
    patience: Duration,
}

/// An answer, whatever its status.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

impl Reply {
    /// The body as JSON; null if it is none.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

impl Caller {
    /// One that waits so long for a whole answer.
    pub(crate) fn new(patience: Duration) -> Self {
        Self::over(&PoolSettings::default(), patience)
    }

    /// The same over connections of these settings.
    pub(crate) fn over(settings: &PoolSettings, patience: Duration) -> Self {
        Self { pool: Pool::new(settings), patience }
    }

    pub(crate) async fn get(&self, base: &Uri, path: &str) -> Result<Reply, String> {
        self.call(base, Method::GET, path, None, None).await
    }

    /// Asks `GET /health`; the error says why the server is not well. One that has no such route is there all the
    /// same.
    pub(crate) async fn is_well(&self, base: &Uri) -> Result<(), String> {
        let reply = self.get(base, "/health").await?;
        if reply.status.is_server_error() {
            return Err(format!("GET /health answers {}", reply.status));
        }
        Ok(())
    }

    /// Sends a request and reads the answer; the error says why there is none.
    pub(crate) async fn call(
        &self,
        base: &Uri,
        method: Method,
        path: &str,
        authorization: Option<&HeaderValue>,
        body: Option<&Value>,
    ) -> Result<Reply, String> {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(authorization) = authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let (head, ()) = request.body(()).map_err(|error| error.to_string())?.into_parts();
        let body = body.map_or_else(Bytes::new, |body| Bytes::from(body.to_string()));
        self.exchange(base, &head, body).await
    }

    /// The same with a head of the asker's own.
    pub(crate) async fn exchange(&self, base: &Uri, head: &Parts, body: Bytes) -> Result<Reply, String> {
        let exchange = async {
            // The pool takes whoever it calls for a worker, which a frontend is not.
            let answer = self.pool.forward(base, head, body).await;
            let answer = answer.map_err(|error| format!("{}{}", error.kind.of_any_server(), error.detail))?;
            let status = answer.status();
            let body = Limited::new(answer.relay(()).into_body(), LIMIT).collect().await;
            Ok(Reply { status, body: body.map_err(|error| error.to_string())?.to_bytes() })
        };
        match tokio::time::timeout(self.patience, exchange).await {
            Ok(reply) => reply,
            Err(_) => Err(format!("no answer within {:?}", self.patience)),
        }
    }
}
