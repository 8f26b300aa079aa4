//! How long an answer may take: altogether, and between two pieces of it.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep_until};

/// The time that a request has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Time {
    /// When it is over.
    pub(crate) until: Instant,
    /// How long it was.
    pub(crate) limit: Duration,
}

/// The limit on a worker's silence.
///
/// It runs while we wait for the worker only: a client that reads slowly stops us from asking, which says nothing
/// of the worker. The timer is moved only when it fires, so that a frame costs no more than a look at the clock.
pub(super) struct Idle {
    limit: Option<Duration>,
    waiting_since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Idle {
    pub(super) fn new(limit: Option<Duration>) -> Self {
        Self { limit, waiting_since: None, timer: None }
    }

    /// Notes a frame.
    pub(super) fn touch(&mut self) {
        self.waiting_since = None;
    }

    /// To be called when there is no frame: ready, with the limit, once that has been so for as long.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Duration> {
        let Some(limit) = self.limit else { return Poll::Pending };
        // A limit beyond all time is none.
        let since = *self.waiting_since.get_or_insert_with(Instant::now);
        let Some(deadline) = since.checked_add(limit) else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        loop {
            ready!(timer.as_mut().poll(cx));
            if timer.deadline() >= deadline {
                return Poll::Ready(limit);
            }
            timer.as_mut().reset(deadline);
        }
    }
}
