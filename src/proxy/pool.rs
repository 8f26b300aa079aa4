//! Connections to workers, kept and reused.

use std::{fmt, time::Duration};

use http::HeaderValue;
use hyper_util::client::legacy::connect::HttpConnector;

use super::{connector::Connector, kept::Kept};
use crate::tls::ClientTls;

/// How a [`Pool`] deals with workers. A duration of 0 switches a limit off.
#[derive(Clone, Debug)]
pub struct PoolSettings {
    /// Limit for the TCP connection to be there, and again for the TLS handshake over it. Default 2 s: a worker is a few
    /// hops away, and the client waits.
    pub connect_timeout: Duration,
    /// Limit from the start of the request, connecting included, to the first byte of the answer's body. Default
    /// 600 s, the default patience of OpenAI's own clients: an answer that does not stream has its first byte only
    /// when it is complete, and a queue in the engine counts too.
    pub first_byte_timeout: Duration,
    /// Limit for silence between two pieces of a body, the worker's silence, not the client's. Default 120 s.
    pub idle_timeout: Duration,
    /// How long an unused connection is kept. Default 4 s: engines behind uvicorn close theirs after 5 s, and a
    /// request sent just then is lost ([`ErrorKind::Reset`](super::ErrorKind::Reset)).
    pub keep_alive: Duration,
    /// Unused connections kept for one worker; those above are closed. Default 512.
    pub max_idle_connections: usize,
    /// Idle time after which TCP asks whether the worker's host is still there, so that one that vanished without a
    /// word is noticed without waiting for the limits above: 15 s later, on Linux after twice the sum, for which it also
    /// bears that what was sent is not acknowledged, or not read by the worker. Default 15 s.
    pub tcp_keep_alive: Duration,
    /// Whom to trust at `https` URLs. Default: whom the system trusts.
    pub tls: ClientTls,
    /// What every request carries as `authorization`, in place of the client's own. Default: the client's own.
    pub authorization: Option<HeaderValue>,
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(2),
            first_byte_timeout: Duration::from_secs(600),
            idle_timeout: Duration::from_secs(120),
            keep_alive: Duration::from_secs(4),
            max_idle_connections: 512,
            tcp_keep_alive: Duration::from_secs(15),
            tls: ClientTls::default(),
            authorization: None,
        }
    }
}

/// Connections to workers over HTTP/1.1, one request at a time on each. Clones share them.
#[derive(Clone)]
pub struct Pool {
    pub(super) connector: Connector,
    pub(super) kept: Kept,
    pub(super) authorization: Option<HeaderValue>,
    pub(super) first_byte_timeout: Option<Duration>,
    pub(super) idle_timeout: Option<Duration>,
}

impl Pool {
    /// An empty pool. It connects when there is something to send.
    #[must_use]
    pub fn new(settings: &PoolSettings) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(limit(settings.connect_timeout));
        connector.set_keepalive(limit(settings.tcp_keep_alive));
        connector.set_keepalive_interval(Some(PROBE_INTERVAL));
        connector.set_keepalive_retries(Some(PROBES));
        // TCP does not probe while something it sent is unanswered: without this, a request to a host that has vanished would be sent
        // again and again for as long as the first byte may take. It ends connections to workers that read nothing as well, so it is
        // twice what probes take.
        #[cfg(target_os = "linux")]
        connector.set_tcp_user_timeout(
            limit(settings.tcp_keep_alive).map(|silence| 2 * (silence + PROBE_INTERVAL * PROBES)),
        );
        let connector = Connector::new(connector, settings.tls.clone(), limit(settings.connect_timeout));
        Self {
            connector,
            kept: Kept::new(limit(settings.keep_alive), settings.max_idle_connections),
            authorization: settings.authorization.clone(),
            first_byte_timeout: limit(settings.first_byte_timeout),
            idle_timeout: limit(settings.idle_timeout),
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("first_byte_timeout", &self.first_byte_timeout)
            .field("idle_timeout", &self.idle_timeout)
            .finish_non_exhaustive()
    }
}

/// How often TCP asks a host that is silent, and how often in all.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;

fn limit(duration: Duration) -> Option<Duration> {
    (!duration.is_zero()).then_some(duration)
}
