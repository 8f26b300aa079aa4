//! A connection to a worker, driven by whoever waits for what it brings.
//!
//! hyper leaves it to its caller to poll a connection. Here it is the request's own task that does, from the request's first byte to
//! the answer's last. With a task for each connection, as is usual, every piece of an answer goes from one task to another and
//! a question for the next one back, which on two threads is two wake-ups a piece; and each piece is written to the client by
//! itself, because the next one is never there yet. So all that has arrived goes out in one write.
//!
//! It follows that a connection stands still while nobody waits: a client that reads slowly stops the reading from its worker, and a
//! connection that is kept for later notices its end when it is taken out again.

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;

use super::connector::Link;

/// An open connection, over which one request goes at a time.
pub(super) struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    /// `None` once it has ended.
    driver: Option<http1::Connection<TokioIo<Link>, Full<Bytes>>>,
}

/// Why there is no answer.
pub(super) struct Unanswered {
    pub(super) error: hyper::Error,
    /// The request, if nothing of it was written.
    pub(super) unsent: Option<Request<Full<Bytes>>>,
}

impl Connection {
    /// Speaks HTTP over a link.
    ///
    /// # Errors
    /// None that is known: HTTP/1.1 begins with a request.
    pub(super) async fn open(link: TokioIo<Link>) -> hyper::Result<Self> {
        let (sender, driver) = http1::handshake(link).await?;
        Ok(Self { sender, driver: Some(driver) })
    }

    /// Sends a request and waits for the head of its answer. The body comes as the connection is [driven](Self::drive).
    ///
    /// # Errors
    /// When there is no answer.
    pub(super) async fn exchange(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, Unanswered> {
        let mut answer = std::pin::pin!(self.sender.try_send_request(request));
        let driver = &mut self.driver;
        let answer = std::future::poll_fn(|cx| {
            drive(driver, cx);
            answer.as_mut().poll(cx)
        });
        answer.await.map_err(|mut unanswered| Unanswered {
            unsent: unanswered.take_message(),
            error: unanswered.into_error(),
        })
    }

    /// Reads and writes what can be now. Whoever is woken by `cx` has to come back.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        drive(&mut self.driver, cx);
    }

    /// Whether another request can go over it, as far as is known by now.
    pub(super) fn is_free(&mut self) -> bool {
        // Nobody waits for it: whoever takes it drives it again.
        self.drive(&mut Context::from_waker(Waker::noop()));
        self.driver.is_some() && self.sender.is_ready()
    }

    /// Closes it between two requests, as far as that can be without waiting. Over TLS a worker that hears nothing before its
    /// connection ends has to take it for cut off.
    pub(super) fn close(self) {
        let Self { sender, mut driver } = self;
        // That no request can come any more is what ends it.
        drop(sender);
        drive(&mut driver, &mut Context::from_waker(Waker::noop()));
    }
}

/// Errors of a connection that has ended come out where something is waited for: an answer, or a piece of its body.
fn drive(driver: &mut Option<http1::Connection<TokioIo<Link>, Full<Bytes>>>, cx: &mut Context<'_>) {
    if let Some(running) = driver
        && let Poll::Ready(_) = Pin::new(running).poll(cx)
    {
        *driver = None;
    }
}
