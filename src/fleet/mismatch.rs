//! What becomes of a worker set whose members disagree.

use std::{fmt, str::FromStr};

use serde::Deserialize;

/// Which members take requests when the cards of a set have several fingerprints.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnConfigMismatch {
    /// None, until they agree: no request is routed by a configuration that somebody did not mean.
    #[default]
    Stop,
    /// Those that were registered first, until the last of them has left; then the next, in the same step.
    KeepFirst,
}

impl OnConfigMismatch {
    /// The name of the flag's value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::KeepFirst => "keep-first",
        }
    }
}

impl fmt::Display for OnConfigMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for OnConfigMismatch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = [Self::Stop, Self::KeepFirst].into_iter().find(|policy| policy.name() == text);
        known.ok_or_else(|| "accepted are stop and keep-first".to_owned())
    }
}
