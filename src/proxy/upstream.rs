//! The body of an answer, and the connection that it comes over.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::{connection::Connection, kept::Lender};

/// A worker's body as it arrives. Once it has been read to its end the connection goes back to where it is kept; dropped before, it
/// is closed, by which the worker learns that nobody waits any more.
pub(super) struct Upstream {
    body: Incoming,
    /// Boxed: it goes through many hands, and is large.
    connection: Option<Box<Connection>>,
    /// It was read to its end, where only that shows it: a body in chunks does not say that a chunk was its last.
    over: bool,
    lender: Lender,
}

impl Upstream {
    pub(super) fn new(body: Incoming, connection: Box<Connection>, lender: Lender) -> Self {
        Self { body, connection: Some(connection), over: false, lender }
    }
}

impl Body for Upstream {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        let mut polled = Pin::new(&mut this.body).poll_frame(cx);
        if polled.is_pending()
            && let Some(connection) = &mut this.connection
        {
            // It knows by now that a piece is wanted, and brings it here if it has arrived.
            connection.drive(cx);
            polled = Pin::new(&mut this.body).poll_frame(cx);
        }
        // Nothing comes after trailers, and whoever has them does not ask.
        this.over |= match &polled {
            Poll::Ready(Some(Ok(frame))) => frame.is_trailers(),
            polled => matches!(polled, Poll::Ready(None)),
        };
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.over || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        if let Some(mut connection) = self.connection.take()
            && self.is_end_stream()
            && connection.is_free()
        {
            self.lender.keep(connection);
        }
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").field("body", &self.body).finish_non_exhaustive()
    }
}
