//! One look at every worker when the frontend starts, so that a wrong URL is seen before a request meets it.

use std::{sync::Arc, time::Duration};

use tracing::warn;

use crate::{
    fleet::{FleetView, WorkerInfo},
    proxy::{Caller, PoolSettings},
};

/// A worker that takes longer to say that it is well is not well.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks each worker for `GET /health`, once and in the background, and warns of those that do not answer. They
/// keep their place: an engine that is still loading comes up by itself.
pub(super) fn probe(view: &FleetView, upstream: &PoolSettings) {
    let caller = Caller::over(upstream, PATIENCE);
    for worker in view.workers() {
        tokio::spawn(ask(caller.clone(), Arc::clone(worker)));
    }
}

async fn ask(caller: Caller, worker: Arc<WorkerInfo>) {
    let Err(problem) = caller.is_well(&worker.url).await else { return };
    warn!(
        worker = %worker.id,
        url = %worker.url,
        problem,
        "worker does not answer; requests that meet it go elsewhere until it does"
    );
}
