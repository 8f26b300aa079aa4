//! Ctrl-C and SIGTERM: the first drains, the second does not wait. And SIGHUP, at which files are read again.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};

use super::Outcome;
use crate::frontend::Frontend;

/// The signals that end a process.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

/// Takes over the signals; from now on they end nothing by themselves.
///
/// # Errors
/// The system refuses a handler.
pub(super) fn signals() -> io::Result<Signals> {
    Ok(Signals { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
}

/// Takes over SIGHUP, which from now on ends nothing either.
///
/// # Errors
/// The system refuses a handler.
pub(super) fn hangups() -> io::Result<Signal> {
    signal(SignalKind::hangup())
}

impl Signals {
    /// Waits for either.
    pub(super) async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Lets open requests finish, within the drain timeout or until a second signal.
pub(super) async fn drain(frontend: Frontend, signals: &mut Signals) -> Outcome {
    info!("stopping: no new requests; a second signal does not wait for the open ones");
    tokio::select! {
        _ = frontend.stop() => {}
        () = signals.wait() => warn!("stopped without waiting for open requests"),
    }
    Ok(())
}
