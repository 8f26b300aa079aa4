//! The router flags: one table, from which everything else about them is made.
//!
//! A [`Row`] says all there is to say about one flag: its spelling, its environment variable, what it accepts, its
//! default, its key on a card, who takes it and whether it works. Clap's parser and `--help`, the environment,
//! the `[router]` section of a file, the reference page and the sample file are all made from [`TABLE`], so they
//! cannot disagree.
//!
//! A value goes one way: [`RouterFlags`] (what the command line says) is resolved with the [`Environment`] and a
//! file's [`RouterSection`] into [`Given`] (each field's value, and where it came from), and
//! [`build_router_config`] makes the configuration. Frontends and workers share the whole way; the [`Role`]
//! in the type tells them apart.
//!
//! No flag is accepted and ignored. One that this version does not do is refused with the reason, except at the
//! value that asks for nothing; one that another flag overrules is warned of.

mod build;
mod conditional_disagg;
mod environment;
mod field;
mod given;
mod kind;
mod parse;
mod presets;
mod reference;
mod role;
mod row;
mod rules;
mod section;
mod table;
mod tuning;
mod value;
mod warning;
mod what_if;

pub use build::{BuildError, Built, OfTheFrontend, build_router_config, problems};
pub use environment::{Environment, EnvironmentError};
pub use field::Field;
pub use given::{Given, Setting, Settings, Source};
pub use kind::{Kind, Range};
pub use parse::RouterFlags;
pub use reference::{reference_page, sample_section};
pub use role::{Frontend, MockFleet, Role, Worker};
pub use row::{Alias, Group, Row, Status};
pub use section::RouterSection;
pub use table::{TABLE, row};
pub(in crate::config) use tuning::changed_weights;
pub use value::Value;
pub use warning::Warning;
pub use what_if::{Changes, Unanswerable};
