//! Requests that wait in the router.
//!
//! A [`Queue`] is a state machine without a clock: [`Queue::push`] takes a request in, [`Queue::poll`] says who leaves it
//! now, and how, or when to ask again. It knows nothing of workers. Whether a request may go is asked of the caller, who
//! answers by trying to book it, most likely with [`Selector::admit_when_free`](super::Selector::admit_when_free).
//!
//! Two rules make requests wait, each of which can be on without the other:
//! * the *threshold* ([`Tuning::queue_threshold`](super::Tuning::queue_threshold), Dynamo's): while every rank that could
//!   take a request has more prefill waiting than so many of its largest batches. Requests that could go to the same
//!   ranks are a lane: what holds up one of them holds up all of it, and no other lane;
//! * the *hold* ([`Tuning::hold`](super::Tuning::hold), ours): while the cheapest rank for a request has more than
//!   [`HOLD_BEYOND`] of prefill before it. Each request is judged by itself, so nobody stands in anybody's way, and no
//!   request is held for longer than was said.
//!
//! Order of leaving, within a tenant: strict priority, earliest deadline, the score of the [`QueuePolicy`], first come. Held requests
//! have a score of their own, see `hold.rs`. Between tenants turns are taken by deficit round robin (`shares.rs`), if that
//! is asked for. A request that finds the queue full is not taken in; one whose deadline passes is turned away.

mod entry;
mod gate;
mod hold;
mod limits;
mod machine;
mod policy;
mod shares;

pub use entry::{Ticket, Urgency, Waiting};
pub use gate::{Outlook, PrefillEstimate, Wait, WaitReason};
pub use hold::HOLD_BEYOND;
pub use limits::{Limits, MOST_REQUESTS, Overflow};
pub use machine::{Expired, Look, Polled, Queue, QueueSettings};
pub use policy::{QueuePolicy, UnknownQueuePolicy};

pub(super) use gate::{estimate, judge, outlook};
