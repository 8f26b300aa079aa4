//! Flags, environment and file, turned into each room's own settings.
//!
//! This room alone knows clap, TOML and the environment. A flag wins over its environment variable, that over the
//! file, that over the default; an empty variable is an unset one. The rooms own the settings structs and their
//! documented defaults; they are filled here.

mod byte_size;
mod check;
mod devices;
mod doctor;
mod engine_arguments;
mod environment;
mod error;
mod file;
pub mod flags;
mod frontend;
mod log;
mod mock;
mod origin;
mod protection;
mod routing_file;
mod snapshot_from;
mod suggest;
mod token;
mod worker;
mod worker_file;
mod workers_flag;

pub use byte_size::ByteSize;
pub use check::{Finding, Report, Severity, check};
pub use devices::{NvmlArgs, SamplingArgs};
pub use doctor::{DoctorArgs, DoctorConfigError};
pub use engine_arguments::set_apart;
pub use environment::without_empty_variables;
pub use error::ConfigError;
pub use file::{ConfigFile, FileArgs, FileError, ModelEntry};
pub(crate) use frontend::WORKERS;
pub use frontend::{FrontendArgs, FrontendPlan};
pub use log::{LogArgs, LogFormat};
pub use mock::{EngineArgs, EngineTimes, MockArgs};
pub use origin::{FlagOrigins, Origin};
pub use routing_file::RoutingFile;
pub(crate) use token::read_token;
pub use worker::{AttachArgs, WorkerArgs, WorkerConfigError, WorkerPlan};
pub use worker_file::WorkerFile;
