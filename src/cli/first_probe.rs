//! One look at every worker when the frontend starts, so that a wrong URL is seen before a request meets it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::Request;
use tracing::warn;

use crate::{
    fleet::{FleetView, WorkerInfo},
    proxy::{Pool, PoolSettings},
};

/// A worker that takes longer to say that it is well is not well.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks each worker for `GET /health`, once and in the background, and warns of those that do not answer. They
/// keep their place: an engine that is still loading comes up by itself.
pub(super) fn probe(view: &FleetView, settings: &PoolSettings) {
    let pool = Pool::new(&PoolSettings { first_byte_timeout: PATIENCE, ..settings.clone() });
    // A worker is here once a rank, and its ranks stand together.
    let mut workers: Vec<_> = view.members().map(|(_, member)| Arc::clone(&member.worker)).collect();
    workers.dedup_by_key(|worker| worker.id);
    for worker in workers {
        tokio::spawn(ask(pool.clone(), worker));
    }
}

async fn ask(pool: Pool, worker: Arc<WorkerInfo>) {
    let Ok(request) = Request::get("/health").body(()) else { return };
    let (head, ()) = request.into_parts();
    let problem = match pool.forward(&worker.url, &head, Bytes::new()).await {
        // Some engines have no such route; they are there all the same.
        Ok(answer) if !answer.status().is_server_error() => return,
        Ok(answer) => format!("GET /health answers {}", answer.status()),
        Err(error) => error.to_string(),
    };
    warn!(
        worker = %worker.id,
        url = %worker.url,
        problem,
        "worker does not answer; requests that meet it go elsewhere until it does"
    );
}
