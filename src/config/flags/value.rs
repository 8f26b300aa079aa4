//! A flag's value.

use std::fmt;

/// What a flag, a variable or a key of the file says, once read.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// Nothing: the feature is off, or another flag decides.
    Unset,
    /// Yes or no.
    Switch(bool),
    /// A number.
    Number(f64),
    /// A whole number, never negative.
    Whole(u64),
    /// One of a few words, a name or a path.
    Text(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unset => f.write_str("unset"),
            Self::Switch(value) => write!(f, "{value}"),
            // With its point, so that a number is told from a count.
            Self::Number(value) => write!(f, "{value:?}"),
            Self::Whole(value) => write!(f, "{value}"),
            Self::Text(value) => f.write_str(value),
        }
    }
}
