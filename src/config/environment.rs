//! The environment, as far as clap does not have it right by itself.

use clap::{Command, builder::Resettable};

/// Makes an empty variable an unset one: `KVROUTE_PORT= kvroute frontend` is how scripts and manifests leave a
/// setting out, and clap would refuse it as a number without digits.
#[must_use]
pub fn without_empty_variables(command: Command) -> Command {
    let command = command.mut_args(|arg| {
        let empty = arg.get_env().is_some_and(is_set_and_empty);
        if empty { arg.env(Resettable::Reset) } else { arg }
    });
    command.mut_subcommands(without_empty_variables)
}

#[expect(clippy::disallowed_methods, reason = "this room is the one that reads the environment")]
fn is_set_and_empty(name: &std::ffi::OsStr) -> bool {
    std::env::var_os(name).is_some_and(|value| value.is_empty())
}
