//! The HTTP surface: OpenAI's API for clients, and the admin listener for operators.
//!
//! A request is read once ([`openai`]), gets its hints ([`hints`]) and tokens ([`prompts`], [`tokenising`]), is placed
//! ([`place`]: hash, look up, admit) and forwarded ([`route`]). Where prefill workers stand beside decode workers it
//! goes to one of each ([`two_hop`]). The admin listener asks the same placement
//! and answers with the reasons instead ([`explain`]), or with what is cached of many prompts ([`overlaps`]). Decisions are
//! recorded, if they are to be ([`decision_log`]), and can be asked about later ([`recall`]).
//!
//! Before the public routes stands a gate ([`gate`]): names of requests, keys of clients ([`api_keys`]), limits, and the
//! access log ([`access_log`]). Where a request's time goes can be traced ([`traces`]).
//!
//! The public listener tells a client nothing about the index or about other clients.

mod access_log;
mod admin;
mod admin_token;
mod admission;
mod api_keys;
mod app;
mod asked_model;
mod asking;
mod bootstrap;
mod busy_threshold;
mod bypass;
mod connections;
mod counters;
mod decision_log;
mod devices;
mod drift;
mod engine_tokenizer;
mod error;
mod explain;
mod exposition;
mod file_changes;
mod first_token;
mod gate;
mod handover;
mod hangup;
mod health_checks;
mod hints;
mod in_place;
mod index_memory;
mod index_snapshot;
mod listener;
mod log_queue;
mod openai;
mod overlaps;
mod parity;
mod passthrough;
mod place;
mod prompts;
mod public;
mod queue;
mod recall;
mod reload;
mod request_id;
mod retry;
mod route;
mod routing_reload;
mod server;
mod session;
mod settings;
mod tokenising;
mod traces;
mod two_hop;
mod watch;
mod which_set;
mod why;
mod workspace;

pub use access_log::{AccessLogError, AccessLogTarget};
pub use admin_token::{AdminToken, UnusableToken};
pub use api_keys::{ApiKeys, ApiKeysError};
pub use app::App;
pub use counters::{Counters, Handover, Outcome, Surface};
pub use decision_log::{DecisionLogSettings, LogFileError};
pub use index_snapshot::SnapshotSource;
pub(crate) use index_snapshot::resume_from;
pub use prompts::Prompts;
pub use retry::RetryBudget;
pub use routing_reload::{Routing, RoutingSource};
pub use server::{Frontend, StartError};
pub use session::SessionOutcome;
pub use settings::{AdmissionCheck, FrontendSettings, PrefillFallback, QueueTurns};
pub use tokenising::TokenizerSettings;
pub use traces::{OtlpEndpoint, TracesError};
