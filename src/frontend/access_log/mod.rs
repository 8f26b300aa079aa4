//! The access log: a line of JSON for every request of a client, written when its answer is over.
//!
//! With `--access-log` a [`Line`] goes along with every request on the public listener, whatever becomes of it. What only
//! inner parts know of a request (its model, the worker, what the engine counted) they note in its [`Facts`]. When the last
//! byte of the answer is out, or the client has left, the line is made and put into a bounded queue, before one thread that
//! writes. What does not fit is counted and lost: no request waits for a disk.
//!
//! Nothing of a prompt or an answer is in a line, no query string, and no key but its name.

mod line;
mod page;
mod settings;
mod writer;

use std::{io, path::PathBuf, sync::Arc};

use http::request::Parts;
use thiserror::Error;
use tracing::info;

use self::writer::{LIMITS, Queue, Writer};
use super::{log_queue, request_id::RequestId};

pub(super) use line::{Facts, Line, Written};
pub use settings::AccessLogTarget;

/// An access log that cannot be begun.
#[derive(Debug, Error)]
#[error("--access-log {path}: {error}")]
pub struct AccessLogError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub error: io::Error,
}

/// The log, if there is to be one.
#[derive(Default)]
pub(super) struct AccessLog(Option<Arc<Queue>>);

impl AccessLog {
    /// Opens the log and starts its thread.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub(super) fn open(target: &AccessLogTarget) -> Result<Self, AccessLogError> {
        let failed = |error| AccessLogError { path: target.to_string().into(), error };
        let (queue, waiting) = Queue::new(LIMITS);
        Writer::open(target, waiting)
            .and_then(|writer| log_queue::start(writer, "access-log"))
            .map_err(failed)?;
        info!(to = %target, "requests are logged");
        Ok(Self(Some(Arc::new(queue))))
    }

    /// The line of a request that begins; none without a log.
    pub(super) fn begin(&self, name: &RequestId, head: &Parts) -> Option<Line> {
        self.0.as_ref().map(|queue| Line::begin(Some(Arc::clone(queue)), name, head))
    }

    /// Waits until all lines are written, for a while; whether they are.
    pub(super) fn flush(&self) -> bool {
        self.0.as_ref().is_none_or(|queue| queue.flush())
    }
}
