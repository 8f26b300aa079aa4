//! One listening socket and its connections.

use std::{convert::Infallible, error::Error, io, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    pin, select,
    task::{JoinHandle, JoinSet},
    time,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::{
    connections::{Activity, Answer, Failure, Noted, Terms},
    hangup::Hangup,
    in_place::InPlace,
};

/// Serves a socket. The server owns its connections: however it ends, they end with it.
pub(super) struct Server {
    stop: CancellationToken,
    cut: CancellationToken,
    task: JoinHandle<()>,
}

/// What answers requests. A closure of one argument is one.
pub(super) trait Service: Clone + Send + Sync + 'static {
    type Body: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + Unpin + 'static;

    type Answer: Future<Output = Response<Self::Body>> + Send + 'static;

    fn answer(&self, request: Request<Incoming>) -> Self::Answer;
}

impl<S, F, B> Service for S
where
    S: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + Unpin + 'static,
{
    type Body = B;
    type Answer = F;

    fn answer(&self, request: Request<Incoming>) -> F {
        self(request)
    }
}

/// How long a connection without a request is waited for when the server stops.
const LEAVING: Duration = Duration::from_secs(2);

/// A client whose host has vanished says no goodbye, and while it waits for an answer nothing is sent to it that would show it. After so
/// long without a word TCP asks it, so often and so many times. Nothing is done about one that acknowledges what it is sent and reads none
/// of it: that may be a client that takes its time.
const SILENCE: Duration = Duration::from_secs(30);
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
const PROBES: u32 = 3;

/// How long a connection that is asked to end may take to say goodbye.
const PARTING: Duration = Duration::from_secs(1);

impl Server {
    pub(super) fn start(listener: TcpListener, service: impl Service, terms: Terms) -> Self {
        ask_the_silent(&listener);
        let (stop, cut) = (CancellationToken::new(), CancellationToken::new());
        let task = tokio::spawn(run(listener, service, Arc::new(terms), stop.clone(), cut.clone()));
        Self { stop, cut, task }
    }

    /// Takes no more connections and no more requests, and lets open requests finish within `timeout`. Then
    /// it cuts them. When this returns, every connection is closed; true if none had to be cut.
    pub(super) async fn stop(&mut self, timeout: Duration) -> bool {
        self.stop.cancel();
        if time::timeout(timeout, &mut self.task).await.is_ok() {
            return true;
        }
        self.cut.cancel();
        // Fails only for a task that was aborted or panicked, which has ended too.
        let _ = (&mut self.task).await;
        false
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Sets it on the listener: accepted connections have it from there.
fn ask_the_silent(listener: &TcpListener) {
    let probes = TcpKeepalive::new().with_time(SILENCE).with_interval(PROBE_INTERVAL).with_retries(PROBES);
    if let Err(error) = SockRef::from(listener).set_tcp_keepalive(&probes) {
        debug!(%error, "no TCP keep-alive");
    }
}

async fn run(
    listener: TcpListener,
    service: impl Service,
    terms: Arc<Terms>,
    stop: CancellationToken,
    cut: CancellationToken,
) {
    let mut connections = JoinSet::new();
    loop {
        select! {
            () = stop.cancelled() => break,
            accepted = listener.accept(), if connections.len() < terms.most => match accepted {
                Ok((stream, _)) => {
                    let serving = serve(stream, service.clone(), Arc::clone(&terms), stop.clone());
                    connections.spawn(InPlace::new(serving));
                }
                Err(error) => after_failure(&error).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
    // Closed, so that new connections are refused and a balancer goes elsewhere at once.
    drop(listener);
    select! {
        () = cut.cancelled() => connections.shutdown().await,
        () = async { while connections.join_next().await.is_some() {} } => {}
    }
}

async fn serve(stream: TcpStream, service: impl Service, terms: Arc<Terms>, stop: CancellationToken) {
    let _open = terms.counts.open();
    // Streams are many small writes; with Nagle's algorithm each would wait for an acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%error, "TCP_NODELAY not set");
    }
    let Some(acceptor) = &terms.tls else { return talk(stream, service, &terms, stop).await };
    let shaken = select! {
        shaken = handshake(acceptor, stream, terms.patience) => shaken,
        () = stop.cancelled() => return,
    };
    match shaken {
        Ok(stream) => talk(stream, service, &terms, stop).await,
        Err(failure) => {
            terms.counts.failed(failure);
            debug!(failure = failure.name(), "no TLS with a client");
        }
    }
}

async fn handshake(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
    patience: Option<Duration>,
) -> Result<TlsStream<TcpStream>, Failure> {
    let shaking = acceptor.accept(stream);
    let shaken = match patience {
        Some(patience) => time::timeout(patience, shaking).await.map_err(|_| Failure::Timeout)?,
        None => shaking.await,
    };
    shaken.map_err(|error| Failure::of(&error))
}

/// Speaks HTTP until either side has had enough.
async fn talk(
    io: impl AsyncRead + AsyncWrite + Hangup + Unpin + Send + 'static,
    service: impl Service,
    terms: &Terms,
    stop: CancellationToken,
) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http2().max_header_list_size(terms.http2_header_bytes);
    let activity = Arc::new(Activity::default());
    let noted = Arc::clone(&activity);
    let service = service_fn(move |request| {
        let answering = noted.begin();
        let answer = service.answer(request);
        async move {
            let response = answer.await;
            Ok::<_, Infallible>(response.map(|body| Answer { body, _answering: answering }))
        }
    });
    let io = Noted::new(io, &activity);
    let connection = builder.serve_connection(TokioIo::new(io), service);
    pin!(connection);
    let ended = select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            select! {
                ended = connection.as_mut() => ended,
                // As below: half a head is no request that somebody waits for.
                () = activity.ceases(Some(LEAVING)) => Ok(()),
            }
        }
        () = activity.ceases(terms.patience) => {
            connection.as_mut().graceful_shutdown();
            // One that is in the middle of a head does not end by itself.
            time::timeout(PARTING, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        debug!(%error, "connection ended");
    }
}

/// A connection that failed before it was accepted is its client's business. Anything else is most likely a
/// lack of file descriptors, which passes as others close theirs.
async fn after_failure(error: &io::Error) {
    let of_client =
        [io::ErrorKind::ConnectionAborted, io::ErrorKind::ConnectionRefused, io::ErrorKind::ConnectionReset];
    if !of_client.contains(&error.kind()) {
        warn!(%error, "a connection could not be accepted");
        time::sleep(Duration::from_millis(100)).await;
    }
}
