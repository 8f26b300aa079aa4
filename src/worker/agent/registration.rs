//! One worker at one frontend: registered while its engine is well.

use std::{pin::pin, sync::Arc, time::Duration};

use http::{HeaderValue, Method, StatusCode, Uri};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{AgentSettings, Described, Pace};
use crate::{fleet::WorkerSpec, proxy::Caller};

/// What the last word to a frontend may take: the process is waiting to end.
const LAST_WORD: Duration = Duration::from_secs(2);

/// A worker's registration at one frontend.
#[derive(Debug)]
pub(super) struct Registration {
    frontend: Uri,
    caller: Caller,
    authorization: Option<HeaderValue>,
    lease: Duration,
    pace: Pace,
    /// The id that it is registered under now.
    registered: Option<u64>,
    /// The id that the frontend gave out, to be asked for again: it is in metrics and pins.
    previous: Option<u64>,
    /// What was last said of a failure, so that it is said once.
    complaint: Option<String>,
}

impl Registration {
    pub(super) fn new(frontend: Uri, settings: &AgentSettings) -> Self {
        // An answer that comes when the lease is over helps nobody.
        let patience = settings.pace.patience.min(settings.lease / 3);
        Self {
            frontend,
            caller: Caller::new(patience),
            authorization: settings.authorization.clone(),
            lease: settings.lease,
            pace: settings.pace,
            registered: None,
            previous: None,
            complaint: None,
        }
    }

    /// Follows the engine until the end.
    pub(super) async fn keep(mut self, mut described: watch::Receiver<Described>, ending: CancellationToken) {
        loop {
            let spec = tokio::select! {
                biased;
                () = ending.cancelled() => return,
                spec = next(&mut described) => spec,
            };
            let Some(spec) = spec else { return };
            let leave = ending.child_token();
            {
                let mut staying = pin!(self.stay_registered(&spec, &leave));
                let left = tokio::select! {
                    biased;
                    () = ending.cancelled() => false,
                    () = replaced(&mut described, &spec) => {
                        leave.cancel();
                        false
                    }
                    () = &mut staying => true,
                };
                if !left {
                    // What is under way may be what registers: its answer has the id to deregister.
                    let _ = tokio::time::timeout(LAST_WORD, staying).await;
                }
            }
            self.deregister().await;
        }
    }

    /// Registers and renews the lease, until it is time to leave.
    async fn stay_registered(&mut self, spec: &WorkerSpec, leave: &CancellationToken) {
        while !leave.is_cancelled() {
            let mut failures = 0;
            while !self.register(spec).await {
                let pause = tokio::time::sleep(self.pace.retry(failures));
                if leave.run_until_cancelled(pause).await.is_none() {
                    return;
                }
                failures += 1;
            }
            self.renew_until_forgotten(leave).await;
        }
    }

    async fn register(&mut self, spec: &WorkerSpec) -> bool {
        let mut body = serde_json::to_value(spec).unwrap_or_default();
        body["lease_secs"] = json!(self.lease.as_secs_f64());
        if let (None, Some(previous)) = (spec.id, self.previous) {
            body["id"] = json!(previous);
        }
        let reply = match self.call(Method::POST, "/v1/workers", Some(&body)).await {
            Ok(reply) => reply,
            Err(reason) => {
                self.complain(&reason, |frontend, reason| {
                    warn!(%frontend, reason, "frontend cannot be reached; trying again");
                });
                return false;
            }
        };
        match reply {
            (StatusCode::CREATED, answer) if answer["id"].is_u64() => {
                self.registered = answer["id"].as_u64();
                self.previous = self.registered;
                self.complaint = None;
                info!(
                    frontend = %self.frontend, id = self.registered, url = spec.url, model = spec.model,
                    lease_secs = self.lease.as_secs_f64(), "worker registered"
                );
                if !answer["excluded"].is_null() {
                    warn!(
                        frontend = %self.frontend, id = self.registered, reason = %answer["excluded"],
                        fields = %answer["differing_fields"],
                        "the worker gets no requests yet: its card differs from those of others in its set"
                    );
                }
                true
            }
            (status, answer) => {
                // Whoever has the old id now keeps it.
                if status == StatusCode::CONFLICT {
                    self.previous = None;
                }
                let reason =
                    answer["error"]["message"].as_str().map_or_else(|| status.to_string(), str::to_owned);
                self.complain(&reason, |frontend, reason| {
                    error!(%frontend, reason, "frontend refuses the worker; trying again");
                });
                false
            }
        }
    }

    /// Returns when the frontend does not know the worker any more, or when it is time to leave.
    async fn renew_until_forgotten(&mut self, leave: &CancellationToken) {
        let Some(id) = self.registered else { return };
        let path = format!("/v1/workers/{id}/heartbeat");
        let (interval, mut failures) = (self.lease / 3, 0);
        loop {
            let pause = if failures == 0 { interval } else { self.pace.retry(failures - 1).min(interval) };
            if leave.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return;
            }
            let reason = match self.call(Method::POST, &path, None).await {
                Ok((status, _)) if status.is_success() => {
                    if failures > 0 {
                        info!(frontend = %self.frontend, id, "frontend answers again");
                    }
                    (failures, self.complaint) = (0, None);
                    continue;
                }
                Ok((StatusCode::NOT_FOUND, _)) => {
                    warn!(frontend = %self.frontend, id, "frontend does not know the worker any more: registering again");
                    self.registered = None;
                    return;
                }
                Ok((status, answer)) => {
                    answer["error"]["message"].as_str().map_or_else(|| status.to_string(), str::to_owned)
                }
                Err(reason) => reason,
            };
            failures += 1;
            self.complain(&reason, |frontend, reason| {
                warn!(%frontend, id, reason, "heartbeat failed; trying again");
            });
        }
    }

    async fn deregister(&mut self) {
        let Some(id) = self.registered.take() else { return };
        let path = format!("/v1/workers/{id}");
        let call = self.call(Method::DELETE, &path, None);
        let reason = match tokio::time::timeout(LAST_WORD, call).await {
            Ok(Ok((status, _))) if status.is_success() || status == StatusCode::NOT_FOUND => {
                info!(frontend = %self.frontend, id, "worker deregistered");
                return;
            }
            Ok(Ok((status, _))) => status.to_string(),
            Ok(Err(reason)) => reason,
            Err(_) => format!("no answer within {LAST_WORD:?}"),
        };
        warn!(frontend = %self.frontend, id, reason, "worker could not be deregistered; it leaves with its lease");
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Value), String> {
        let reply = self.caller.call(&self.frontend, method, path, self.authorization.as_ref(), body).await?;
        Ok((reply.status, reply.json()))
    }

    /// Says a failure once, however often it is tried again.
    fn complain(&mut self, reason: &str, say: impl FnOnce(&Uri, &str)) {
        if self.complaint.as_deref() != Some(reason) {
            say(&self.frontend, reason);
            self.complaint = Some(reason.to_owned());
        }
    }
}

/// The next description; none when there will be no more.
async fn next(described: &mut watch::Receiver<Described>) -> Described {
    described.wait_for(Option::is_some).await.ok().and_then(|described| described.clone())
}

/// Returns when `spec` is not the description any more.
async fn replaced(described: &mut watch::Receiver<Described>, spec: &Arc<WorkerSpec>) {
    let other = |now: &Described| !now.as_ref().is_some_and(|now| Arc::ptr_eq(now, spec));
    // A watcher that has ended takes nothing back: the end comes by the other way.
    if described.wait_for(other).await.is_err() {
        std::future::pending::<()>().await;
    }
}
