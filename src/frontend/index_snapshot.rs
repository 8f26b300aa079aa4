//! The indexes, from one frontend to another that starts.

use std::{fmt, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Query, State},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Uri, header};
use http_body_util::BodyExt as _;
use serde::Deserialize;
use thiserror::Error;
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
};
use tracing::{info, warn};

use super::{admin_token::AdminToken, app::App, error::ApiError};
use crate::{
    ingest::{FleetStreams, Snapshot, SnapshotBusy, SnapshotError},
    metrics::Page,
    proxy::{Pool, PoolSettings},
    tls::ClientTls,
};

/// The route, on the admin listener.
pub(super) const PATH: &str = "/v1/index/snapshot";

/// Where a frontend that starts takes a snapshot from.
#[derive(Clone, Debug)]
pub struct SnapshotSource {
    /// The admin listener of the other frontend, as `http://HOST:PORT` or `https://HOST:PORT`.
    pub url: Uri,
    /// What it asks for.
    pub token: Option<AdminToken>,
}

/// Why a snapshot is not there.
#[derive(Debug, Error)]
enum FetchError {
    /// Nobody answers.
    #[error("{0}")]
    Unreachable(String),
    /// It is not handed out.
    #[error("GET {PATH} answers {status}: {said}")]
    Refused {
        /// The status.
        status: http::StatusCode,
        /// What the answer says.
        said: String,
    },
    /// It is larger than any that is read.
    #[error("it has more than {LARGEST} bytes, which is more than is read")]
    TooLarge,
    /// It cannot be used.
    #[error(transparent)]
    Unusable(#[from] SnapshotError),
}

/// Bytes of a snapshot that are read at most: some three hundred million blocks.
const LARGEST: usize = 8 << 30;
/// Silence after which the other frontend counts as gone. It may wait for a rank's stream for a few seconds.
const SILENCE: Duration = Duration::from_secs(45);
/// How long all of it may take. A frontend that waits longer for what others know could have learned it from the engines.
const PATIENCE: Duration = Duration::from_secs(300);
/// Pieces on the way to a reader that is slower than we are.
const PIECES: usize = 4;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    model: Option<String>,
}

/// Answers with a snapshot, of one model or of all, piece by piece as it is made.
pub(super) async fn serve(
    State(app): State<Arc<App>>,
    asked: Result<Query<Asked>, axum::extract::rejection::QueryRejection>,
) -> Response {
    let Ok(Query(Asked { model })) = asked else {
        return ApiError::bad_request(format!("{PATH} takes one parameter, model=NAME")).into_response();
    };
    let (pieces, body) = mpsc::channel::<Bytes>(PIECES);
    let (begin, begun) = oneshot::channel();
    let streams = app.streams.clone();
    let runtime = Handle::current();
    tokio::task::spawn_blocking(move || {
        let mut begin = Some(begin);
        let mut put = |piece: Bytes| {
            if let Some(begin) = begin.take() {
                let _ = begin.send(());
            }
            // A reader that stands still must not keep others waiting for ever.
            let sending = async { tokio::time::timeout(SILENCE, pieces.send(piece)).await };
            runtime.block_on(sending).is_ok_and(|sent| sent.is_ok())
        };
        // Nothing is counted where the reader has left.
        if let Ok(totals) = streams.write_snapshot(model.as_deref(), &mut put)
            && totals.bytes > 0
        {
            info!(
                ranks = totals.ranks,
                left_out = totals.left_out,
                blocks = totals.blocks,
                bytes = totals.bytes,
                "wrote a snapshot of the index"
            );
        }
    });
    // Whoever is busy drops it without a word.
    if begun.await.is_err() {
        return ApiError::conflict(SnapshotBusy.to_string()).into_response();
    }
    let pieces = futures_util::stream::unfold(body, async |mut body| {
        let piece = body.recv().await?;
        Some((Ok::<_, std::convert::Infallible>(piece), body))
    });
    let kind = HeaderValue::from_static("application/octet-stream");
    ([(header::CONTENT_TYPE, kind)], Body::from_stream(pieces)).into_response()
}

