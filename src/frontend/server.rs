//! The two listeners: start, and stop without dropping anybody.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use thiserror::Error;
use tokio::{net::TcpListener, task::AbortHandle};
use tracing::{debug, info, warn};

use super::{
    admin,
    app::App,
    decision_log::{LogFileError, Recorder},
    listener::Server,
    parity, public,
};

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
}

/// A running frontend. Dropping it stops it at once; [`Frontend::stop`] lets open requests finish.
pub struct Frontend {
    public: SocketAddr,
    admin: SocketAddr,
    app: Arc<App>,
    public_server: Server,
    admin_server: Server,
    leases: AbortHandle,
    checks: AbortHandle,
}

/// How often leases are looked at; the shortest lease that can be asked for is a second.
const LEASE_SWEEP: Duration = Duration::from_millis(250);

impl Frontend {
    /// Opens the decision log, if there is to be one, and both listeners, and serves.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is left running.
    pub async fn start(mut app: App) -> Result<Self, StartError> {
        if let Some(log) = &app.settings.decision_log {
            app.decisions = Arc::new(Recorder::open(log)?);
        }
        let settings = &app.settings;
        let public = listen(settings.public, "clients", "--port").await?;
        let admin = listen(settings.admin, "the admin listener", "--admin-port").await?;
        let (public_addr, admin_addr) = (local(&public, settings.public), local(&admin, settings.admin));
        let app = Arc::new(app);
        let public_server = Server::start(public, public::router(&app));
        let admin_server = Server::start(admin, admin::router(&app));
        let leases = tokio::spawn(sweep_leases(Arc::clone(&app))).abort_handle();
        let checks = tokio::spawn(parity::check_admissions(Arc::clone(&app))).abort_handle();
        Ok(Self { public: public_addr, admin: admin_addr, app, public_server, admin_server, leases, checks })
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
        if !matches!(tokio::task::spawn_blocking(move || app.decisions.flush()).await, Ok(true)) {
            warn!("the decision log was not written to its end");
        }
        debug!("frontend stopped");
        drained
    }
}

impl Drop for Frontend {
    fn drop(&mut self) {
        self.leases.abort();
        self.checks.abort();
    }
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

async fn sweep_leases(app: Arc<App>) {
    let mut ticks = tokio::time::interval(LEASE_SWEEP);
    loop {
        ticks.tick().await;
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
