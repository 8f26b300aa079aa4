//! The proxy between real sockets: a worker that does as each test says, a server in the middle, a client that reads
//! the bytes on the wire.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod answers;
mod connections;
mod failures;
mod router;
mod streams;
mod worker;
