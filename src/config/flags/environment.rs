//! The environment, read through a function that is handed in.

use std::ffi::OsString;

use thiserror::Error;

use super::{Role, Row, Value};

/// Where variables are looked up: the process, or what a test says.
pub struct Environment<'a> {
    lookup: &'a dyn Fn(&str) -> Option<OsString>,
}

/// A variable that cannot be used. It is wrong even where a flag wins over it.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum EnvironmentError {
    /// Its value does not read.
    #[error("{variable}={value}: {problem}")]
    Value {
        /// Which one.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What is wrong, and what is accepted.
        problem: String,
    },
    /// It is not UTF-8.
    #[error("{0} is not UTF-8 text")]
    NotText(&'static str),
    /// It is refused whatever its value.
    #[error("{variable}={value}: not in this version, because {reason}")]
    Refused {
        /// Which one.
        variable: &'static str,
        /// Its value.
        value: String,
        /// Why, and what to do.
        reason: &'static str,
    },
}

impl Environment<'static> {
    /// The environment of this process.
    #[must_use]
    pub fn process() -> Self {
        #[expect(clippy::disallowed_methods, reason = "this is where the environment is read")]
        fn lookup(name: &str) -> Option<OsString> {
            std::env::var_os(name)
        }
        Self { lookup: &lookup }
    }

    /// An environment without variables.
    #[must_use]
    pub fn empty() -> Self {
        Self { lookup: &|_| None }
    }
}

impl<'a> Environment<'a> {
    /// An environment in which `lookup` gives a variable's value.
    #[must_use]
    pub fn new(lookup: &'a dyn Fn(&str) -> Option<OsString>) -> Self {
        Self { lookup }
    }

    /// A variable's text. An empty variable is an unset one.
    pub(in crate::config) fn text(&self, variable: &'static str) -> Result<Option<String>, EnvironmentError> {
        match (self.lookup)(variable) {
            None => Ok(None),
            Some(value) if value.is_empty() => Ok(None),
            Some(value) => value.into_string().map(Some).map_err(|_| EnvironmentError::NotText(variable)),
        }
    }

    /// What the environment says of a row: the first of its variables that is set. All of them have to read.
    pub(super) fn read<R: Role>(&self, row: &Row) -> Result<Option<(Value, &'static str)>, EnvironmentError> {
        let mut first = None;
        for variable in row.variables() {
            let Some(text) = self.text(variable)? else { continue };
            let value = row.read(&text, R::FRONTEND).map_err(|problem| EnvironmentError::Value {
                variable,
                value: text,
                problem,
            })?;
            first = first.or(Some((value, variable)));
        }
        Ok(first)
    }
}
