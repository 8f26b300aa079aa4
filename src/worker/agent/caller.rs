//! Small HTTP requests, answered whole.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Limited};
use serde_json::Value;

use crate::proxy::{Pool, PoolSettings};

/// Largest answer that is read, in bytes. A metrics page of a large engine has some hundred thousand.
const LIMIT: usize = 8 << 20;

/// Connections to the engine, or to a frontend.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pool: Pool,
    patience: Duration,
}

/// An answer, whatever its status.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
}

impl Reply {
    /// The body as JSON; null if it is none.
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

impl Caller {
    /// One that waits so long for a whole answer.
    pub(super) fn new(patience: Duration) -> Self {
        Self { pool: Pool::new(&PoolSettings::default()), patience }
    }

    pub(super) async fn get(&self, base: &Uri, path: &str) -> Result<Reply, String> {
        self.call(base, Method::GET, path, None, None).await
    }

    /// Sends a request and reads the answer; the error says why there is none.
    pub(super) async fn call(
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
        let exchange = async {
            let answer = self.pool.forward(base, &head, body).await.map_err(|error| error.to_string())?;
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
