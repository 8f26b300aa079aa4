//! One worker at one frontend: registered while its engine is well.

use std::{pin::pin, sync::Arc, time::Duration};

use http::{HeaderValue, Method, StatusCode, Uri};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{AgentSettings, Described, Pace, is_same};
use crate::{
    fleet::WorkerSpec,
    proxy::Caller,
    worker::devices::{News, NewsFeed},
};

/// What the last word to a frontend may take: the process is waiting to end.
const LAST_WORD: Duration = Duration::from_secs(2);

/// How often there is news of GPUs, at the least.
const NEWS_INTERVAL: Duration = Duration::from_secs(2);

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
    /// What was last said of a registration that failed.
    refusal: Complaint,
    /// The same of a heartbeat: one may go well where the other fails.
    complaint: Complaint,
}

/// What became of a heartbeat.
enum Heartbeat {
    /// The frontend was told of the engine's GPUs as of this alarm, if there is news of them.
    Taken(Option<u64>),
    /// The frontend does not know the worker any more.
    Forgotten,
    Failed,
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
            refusal: Complaint::default(),
            complaint: Complaint::default(),
        }
    }

    /// Follows the engine until the end.
    pub(super) async fn keep(
        mut self,
        mut described: watch::Receiver<Described>,
        mut news: NewsFeed,
        ending: CancellationToken,
    ) {
        loop {
            let spec = tokio::select! {
                biased;
                () = ending.cancelled() => return,
                spec = next(&mut described) => spec,
            };
            let Some(spec) = spec else { return };
            let leave = ending.child_token();
            {
                let mut staying = pin!(self.stay_registered(&spec, &mut news, &leave));
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
            // It keeps its place, and with it what is known of its cache.
            let goes_on =
                !ending.is_cancelled() && described.borrow().as_ref().is_some_and(|now| is_same(now, &spec));
            if !goes_on {
                self.deregister().await;
            }
        }
    }

    /// Registers and renews the lease, until it is time to leave.
    async fn stay_registered(&mut self, spec: &WorkerSpec, news: &mut NewsFeed, leave: &CancellationToken) {
        while !leave.is_cancelled() {
            let mut failures = 0;
            while !self.register(spec).await {
                let mut pause = self.pace.retry(failures);
                // Refused with other adapters: the engine is as well as it was, and what it is registered as stands.
                if let Some(id) = self.registered {
                    self.heartbeat(id, news).await;
                    pause = pause.min(self.interval(news));
                }
                if leave.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                    return;
                }
                failures += 1;
            }
            self.renew_until_forgotten(news, leave).await;
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
                let frontend = &self.frontend;
                self.refusal.say(&reason, |reason| {
                    warn!(%frontend, reason, "frontend cannot be reached; trying again");
                });
                return false;
            }
        };
        match reply {
            (StatusCode::CREATED, answer) if answer["id"].is_u64() => {
                self.registered = answer["id"].as_u64();
                self.previous = self.registered;
                (self.refusal, self.complaint) = <(Complaint, Complaint)>::default();
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
                // Whoever has the old id now keeps it, and renews it.
                if status == StatusCode::CONFLICT {
                    (self.registered, self.previous) = (None, None);
                }
                let reason =
                    answer["error"]["message"].as_str().map_or_else(|| status.to_string(), str::to_owned);
                let frontend = &self.frontend;
                self.refusal.say(&reason, |reason| match self.registered {
                    Some(id) => error!(
                        %frontend, id, reason,
                        "frontend refuses what the engine serves now; the worker stays as it was registered, trying again"
                    ),
                    None => error!(%frontend, reason, "frontend refuses the worker; trying again"),
                });
                false
            }
        }
    }

    /// Returns when the frontend does not know the worker any more, or when it is time to leave.
    async fn renew_until_forgotten(&mut self, news: &mut NewsFeed, leave: &CancellationToken) {
        let Some(id) = self.registered else { return };
        let mut failures = 0;
        // What the frontend was told of the engine's GPUs: nothing yet.
        let mut alarm = None;
        loop {
            let interval = self.interval(news);
            let pause = if failures == 0 { interval } else { self.pace.retry(failures - 1).min(interval) };
            tokio::select! {
                biased;
                () = leave.cancelled() => return,
                () = alarmed(news, alarm), if failures == 0 => {}
                () = tokio::time::sleep(pause) => {}
            }
            match self.heartbeat(id, news).await {
                Heartbeat::Taken(told) => {
                    if failures > 0 {
                        info!(frontend = %self.frontend, id, "frontend answers again");
                    }
                    (failures, alarm) = (0, told);
                }
                Heartbeat::Forgotten => return,
                Heartbeat::Failed => failures += 1,
            }
        }
    }

    /// Renews the lease once.
    async fn heartbeat(&mut self, id: u64, news: &mut NewsFeed) -> Heartbeat {
        let path = format!("/v1/workers/{id}/heartbeat");
        let told = news.borrow_and_update().clone();
        let body = told.as_ref().map(|news| json!({ "devices": news.report() }));
        let reply = self.call(Method::POST, &path, body.as_ref()).await;
        let frontend = &self.frontend;
        let reason = match reply {
            Ok((status, answer)) if status.is_success() => {
                match answer["devices_problem"].as_str() {
                    Some(problem) => self.complaint.say(problem, |reason| {
                        warn!(%frontend, id, reason, "frontend does not take the news of the engine's GPUs");
                    }),
                    None => self.complaint = Complaint::default(),
                }
                return Heartbeat::Taken(told.map(|news| news.alarm));
            }
            Ok((StatusCode::NOT_FOUND, _)) => {
                warn!(%frontend, id, "frontend does not know the worker any more: registering again");
                self.registered = None;
                return Heartbeat::Forgotten;
            }
            Ok((status, answer)) => {
                answer["error"]["message"].as_str().map_or_else(|| status.to_string(), str::to_owned)
            }
            Err(reason) => reason,
        };
        self.complaint.say(&reason, |reason| {
            warn!(%frontend, id, reason, "heartbeat failed; trying again");
        });
        Heartbeat::Failed
    }

    /// From one heartbeat to the next. A frontend forgets news of GPUs within half a minute, whatever the lease.
    fn interval(&self, news: &NewsFeed) -> Duration {
        let of_lease = self.lease / 3;
        if news.borrow().is_some() { of_lease.min(NEWS_INTERVAL) } else { of_lease }
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
}

/// What was last said of a failure.
#[derive(Debug, Default)]
struct Complaint(Option<String>);

impl Complaint {
    /// Says it once, however often it is tried again.
    fn say(&mut self, reason: &str, say: impl FnOnce(&str)) {
        if self.0.as_deref() != Some(reason) {
            say(reason);
            self.0 = Some(reason.to_owned());
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

/// Returns when there is news of GPUs that does not wait: a fault came or went since the news with that alarm.
async fn alarmed(news: &mut NewsFeed, told: Option<u64>) {
    let urgent = |news: &Option<Arc<News>>| news.as_ref().is_some_and(|news| Some(news.alarm) != told);
    if news.wait_for(urgent).await.is_err() {
        // There is no sampler, and never will be.
        std::future::pending::<()>().await;
    }
}
