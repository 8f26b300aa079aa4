//! The log of decisions: who was chosen for a request, from what, and what came of it.
//!
//! With `--decision-log` the decisions of sampled requests are kept twice, under the name that the answer carries: the last of them in memory, for `GET /v1/route/decisions/ID`, and all of them in a file, for `kvroute simulate
//! --decisions`. A decision is copied on the thread that made it, after the admission; all else is the work of one thread, behind a
//! bounded queue. What does not fit is counted and lost: routing never waits for a disk.
//!
//! Without the flag nothing of this is done. What a record holds is in [`decisions`](crate::decisions); nothing of it
//! tells what a prompt says.

mod file;
mod memory;
mod page;
mod record;
mod recorder;
mod settings;
mod ticket;
mod writer;

pub use file::LogFileError;
pub(super) use memory::Kept;
pub(super) use recorder::{Moment, Recorder};
pub use settings::DecisionLogSettings;
pub(super) use ticket::Ticket;
