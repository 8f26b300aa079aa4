//! From the router to a worker and back: one HTTP/1.1 request upstream, over TLS if its URL says so, its answer relayed as
//! it comes.
//!
//! A [`Pool`] keeps connections to workers. [`Pool::forward`] sends one request and waits for the first byte of the
//! answer's body; until then a failure is a [`ProxyError`] and nothing has been promised to the client, so the caller
//! may try another worker. The [`Answer`] it returns is then either dropped (which cancels it) or relayed:
//! [`Answer::relay`] makes it a response whose [`ProxyBody`] passes every byte on unchanged while an [`Observer`]
//! hears about first byte, first token, output, usage and the end.
//!
//! What must hold:
//! * The observer is dropped exactly once, at the moment the body ends, is cut, or is dropped; whatever has to live
//!   as long as the request (a booking, a gauge) is a field of it.
//! * Dropping an [`Answer`], a [`ProxyBody`] or the future of [`Pool::forward`] closes the upstream connection at
//!   once, so that an engine stops working for a client that left.
//! * A cut stream never looks complete: see [`ProxyBody`].
//! * Bodies are looked at, never collected: memory is bounded whatever a worker sends.
//!
//! [`Caller`] is for the router's own small questions, whose answers are read whole, up to a limit.
//!
//! It is not a place for policy. It never tries twice; which worker, whether again, and what to tell the client are
//! the caller's decisions, for which [`ProxyError`] carries the facts.

mod annotate;
mod body;
mod caller;
mod connection;
mod connector;
mod error;
mod forward;
mod headers;
mod kept;
mod limits;
mod observe;
mod pool;
mod relay;
mod skim;
mod sse;
mod timed;
mod upstream;

pub use annotate::{Annotated, Annotator, annotate};
pub use body::ProxyBody;
pub(crate) use caller::Caller;
pub use error::{ErrorKind, Origin, ProxyError, Retry};
pub use forward::Answer;
#[cfg(feature = "otel")]
pub(crate) use forward::usual_port;
pub use headers::without_named;
pub(crate) use limits::Time;
pub use observe::{End, Observer, Usage};
pub use pool::{Pool, PoolSettings};
