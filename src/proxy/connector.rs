//! New connections to workers, over TCP alone or with TLS on top.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::pki_types::ServerName;
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tower_service::Service as _;

use crate::tls::ClientTls;

/// Connects to `http` and `https` URLs.
#[derive(Clone)]
pub(super) struct Connector {
    tcp: HttpConnector,
    tls: ClientTls,
    /// For a TCP connection, the name's address included, and again for the handshake.
    patience: Option<Duration>,
}

/// There is a connection, and no secure one over it.
#[derive(Debug, Error)]
#[error("{0}")]
pub(super) struct HandshakeError(io::Error);

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Connector {
    pub(super) fn new(mut tcp: HttpConnector, tls: ClientTls, patience: Option<Duration>) -> Self {
        tcp.enforce_http(false);
        Self { tcp, tls, patience }
    }

    /// Opens a connection to the host of a URL.
    ///
    /// # Errors
    /// What the system says, within as many wrappers as it takes; [`HandshakeError`] where there is a connection and no secure one.
    pub(super) async fn connect(&self, to: &Uri) -> Result<Link, BoxError> {
        // Its readiness is a formality: it asks the system for addresses, for as many callers as come. Its own limit begins when it
        // has them.
        let connecting = self.tcp.clone().call(to.clone());
        let tcp = within(self.patience, "no TCP connection", connecting).await??.into_inner();
        if to.scheme_str() != Some("https") {
            return Ok(Link::Plain(tcp));
        }
        let host = to.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let shaking = handshake(tcp, host, &self.tls);
        let shaken = within(self.patience, "no end of the TLS handshake", shaking).await??;
        Ok(Link::Secure(Box::new(shaken)))
    }
}

/// What comes of `doing`, unless it takes too long: an error that is told apart by its kind, as the connector's own is.
async fn within<T>(
    patience: Option<Duration>,
    without: &'static str,
    doing: impl Future<Output = T>,
) -> io::Result<T> {
    match patience {
        None => Ok(doing.await),
        Some(patience) => {
            let done = time::timeout(patience, doing).await;
            done.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, without))
        }
    }
}

async fn handshake(
    tcp: TcpStream,
    host: String,
    tls: &ClientTls,
) -> Result<TlsStream<TcpStream>, HandshakeError> {
    let failed = |problem: &str| HandshakeError(io::Error::other(problem));
    let name =
        ServerName::try_from(host).map_err(|_| failed("no certificate can be for such a host name"))?;
    let config = tls.config().ok_or_else(|| failed("TLS cannot be set up"))?;
    TlsConnector::from(Arc::clone(&config)).connect(name, tcp).await.map_err(HandshakeError)
}

/// A connection to a worker.
pub(super) enum Link {
    Plain(TcpStream),
    /// Boxed, for its size.
    Secure(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Link {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_read(cx, into),
            Self::Secure(tls) => Pin::new(tls).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Link {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write(cx, from),
            Self::Secure(tls) => Pin::new(tls).poll_write(cx, from),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Self::Secure(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Self::Secure(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write_vectored(cx, from),
            Self::Secure(tls) => Pin::new(tls).poll_write_vectored(cx, from),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(tcp) => tcp.is_write_vectored(),
            Self::Secure(tls) => tls.is_write_vectored(),
        }
    }
}
