//! Who is there.

mod stream_status;

pub use stream_status::{StreamState, StreamStatus, StreamTotals};
