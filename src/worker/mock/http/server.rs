//! The listening socket and its connections.

use std::net::SocketAddr;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Binds so that a restarted engine gets its port back while old connections still linger in the system.
pub(in crate::worker::mock) fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(1024)
}

/// Serves until `stop`. Then the listener and every connection are closed at once, in the middle of whatever
/// they carry, as when the process is killed; they are closed when this returns.
pub(in crate::worker::mock) async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    // Without it every small event would wait for the acknowledgement of the one before.
                    let _ = stream.set_nodelay(true);
                    let service = TowerToHyperService::new(router.clone());
                    connections.spawn(async move {
                        let builder = auto::Builder::new(TokioExecutor::new());
                        // How a connection ends is the client's business.
                        let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                    });
                }
                // Out of file descriptors, most likely: give the others time to end.
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    connections.shutdown().await;
}
