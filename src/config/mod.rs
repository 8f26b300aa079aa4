//! Flags, environment and file, turned into each room's own settings.
//!
//! This room alone knows clap, TOML and the environment. A flag wins over its environment variable, that over the
//! file, that over the default. The rooms own the settings structs and their documented defaults; they
//! are filled here.

mod command_line;
mod file;
mod frontend;
mod mock;
mod router;

pub use command_line::{FileArgs, LogArgs, LogFormat, parse};
pub use file::{ConfigFile, FileError, ModelEntry};
pub use frontend::{ConfigError, FrontendArgs, FrontendPlan};
pub use mock::{EngineArgs, MockArgs};
pub use router::RouterArgs;
