//! The two listeners: start, and stop without dropping anybody.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, response::Response};
use http::Request;
use hyper::body::Incoming;
use thiserror::Error;
use tokio::{net::TcpListener, task::AbortHandle};
use tower_service::Service as _;
use tracing::{debug, info, warn};

use super::{
    access_log::{AccessLog, AccessLogError},
    admin,
    app::App,
    connections::{Connections, Terms},
    decision_log::{LogFileError, Recorder},
    gate, health_checks,
    listener::Server,
    parity, public,
    reload::Files,
    routing_reload,
    traces::{Traces, TracesError},
};
use crate::tls::{self, Identity, TlsFileError};

/// A frontend that could not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The port belongs to another process.
    #[error(
        "cannot listen on {address} for {purpose}: the port is taken; stop what holds it, or choose another with {flag}"
    )]
    PortTaken {
        /// The address.
        address: SocketAddr,
        /// What for.
        purpose: &'static str,
        /// The flag that changes it.
        flag: &'static str,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address} for {purpose}: {error}; choose another with {flag}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What for.
        purpose: &'static str,
        /// The flag that changes it.
        flag: &'static str,
        /// Why.
        error: io::Error,
    },
    /// Decisions cannot be recorded.
    #[error(transparent)]
    DecisionLog(#[from] LogFileError),
    /// Requests cannot be logged.
    #[error(transparent)]
    AccessLog(#[from] AccessLogError),
    /// Traces cannot be begun.
    #[error(transparent)]
    Traces(#[from] TracesError),
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsFileError),
}

/// A running frontend. Dropping it stops it at once; [`Frontend::stop`] lets open requests finish.
pub struct Frontend {
    public: SocketAddr,
    admin: SocketAddr,
    app: Arc<App>,
    public_server: Server,
    admin_server: Server,
    tasks: [AbortHandle; 5],
}

/// How often it is looked what is over; the shortest lease that can be asked for is a second.
const SWEEP: Duration = Duration::from_millis(250);

impl Frontend {
    /// Opens the logs, if there are to be any, and both listeners, and serves.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is left running.
    pub async fn start(mut app: App) -> Result<Self, StartError> {
        if let Some(log) = &app.settings.decision_log {
            app.decisions = Arc::new(Recorder::open(log)?);
        }
        if let Some(target) = &app.settings.access_log {
            app.access_log = AccessLog::open(target)?;
        }
        if let Some(endpoint) = &app.settings.otlp_endpoint {
            app.traces = Traces::open(endpoint)?;
        }
        app.files = Arc::new(Files::of(&app.settings));
        let settings = &app.settings;
        let public = listen(settings.public, "clients", "--port").await?;
        let admin = listen(settings.admin, "the admin listener", "--admin-port").await?;
        let (public_addr, admin_addr) = (local(&public, settings.public), local(&admin, settings.admin));
        let public_terms = terms(&app, settings.tls.as_ref(), &app.public_connections)?;
        let admin_terms = terms(&app, settings.admin_tls.as_ref(), &app.admin_connections)?;
        let app = Arc::new(app);
        let (served, routes) = (Arc::clone(&app), public::router(&app));
        let service = move |request| gate::pass(Arc::clone(&served), routes.clone(), request);
        let public_server = Server::start(public, service, public_terms);
        let routes = admin::router(&app);
        let admin_server = Server::start(admin, move |request| plain(routes.clone(), request), admin_terms);
        let tasks = [
            tokio::spawn(sweep(Arc::clone(&app))).abort_handle(),
            tokio::spawn(parity::check_admissions(Arc::clone(&app))).abort_handle(),
            tokio::spawn(health_checks::run(Arc::clone(&app))).abort_handle(),
            tokio::spawn(Arc::clone(&app.files).watch()).abort_handle(),
            tokio::spawn(routing_reload::watch(Arc::clone(&app))).abort_handle(),
        ];
        Ok(Self { public: public_addr, admin: admin_addr, app, public_server, admin_server, tasks })
    }

    /// Reads files of keys and certificates and the routing configuration again, changed or not. They are looked at once a
    /// second anyway.
    pub async fn reload(&self) {
        let files = Arc::clone(&self.app.files);
        let _ = tokio::task::spawn_blocking(move || files.reload()).await;
        routing_reload::reload(&self.app).await;
    }

    /// Where clients connect.
    #[must_use]
    pub const fn public_addr(&self) -> SocketAddr {
        self.public
    }

    /// Where operators connect.
    #[must_use]
    pub const fn admin_addr(&self) -> SocketAddr {
        self.admin
    }

    /// What the frontend serves with: its fleet and its counters.
    #[must_use]
    pub fn app(&self) -> &App {
        &self.app
    }

    /// Stops: no new requests, open ones finish within the drain timeout and are cut at its end. The admin
    /// listener stays until then, so that the drain can be watched. Returns whether every request finished.
    pub async fn stop(mut self) -> bool {
        self.app.set_draining();
        let timeout = self.app.settings.drain_timeout;
        let drained = self.public_server.stop(timeout).await;
        if !drained {
            warn!(seconds = timeout.as_secs_f64(), "drain timeout: open requests were cut");
        }
        // The admin listener's requests are short; a scrape that hangs must not hold the exit.
        self.admin_server.stop(Duration::from_secs(1)).await;
        // Cut requests have said how they ended by now.
        let app = Arc::clone(&self.app);
        let flushing = move || (app.decisions.flush(), app.access_log.flush(), app.traces.flush());
        let (decisions, accesses, traces) = tokio::task::spawn_blocking(flushing).await.unwrap_or_default();
        for (log, _) in
            [("decision", decisions), ("access", accesses)].into_iter().filter(|(_, flushed)| !flushed)
        {
            warn!("the {log} log was not written to its end");
        }
        if !traces {
            warn!("the last traces did not reach the collector");
        }
        debug!("frontend stopped");
        drained
    }
}

impl Drop for Frontend {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// What a listener does with its connections.
fn terms(
    app: &App,
    identity: Option<&Arc<Identity>>,
    counts: &Arc<Connections>,
) -> Result<Terms, TlsFileError> {
    let settings = &app.settings;
    Ok(Terms {
        tls: identity.map(|identity| tls::server(Arc::clone(identity))).transpose()?,
        most: settings.max_connections.unwrap_or(usize::MAX),
        patience: Some(settings.read_timeout).filter(|timeout| !timeout.is_zero()),
        // Above the limit, so that the answer to a head that is a little too large says so in a body.
        http2_header_bytes: u32::try_from(settings.max_header_bytes).unwrap_or(u32::MAX).saturating_mul(4),
        counts: Arc::clone(counts),
    })
}

/// The admin listener has no gate but its token.
async fn plain(mut routes: Router, request: Request<Incoming>) -> Response {
    let answer: Result<Response, Infallible> = routes.call(request).await;
    let Ok(response) = answer;
    response
}

async fn listen(
    address: SocketAddr,
    purpose: &'static str,
    flag: &'static str,
) -> Result<TcpListener, StartError> {
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => StartError::PortTaken { address, purpose, flag },
        _ => StartError::Listen { address, purpose, flag, error },
    })
}

fn local(listener: &TcpListener, asked: SocketAddr) -> SocketAddr {
    listener.local_addr().unwrap_or(asked)
}

/// Lets go what is over: leases, and a snapshot of which nothing is wanted any more.
async fn sweep(app: Arc<App>) {
    let mut ticks = tokio::time::interval(SWEEP);
    loop {
        ticks.tick().await;
        app.streams.give_up_snapshot();
        if !app.fleet.any_lease_over() {
            continue;
        }
        // Joining streams takes a moment: not on a thread that serves requests.
        let fleet = Arc::clone(&app.fleet);
        let expired = tokio::task::spawn_blocking(move || fleet.expire_leases()).await;
        if let Ok(expired) = expired
            && !expired.is_empty()
        {
            info!(workers = expired.len(), "leases expired");
        }
    }
}
