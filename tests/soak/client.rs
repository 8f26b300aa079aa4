//! A client that takes an answer as it comes, and whatever becomes of it.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};

use crate::ending::Received;

/// A client with a pool of its own, of connections that are closed when nobody has used them for two seconds.
pub(crate) struct Client(legacy::Client<HttpConnector, Full<Bytes>>);

impl Client {
    pub(crate) fn new() -> Self {
        let mut client = legacy::Client::builder(TokioExecutor::new());
        // Some requests find a connection and some do not, and where all is quiet there is none.
        client.pool_timer(TokioTimer::new()).pool_idle_timeout(Duration::from_secs(2));
        Self(client.build_http())
    }

    pub(crate) async fn open(
        &self,
        url: &str,
        kind: &str,
        body: impl Into<Bytes>,
    ) -> Result<Response<Incoming>, String> {
        let request = Request::post(url).header("content-type", kind).body(Full::new(body.into())).unwrap();
        // The router is never down, so that nobody is turned away at its door.
        self.0.request(request).await.map_err(|error| format!("the router did not answer: {error:?}"))
    }

    pub(crate) async fn post(&self, url: &str, body: impl Into<Bytes>) -> Result<Received, String> {
        let answer = self.open(url, "application/json", body).await?;
        Ok(received(answer, usize::MAX).await.0)
    }

    /// A page that is there.
    pub(crate) async fn page(&self, url: &str) -> String {
        let came = self.get(url).await.unwrap();
        assert!(came.status == 200 && came.whole, "{url}: {came:?}");
        String::from_utf8(came.bytes).unwrap()
    }

    pub(crate) async fn get(&self, url: &str) -> Result<Received, String> {
        let request = Request::get(url).body(Full::default()).unwrap();
        let answer = self.0.request(request).await.map_err(|error| format!("{url}: {error:?}"))?;
        Ok(received(answer, usize::MAX).await.0)
    }
}

/// Reads up to about so many bytes of an answer; what is left of it, if any, is dropped with the second.
pub(crate) async fn received(answer: Response<Incoming>, most: usize) -> (Received, Incoming) {
    let (head, mut body) = answer.into_parts();
    let mut received = Received { status: head.status.as_u16(), bytes: Vec::new(), whole: false };
    while received.bytes.len() < most {
        match body.frame().await {
            Some(Ok(frame)) => received.bytes.extend(frame.into_data().unwrap_or_default()),
            Some(Err(_)) => break,
            None => {
                received.whole = true;
                break;
            }
        }
    }
    (received, body)
}
