//! Whether a client has closed its side, where nobody reads on.
//!
//! The HTTP/1.1 server sees an end of the connection by reading, and does not read on while it has bytes that it has not used: a request behind
//! the one that is being answered, or just a line too many. The system tells of the end unread.

use std::{
    pin::pin,
    task::{Context, Poll},
};

use tokio::{io::Interest, net::TcpStream};
use tokio_rustls::server::TlsStream;

pub(super) trait Hangup {
    /// Whether it is closed, by what the system said last, which is not asked. If not, the task is woken when it says more.
    fn has_closed(&self, cx: &mut Context<'_>) -> bool;
}

impl Hangup for TcpStream {
    fn has_closed(&self, cx: &mut Context<'_>) -> bool {
        // This wakes the task, as reading would; the other says what there is to read.
        if self.poll_read_ready(cx).is_pending() {
            return false;
        }
        matches!(pin!(self.ready(Interest::READABLE)).poll(cx), Poll::Ready(Ok(ready)) if ready.is_read_closed())
    }
}

impl Hangup for TlsStream<TcpStream> {
    fn has_closed(&self, cx: &mut Context<'_>) -> bool {
        self.get_ref().0.has_closed(cx)
    }
}
