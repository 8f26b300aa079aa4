//! What is worth a word, and no error.

use std::fmt;

use super::{Group, Row, Setting, Source, row};
use crate::select::Mode;

/// Something a person should know of. The caller logs it.
#[derive(Clone, PartialEq, Debug)]
pub enum Warning {
    /// An old spelling was used.
    OldName {
        /// As given.
        source: Source,
        /// What to use in its place.
        instead: String,
    },
    /// A worker's environment sets router flags but no mode, so that it advertises nothing.
    Inherits {
        /// The variables.
        variables: Vec<String>,
    },
    /// A setting that another one overrules.
    Overruled {
        /// What changes nothing.
        setting: Setting,
        /// What holds in its place.
        by: String,
    },
    /// Settings of mode `kv`, under another mode.
    Idle {
        /// What changes nothing.
        settings: Vec<Setting>,
        /// The mode.
        mode: Mode,
    },
}

impl Warning {
    /// What there is to say of the spelling that a value was given under.
    pub(super) fn of_old_name(row: &Row, source: &Source) -> Option<Self> {
        let new_name = || row.deprecated.map_or_else(|| format!("--{}", row.flag), str::to_owned);
        let instead = match *source {
            Source::Flag(flag) => {
                let alias = row.alias.filter(|alias| alias.flag == flag || alias.negated == Some(flag));
                match (alias, row.deprecated) {
                    (Some(alias), None) if alias.negated == Some(flag) => format!("--no-{}", row.flag),
                    (Some(_), None) => format!("--{}", row.flag),
                    (_, Some(instead)) => instead.to_owned(),
                    (None, None) => return None,
                }
            }
            Source::Variable(variable) if row.old_variable == Some(variable) => new_name(),
            _ => return None,
        };
        Some(Self::OldName { source: source.clone(), instead })
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OldName { source, instead } => write!(f, "{source} is an old name; use {instead}"),
            Self::Inherits { variables } => write!(
                f,
                "{} set in the environment without DYN_ROUTER_MODE: this worker advertises no router configuration \
                 and inherits the frontend's; give --router-mode to advertise one",
                variables.join(", ")
            ),
            Self::Overruled { setting, by } => write!(f, "{setting} changes nothing: {by}"),
            Self::Idle { settings, mode } => {
                let of_devices = settings.iter().any(|setting| row(setting.field).group == Group::Devices);
                let settings: Vec<_> = settings.iter().map(ToString::to_string).collect();
                let of_devices = of_devices.then_some(" (and device-aware-weighted, as far as devices go)");
                write!(
                    f,
                    "{} changes nothing: router mode {mode} does not look at it, only kv does{}",
                    settings.join(", "),
                    of_devices.unwrap_or_default()
                )
            }
        }
    }
}
