//! What runs beside an engine, and the mock engine that stands in for one.
//!
//! * [`backend`]: what differs between engines, above all how their argument lists are read;
//! * [`facts`]: what is known of an engine, and who said so;
//! * [`agent`]: registers an engine with frontends, and keeps it registered for as long as it is well;
//! * [`devices`]: finds and samples the engine's GPUs;
//! * [`mock`]: an engine that computes nothing.
//!
//! It starts no engine but the mock, and touches none: it reads what an engine says over HTTP and what it was given.

pub mod agent;
pub mod backend;
pub mod devices;
pub mod facts;
pub mod mock;
