//! The router flags against a list of what they have to be, and everything that is made from their table.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod cards;
mod documents;
mod dynamo;
mod errors;
mod expected;
mod presets;
mod review_findings;
mod rows;
mod sources;

use std::{ffi::OsString, path::Path};

use clap::{Args as _, Command, FromArgMatches as _};
use kvroute::{
    config::flags::{
        Built, Environment, Frontend, Role, RouterFlags, RouterSection, Worker, build_router_config,
    },
    fleet::RouterConfig,
};

pub(crate) fn parse<R: Role>(args: &[&str]) -> Result<RouterFlags<R>, String> {
    let command = RouterFlags::<R>::augment_args(Command::new("test"));
    let args = std::iter::once(&"test").chain(args);
    let matches = command.try_get_matches_from(args).map_err(|error| error.to_string())?;
    RouterFlags::from_arg_matches(&matches).map_err(|error| error.to_string())
}

pub(crate) fn build<R: Role>(args: &[&str], variables: &[(&str, &str)]) -> Result<Built<R::Config>, String> {
    build_with_file::<R>(args, variables, "")
}

pub(crate) fn build_with_file<R: Role>(
    args: &[&str],
    variables: &[(&str, &str)],
    file: &str,
) -> Result<Built<R::Config>, String> {
    let lookup = |name: &str| {
        variables.iter().find(|(variable, _)| *variable == name).map(|(_, value)| OsString::from(value))
    };
    let section: RouterSection = toml::from_str(file).map_err(|error| error.message().to_owned())?;
    let given = parse::<R>(args)?
        .resolve(&Environment::new(&lookup), Some((Path::new("k.toml"), &section)))
        .map_err(|error| error.to_string())?;
    build_router_config(&given).map_err(|error| error.to_string())
}

pub(crate) fn frontend(args: &[&str]) -> Result<Built<RouterConfig>, String> {
    build::<Frontend>(args, &[])
}

pub(crate) fn worker(
    args: &[&str],
    variables: &[(&str, &str)],
) -> Result<Built<Option<RouterConfig>>, String> {
    build::<Worker>(args, variables)
}

pub(crate) fn help<R: Role>() -> String {
    RouterFlags::<R>::augment_args(Command::new("test").term_width(0)).render_long_help().to_string()
}

/// The help of one flag: from its name to the next empty line.
pub(crate) fn help_of(help: &str, flag: &str) -> Option<String> {
    let mut paragraphs = help.split("\n\n");
    let starts = |text: &&str| text.lines().any(|line| line.trim().split(' ').next() == Some(flag));
    paragraphs.find(starts).map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "))
}
