//! Numbers for the operator: what is counted, and the page it is read from.
//!
//! Rooms own their counters as plain atomics; a collector of this room reads them when a scraper asks and never in
//! between. What is timed is observed into a [`Histogram`], which costs two additions and no lock. Every name on
//! the page begins with `kvroute_`, which [`Exposition`] adds, so that none can lack it.
//!
//! It is not a library of metric types: a counter is an `AtomicU64` in the room that counts.

mod exposition;
mod histogram;

pub use exposition::{CONTENT_TYPE, Exposition, Labels, Page, Source};
pub use histogram::{BOUNDS, Histogram, Snapshot};
