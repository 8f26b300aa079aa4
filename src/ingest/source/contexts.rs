//! The ZMQ contexts behind the streams.

use std::sync::Arc;

use zmq::Context;

use crate::ingest::{replays::Replays, settings::DEFAULT_REPLAYS};

/// Streams that share a ZMQ context. ZMQ allows a context 1,023 sockets, a stream has four, and every context
/// costs two threads.
const STREAMS_PER_CONTEXT: usize = 200;

/// What streams share: ZMQ contexts, and how many of their replays run at once.
pub struct Contexts {
    /// Each with a token that its streams hold, so that it is known how many there are.
    open: parking_lot::Mutex<Vec<(Context, Arc<()>)>>,
    replays: Arc<Replays>,
}

impl Default for Contexts {
    fn default() -> Self {
        Self::new()
    }
}

impl Contexts {
    /// No context yet; they are made as streams need them, and stay. Of these streams as many replays run at once as by default.
    #[must_use]
    pub fn new() -> Self {
        Self::with(Replays::new(DEFAULT_REPLAYS))
    }

    pub(in crate::ingest) fn with(replays: Arc<Replays>) -> Self {
        Self { open: parking_lot::Mutex::default(), replays }
    }

    pub(in crate::ingest) fn lend(&self) -> Lent {
        let mut open = self.open.lock();
        if let Some((context, token)) =
            open.iter().find(|(_, token)| Arc::strong_count(token) <= STREAMS_PER_CONTEXT)
        {
            return self.share(context, token);
        }
        let (context, token) = (Context::new(), Arc::new(()));
        open.push((context.clone(), Arc::clone(&token)));
        self.share(&context, &token)
    }

    fn share(&self, context: &Context, token: &Arc<()>) -> Lent {
        Lent { context: context.clone(), replays: Arc::clone(&self.replays), _token: Arc::clone(token) }
    }
}

/// A share in a context, and in the replays that may run.
pub(in crate::ingest) struct Lent {
    pub(in crate::ingest) context: Context,
    pub(in crate::ingest) replays: Arc<Replays>,
    _token: Arc<()>,
}
