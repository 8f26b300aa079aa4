//! Which of a command's flags were given, and how.

use ahash::AHashMap;
use clap::{ArgMatches, Args, Command, FromArgMatches, parser::ValueSource};

use super::FrontendArgs;

/// How a value was given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// On the command line.
    Flag,
    /// By this variable of the environment.
    Variable(String),
}

/// Where the values in [`FrontendArgs`] came from, by their names with underscores. It is flattened into a command
/// before them, because reading them takes them out of the matches, and adds no flag of its own.
#[derive(Clone, Debug, Default)]
pub struct FlagOrigins(AHashMap<String, Origin>);

impl FlagOrigins {
    /// How a flag was given; `None` if it was not.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Origin> {
        self.0.get(name)
    }
}

impl Args for FlagOrigins {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl FromArgMatches for FlagOrigins {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let known = FrontendArgs::augment_args(Command::new(""));
        let mut origins = AHashMap::new();
        for arg in known.get_arguments() {
            let name = arg.get_id().as_str();
            let origin = match matches.value_source(name) {
                Some(ValueSource::CommandLine) => Origin::Flag,
                Some(ValueSource::EnvVariable) => {
                    Origin::Variable(arg.get_env().unwrap_or_default().to_string_lossy().into_owned())
                }
                _ => continue,
            };
            origins.insert(name.to_owned(), origin);
        }
        Ok(Self(origins))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
