//! The parity check: whether what the router will predict of an engine's cache is what the engine will do.
//!
//! A router predicts by doing itself what the engine does: it renders the chat template, makes tokens, cuts them into blocks and
//! names them. If one of the two does it otherwise (another template, another block size, events that go to another port),
//! nothing fails. Prefixes just never match, or match what is not there. This room finds that out with one engine at a time,
//! before it costs anything:
//!
//! ```text
//! ask      the engine's own answers: models, ranks, endpoints, versions, /tokenize    ---+
//! canary   a prompt that nobody else has, sent twice under a salt of its own          ---+--> Evidence --> judge --> Report
//! tap      the block events that it causes, as the router would hear them             ---+
//! ```
//!
//! What must hold:
//! * Judgement does no I/O: [`Evidence`] is plain data, and [`judge`] is a function of it and the worker's description.
//! * Events are read by the decoders that routing uses, so that what this room understands is what the router understands.
//! * Canaries have a salt that nobody else has: what they leave in the cache matches nobody's prompt.
//! * An examination ends: every question has a limit.
//!
//! What it is not: it takes no worker in and lets none go. Who asked decides what becomes of a [`Report`].

mod ask;
mod blocks;
mod canary;
mod events;
mod evidence;
mod examine;
mod finding;
mod judge;
mod names;
mod tap;
mod tokens;
mod told;

pub use evidence::{CanaryRun, Evidence, Listening, Observation, Sample, Served, Source, Told};
pub use examine::{Credited, Ears, Patience, Subject, examine, look};
pub use finding::{Admission, Check, Finding, Report, Verdict};
pub use judge::{judge, judge_told};
