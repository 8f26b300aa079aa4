//! The ZMQ contexts behind the streams.

use std::sync::Arc;

use zmq::Context;

/// Streams that share a ZMQ context. ZMQ allows a context 1,023 sockets, a stream has four, and every context
/// costs two threads.
const STREAMS_PER_CONTEXT: usize = 200;

/// The ZMQ contexts that streams share.
#[derive(Default)]
pub struct Contexts {
    /// Each with a token that its streams hold, so that it is known how many there are.
    open: parking_lot::Mutex<Vec<(Context, Arc<()>)>>,
}

impl Contexts {
    /// No context yet; they are made as streams need them, and stay.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    pub(in crate::ingest) fn lend(&self) -> Lent {
        let mut open = self.open.lock();
        if let Some((context, token)) =
            open.iter().find(|(_, token)| Arc::strong_count(token) <= STREAMS_PER_CONTEXT)
        {
            return Lent { context: context.clone(), _token: Arc::clone(token) };
        }
        let (context, token) = (Context::new(), Arc::new(()));
        open.push((context.clone(), Arc::clone(&token)));
        Lent { context, _token: token }
    }
}

/// A share in a context.
pub(in crate::ingest) struct Lent {
    pub(in crate::ingest) context: Context,
    _token: Arc<()>,
}