/// Fetches a snapshot for the ranks that will register here. A frontend that gets none starts as it would without; it says so once.
pub(crate) async fn resume_from(source: &SnapshotSource, tls: &ClientTls, streams: &FleetStreams) {
    let url = &source.url;
    let fetched = tokio::time::timeout(PATIENCE, fetch(source, tls)).await;
    let fetched = fetched.unwrap_or_else(|_| {
        Err(FetchError::Unreachable(format!("it was not through after {} s", PATIENCE.as_secs())))
    });
    match fetched {
        Ok(snapshot) => {
            info!(%url, ranks = snapshot.ranks(), bytes = snapshot.bytes(), "read a snapshot of the index");
            streams.keep(snapshot);
        }
        Err(error) => warn!(
            %url,
            %error,
            "no snapshot of the index (--index-snapshot-from): the index begins with what the engines still replay"
        ),
    }
}

async fn fetch(source: &SnapshotSource, tls: &ClientTls) -> Result<Snapshot, FetchError> {
    let pool = Pool::new(&PoolSettings {
        first_byte_timeout: SILENCE,
        idle_timeout: SILENCE,
        tls: tls.clone(),
        ..PoolSettings::default()
    });
    let mut request = Request::builder().method(Method::GET).uri(PATH);
    if let Some(token) = &source.token {
        request = request.header(header::AUTHORIZATION, token.authorization());
    }
    let unreachable = |error: &dyn fmt::Display| FetchError::Unreachable(error.to_string());
    let (head, ()) = request.body(()).map_err(|error| unreachable(&error))?.into_parts();
    let answer = pool.forward(&source.url, &head, Bytes::new()).await;
    let answer = answer.map_err(|error| {
        FetchError::Unreachable(format!("{}{}", error.kind.of_any_server(), error.detail))
    })?;
    let status = answer.status();
    let mut body = answer.relay(()).into_body();
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| unreachable(&error))?;
        let Ok(piece) = frame.into_data() else { continue };
        bytes.extend_from_slice(&piece);
        if bytes.len() > LARGEST {
            return Err(FetchError::TooLarge);
        }
    }
    if !status.is_success() {
        return Err(FetchError::Refused { status, said: said(&bytes) });
    }
    // Checking a large one takes seconds: not on a thread that serves requests.
    let bytes = Bytes::from(bytes);
    let read = tokio::task::spawn_blocking(move || Snapshot::read(&bytes)).await;
    Ok(read.map_err(|error| unreachable(&error))??)
}

/// What an answer with an error says, in short.
fn said(body: &[u8]) -> String {
    let answer: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let message = answer["error"]["message"].as_str().map(str::to_owned);
    let text = message.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned());
    text.chars().take(300).collect()
}

/// The numbers of replays and snapshots.
pub(super) fn write(app: &App, page: &mut Page<'_>) -> fmt::Result {
    let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let replays = app.streams.replays();
    page.gauge("replays_running", "Replays of KV events that run", gauge(replays.running as u64))?;
    page.gauge(
        "replays_waiting",
        "Ranks that wait for a replay because as many run as may",
        gauge(replays.waiting as u64),
    )?;
    page.gauge("replays_limit", "How many may run at once", gauge(replays.limit as u64))?;
    let snapshots = app.streams.snapshots();
    page.counter("snapshots_written", "Snapshots of the index handed out whole", snapshots.written)?;
    page.gauge(
        "snapshot_waiting_ranks",
        "Ranks of a snapshot that have not registered yet",
        gauge(snapshots.waiting),
    )?;
    let totals = app.streams.totals();
    let results = [
        ("resumed", totals.resumed_ranks),
        ("given_up", totals.given_up_ranks),
        ("unusable", snapshots.unusable),
    ];
    page.counters_by(
        "result",
        "snapshot_ranks",
        "Ranks that a snapshot had blocks of, by what became of those",
        results,
    )?;
    page.counter("snapshot_blocks", "Blocks built from snapshots", totals.loaded_blocks)
}
