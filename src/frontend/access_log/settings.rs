//! Where an operator wants the log.

use std::{convert::Infallible, fmt, path::PathBuf, str::FromStr};

use serde::Deserialize;

/// Where lines go: `-` or a file's name.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(from = "String")]
pub enum AccessLogTarget {
    /// To the standard output.
    Stdout,
    /// To the end of a file.
    File(PathBuf),
}

impl From<String> for AccessLogTarget {
    fn from(text: String) -> Self {
        if text == "-" { Self::Stdout } else { Self::File(text.into()) }
    }
}

impl FromStr for AccessLogTarget {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(text.to_owned().into())
    }
}

/// As it can be given.
impl fmt::Display for AccessLogTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("-"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}
