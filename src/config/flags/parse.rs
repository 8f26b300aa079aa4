//! The flags on the command line: clap's parser, made from the table.

use std::marker::PhantomData;

use clap::{
    Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches,
    error::{ContextKind, ContextValue, ErrorKind},
};

use super::{Field, Group, Kind, Role, Row, Status, TABLE, Value, given};
use crate::select::Mode;

/// Router flags as given on the command line, for a role. They know nothing yet of environment, file and defaults.
#[derive(Clone, PartialEq, Debug)]
pub struct RouterFlags<R> {
    values: Vec<(Field, Value, &'static str)>,
    role: PhantomData<R>,
}

impl<R: Role> RouterFlags<R> {
    /// No flags.
    #[must_use]
    pub const fn none() -> Self {
        Self { values: Vec::new(), role: PhantomData }
    }

    /// Whether any flag was given.
    #[must_use]
    pub const fn any(&self) -> bool {
        !self.values.is_empty()
    }

    /// These flags with another mode, as if `spelled` (without dashes) had set it.
    #[must_use]
    pub fn with_mode(mut self, mode: Mode, spelled: &'static str) -> Self {
        self.values.retain(|(field, ..)| *field != Field::RouterMode);
        self.values.push((Field::RouterMode, Value::Text(mode.name().to_owned()), spelled));
        self
    }

    /// What was given for a field, and under which spelling.
    pub(super) fn get(&self, field: Field) -> Option<(&Value, &'static str)> {
        self.values.iter().find(|(given, ..)| *given == field).map(|(_, value, flag)| (value, *flag))
    }
}

impl<R: Role> Args for RouterFlags<R> {
    fn augment_args(mut command: Command) -> Command {
        for row in read_by::<R>() {
            for spelling in spellings(row) {
                command = command.arg(arg::<R>(row, spelling));
            }
        }
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<R: Role> FromArgMatches for RouterFlags<R> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut values = Vec::new();
        for row in read_by::<R>() {
            for Spelling { flag, yes, .. } in spellings(row) {
                let value = if let Some(yes) = yes {
                    matches.get_flag(flag).then_some(Value::Switch(yes))
                } else {
                    matches.get_one::<Value>(flag).cloned()
                };
                let Some(value) = value else { continue };
                if row.frontend_only() && !R::FRONTEND {
                    return Err(withheld(flag));
                }
                values.push((row.field, value, flag));
            }
        }
        Ok(Self { values, role: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The rows that a role's parser has, be it to refuse them.
fn read_by<R: Role>() -> impl Iterator<Item = &'static Row> {
    TABLE.iter().filter(|row| R::FRONTEND || !row.workers_have_their_own)
}

/// One way to write a flag.
#[derive(Clone, Copy)]
struct Spelling {
    flag: &'static str,
    /// What it says of a switch.
    yes: Option<bool>,
    /// The one spelling that the help shows.
    shown: bool,
}

fn spellings(row: &'static Row) -> impl Iterator<Item = Spelling> {
    let yes = row.negated.map(|_| true);
    let alias = row.alias;
    [
        Some((row.flag, yes, true)),
        row.negated.map(|flag| (flag, Some(false), false)),
        alias.map(|alias| (alias.flag, yes, false)),
        alias.and_then(|alias| alias.negated).map(|flag| (flag, Some(false), false)),
    ]
    .into_iter()
    .flatten()
    .map(|(flag, yes, shown)| Spelling { flag, yes, shown })
}

fn arg<R: Role>(row: &'static Row, spelling: Spelling) -> Arg {
    let Spelling { flag, yes, shown } = spelling;
    // The last spelling on the command line wins, so that an argument can be appended to a script's.
    let others = spellings(row).map(|other| other.flag).filter(|other| *other != flag);
    let works = row.status == Status::Works;
    let heading = match row.group {
        _ if !works => "Router flags that this version refuses",
        Group::Kv => "Router, mode kv",
        Group::Devices => "Router, devices",
        Group::Card | Group::Router | Group::Threshold | Group::FrontendOnly => "Router",
    };
    let arg = Arg::new(flag)
        .long(flag)
        .overrides_with(flag)
        .overrides_with_all(others)
        .help(help::<R>(row))
        .help_heading(heading)
        .hide_short_help(!works)
        .hide(!shown || (row.frontend_only() && !R::FRONTEND));
    if yes.is_some() {
        return arg.action(ArgAction::SetTrue);
    }
    arg.action(ArgAction::Set)
        .value_name(row.value_name)
        .allow_negative_numbers(matches!(row.kind, Kind::Number { .. } | Kind::Whole { .. }))
        .value_parser(|text: &str| row.read(text, R::FRONTEND))
}

/// What the help says: purpose, what is accepted, default, variable.
fn help<R: Role>(row: &Row) -> String {
    let mut help = row.help.to_owned();
    if let Some(negated) = row.negated {
        help += &format!("; --{negated} says no");
    } else if row.kind != Kind::Text {
        help += &format!("; {}", row.accepted());
    }
    if let Status::Refused { reason, .. } = row.status {
        help += &format!(". Refused: {reason}");
    }
    let variables: Vec<_> = row.variables().collect();
    help += &format!(" [default: {}]", given::default::<R>(row.field));
    if !variables.is_empty() {
        help += &format!(" [env: {}]", variables.join(", "));
    }
    help
}

fn withheld(flag: &str) -> clap::Error {
    let mut error = clap::Error::raw(
        ErrorKind::UnknownArgument,
        format!(
            "--{flag} belongs to the frontend: no worker can advertise it. Give it to kvroute frontend instead\n"
        ),
    );
    error.insert(ContextKind::InvalidArg, ContextValue::String(format!("--{flag}")));
    error
}
