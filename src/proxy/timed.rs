//! An answer that is cut when its time is over, whoever reads it.
//!
//! A server asks for no more while its client does not read, and so an answer that looked at the time only when it is asked would hold its
//! worker, and all that is booked there, for as long as the client likes. A task waits instead, one for each answer that
//! has a limit.

use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use tokio::{task::AbortHandle, time::sleep_until};

use super::{
    error::ProxyError,
    limits::Time,
    observe::{End, Observer},
    relay::Relay,
};

pub(super) struct Timed<O: Observer> {
    shared: Arc<Mutex<Shared<O>>>,
    timer: AbortHandle,
}

struct Shared<O: Observer> {
    relay: Relay<O>,
    /// Who waits for a frame: there is one when the time is over.
    reader: Option<Waker>,
}

impl<O: Observer> Timed<O> {
    pub(super) fn new(relay: Relay<O>, time: Time) -> Self {
        let shared = Arc::new(Mutex::new(Shared { relay, reader: None }));
        let of_timer = Arc::clone(&shared);
        let timer = tokio::spawn(async move {
            sleep_until(time.until).await;
            let mut shared = of_timer.lock();
            shared.relay.time_over(time.limit);
            let reader = shared.reader.take();
            drop(shared);
            if let Some(reader) = reader {
                reader.wake();
            }
        });
        Self { shared, timer: timer.abort_handle() }
    }

    pub(super) fn relay(&self) -> MappedMutexGuard<'_, Relay<O>> {
        MutexGuard::map(self.shared.lock(), |shared| &mut shared.relay)
    }

    pub(super) fn poll_frame(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ProxyError>>> {
        let mut shared = self.shared.lock();
        let polled = shared.relay.poll_frame(cx);
        if polled.is_pending() {
            match &mut shared.reader {
                Some(reader) => reader.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
        }
        polled
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.relay().is_end_stream()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.relay().size_hint()
    }
}

impl<O: Observer> Drop for Timed<O> {
    fn drop(&mut self) {
        // Here and now: the task holds it until it is its turn to end.
        self.relay().end(End::Dropped);
        self.timer.abort();
    }
}
