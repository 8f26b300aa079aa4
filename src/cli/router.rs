//! The router flags of a command, made into a configuration and said in the log.

use std::error::Error;

use tracing::{info, warn};

use crate::config::{
    ConfigFile,
    flags::{Built, Environment, Role, RouterFlags, build_router_config, row},
};

/// Puts flags over environment and file. What is not left at its default is logged with where it came from: whoever
/// wonders about a choice begins there.
pub(super) fn router_config<R: Role>(
    flags: &RouterFlags<R>,
    file: Option<&ConfigFile>,
) -> Result<R::Config, Box<dyn Error + Send + Sync>> {
    built_router_config(flags, file).map(|built| built.config)
}

/// The same, with every setting it was made from.
pub(super) fn built_router_config<R: Role>(
    flags: &RouterFlags<R>,
    file: Option<&ConfigFile>,
) -> Result<Built<R::Config>, Box<dyn Error + Send + Sync>> {
    let file = file.map(|file| (file.path.as_path(), &file.router));
    let built = build_router_config(&flags.resolve(&Environment::process(), file)?)?;
    for warning in &built.warnings {
        warn!("{warning}");
    }
    for setting in built.changed() {
        let flag = row(setting.field).flag;
        info!(setting = flag, value = %setting.value, from = %setting.source, "router setting");
    }
    Ok(built)
}
