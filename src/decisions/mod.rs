//! Decisions as they are kept: what was chosen, from what, and what came of it.
//!
//! A [`Decision`] holds all that [`decide`](crate::select::decide) was given: every candidate's row, what the request
//! asked, the [`Rule`] in force, and the state of the random source, so that [`replay`] makes it again bit for bit. What
//! became of the request follows later, as an [`Outcome`]. [`what_if`] asks the same rows under other settings.
//!
//! An [`Encoder`] makes bytes of them and a [`Reader`] reads these back. The format is compact and versioned, each record has a
//! length and a checksum, and nothing before a torn end is lost; `frame.rs` has the layout.
//!
//! What a prompt says is never in it: neither tokens nor hashes of blocks. Names of requests and workers are.
//!
//! Nothing here opens a file, and nothing here decides: the frontend writes the log, `select` decides.

mod encoder;
mod frame;
mod reader;
mod record;
mod replay;
mod what_if;
mod wire;

pub use encoder::Encoder;
pub use frame::{FORMAT, LogError};
pub use reader::{Entry, Reader, Tail};
pub use record::{Decision, Finish, Outcome, Question, Rule, Verdict};
pub use replay::{Difference, Remade, replay};
pub use what_if::{Comparison, Saving, Savings, what_if};
