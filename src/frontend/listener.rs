//! One listening socket and its connections.

use std::{io, time::Duration};

use axum::Router;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    pin, select,
    task::{JoinHandle, JoinSet},
    time,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

/// Serves a router on a socket. The server owns its connections: however it ends, they end with it.
pub(super) struct Server {
    stop: CancellationToken,
    cut: CancellationToken,
    task: JoinHandle<()>,
}

impl Server {
    pub(super) fn start(listener: TcpListener, router: Router) -> Self {
        let (stop, cut) = (CancellationToken::new(), CancellationToken::new());
        let task = tokio::spawn(run(listener, router, stop.clone(), cut.clone()));
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

async fn run(listener: TcpListener, router: Router, stop: CancellationToken, cut: CancellationToken) {
    let mut connections = JoinSet::new();
    loop {
        select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve(stream, router.clone(), stop.clone()));
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

async fn serve(stream: TcpStream, router: Router, stop: CancellationToken) {
    // Streams are many small writes; with Nagle's algorithm each would wait for an acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%error, "TCP_NODELAY not set");
    }
    let builder = auto::Builder::new(TokioExecutor::new());
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    pin!(connection);
    let ended = select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
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
