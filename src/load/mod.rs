//! What each slot is doing.
//!
//! [`Loads`] counts, for every slot of one worker set, the requests in flight, the prompt tokens still to be
//! prefilled and the decode blocks in use. A [`Booking`] is one request's share of that. It is taken when the
//! request is admitted and goes back when the booking is dropped, so every way out of a request returns what
//! it took.
//!
//! Beside the counts a slot has a queue of the prefills booked there, and what the times of their first tokens say of its
//! speed; both serve the cost model in seconds.
//!
//! The counts are what this router sent, known at once. They are not what an engine reports about itself.
//!
//! Two kinds of lock, never held together:
//! * the *ledger*, one short mutex a worker set: admission reads loads, decides and books under it;
//! * the *active blocks*, one mutex a slot: which prompt blocks the slot's requests use, so that a block used
//!   by several of them counts once. Their work grows with the prompt, so it stays outside the ledger.

mod active;
mod backlog;
mod booking;
mod busy;
mod loads;
mod slot_load;
mod tenure;

pub(crate) use active::{ActiveReader, Shared};
pub use backlog::Backlog;
pub use booking::{Booking, Claim, OutputGrowth};
pub use busy::{Capacity, Thresholds};
pub(crate) use loads::Ledger;
pub use loads::Loads;
pub use slot_load::SlotLoad;
