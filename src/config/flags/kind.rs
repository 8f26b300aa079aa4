//! What a flag accepts, and how a text is read as it.

use super::Value;

/// What a flag accepts, and what holds without it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Kind {
    /// Yes or no.
    Switch {
        /// Without the flag.
        default: bool,
    },
    /// A number.
    Number {
        /// Without the flag.
        default: Option<f64>,
        /// What is accepted.
        range: Range,
        /// Whether `None` is read as unset.
        nullable: bool,
    },
    /// A whole number.
    Whole {
        /// Without the flag.
        default: Option<u64>,
        /// What is accepted.
        range: Range,
        /// Whether `None` is read as unset.
        nullable: bool,
    },
    /// One of a few words.
    Choice {
        /// Without the flag. The mode has none here: it depends on the role.
        default: Option<&'static str>,
        /// What is accepted.
        words: &'static [&'static str],
        /// An old spelling, and the word that it stands for.
        old_word: Option<(&'static str, &'static str)>,
        /// The error for any other word, with `{value}` and `{words}` in it.
        unknown: &'static str,
    },
    /// A name, a path or a JSON text; never empty.
    Text,
}

/// The range of a number, with the error that names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Range {
    /// Finite and at least 0; what a cached block is worth.
    Credit,
    /// Finite and at least 0.
    NonNegative,
    /// At least 0.
    AtLeastZero,
    /// 0 to 1.
    Share,
    /// Above 0, to 1.
    Weight,
    /// 0 to 1, of a worker's blocks.
    Threshold,
    /// At least 1.
    AtLeastOne,
    /// 1 second to a year of them.
    UpToAYear,
    /// At least 1, and no more than 32 bits hold.
    Ratio,
    /// 0 seconds to an hour of them.
    UpToAnHour,
}

impl Kind {
    /// What holds where nothing is given.
    pub(super) fn default(&self) -> Value {
        match *self {
            Kind::Switch { default } => Value::Switch(default),
            Kind::Number { default, .. } => default.map_or(Value::Unset, Value::Number),
            Kind::Whole { default, .. } => default.map_or(Value::Unset, Value::Whole),
            Kind::Choice { default, .. } => default.map_or(Value::Unset, |word| Value::Text(word.to_owned())),
            Kind::Text => Value::Unset,
        }
    }

    /// Reads a text; `name` is what errors call the flag.
    pub(super) fn read(&self, text: &str, name: impl Fn() -> String) -> Result<Value, String> {
        let trimmed = text.trim();
        match *self {
            Kind::Switch { .. } => read_switch(trimmed).map(Value::Switch).ok_or_else(|| {
                format!(
                    "'{trimmed}' is neither yes nor no; accepted are true, 1, yes, on and false, 0, no, off"
                )
            }),
            Kind::Number { nullable: true, .. } | Kind::Whole { nullable: true, .. } if trimmed == "None" => {
                Ok(Value::Unset)
            }
            Kind::Number { range, .. } => {
                let number = trimmed.parse().map_err(|_| format!("'{trimmed}' is not a number"))?;
                range.check(number, name)?;
                Ok(Value::Number(number))
            }
            Kind::Whole { range, .. } => {
                let number: i64 = trimmed
                    .parse()
                    .map_err(|_| format!("'{trimmed}' is not a whole number, or too large a one"))?;
                range.check(number as f64, name)?;
                // No range of whole numbers goes below 0.
                Ok(Value::Whole(number.unsigned_abs()))
            }
            Kind::Choice { words, old_word, unknown, .. } => {
                let word = old_word.filter(|(old, _)| *old == text).map_or(text, |(_, new)| new);
                if words.contains(&word) {
                    return Ok(Value::Text(word.to_owned()));
                }
                let mut sorted = words.to_vec();
                sorted.sort_unstable();
                Err(unknown.replace("{value}", text).replace("{words}", &sorted.join(", ")))
            }
            Kind::Text if trimmed.is_empty() => Err(format!("{} must not be empty", name())),
            Kind::Text => Ok(Value::Text(text.to_owned())),
        }
    }
}

impl Range {
    /// The range in words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Credit | Self::NonNegative | Self::AtLeastZero => "0 or more",
            Self::Share | Self::Threshold => "0 to 1",
            Self::Weight => "above 0, to 1",
            Self::AtLeastOne => "1 or more",
            Self::UpToAYear => "1 to 31536000",
            Self::Ratio => "1 to 4294967295",
            Self::UpToAnHour => "0 to 3600",
        }
    }

    const fn problem(self) -> &'static str {
        match self {
            Self::Credit => "must be a finite, non-negative number",
            Self::NonNegative => "must be finite and non-negative",
            Self::AtLeastZero => "must be greater than or equal to 0",
            Self::Share => "must be between 0 and 1",
            Self::Weight => "must be above 0 and at most 1",
            Self::Threshold => "must be between 0.0 and 1.0",
            Self::AtLeastOne => "must be at least 1",
            Self::UpToAYear => "must be between 1 and 31536000",
            Self::Ratio => "must be between 1 and 4294967295",
            Self::UpToAnHour => "must be between 0 and 3600",
        }
    }

    fn check(self, number: f64, name: impl FnOnce() -> String) -> Result<(), String> {
        let (least, most) = match self {
            Self::Credit | Self::NonNegative | Self::AtLeastZero => (0.0, f64::MAX),
            Self::Share | Self::Threshold => (0.0, 1.0),
            Self::Weight => (f64::MIN_POSITIVE, 1.0),
            Self::AtLeastOne => (1.0, f64::MAX),
            Self::UpToAYear => (1.0, 31_536_000.0),
            Self::Ratio => (1.0, f64::from(u32::MAX)),
            Self::UpToAnHour => (0.0, 3600.0),
        };
        if (least..=most).contains(&number) { Ok(()) } else { Err(format!("{} {}", name(), self.problem())) }
    }
}

fn read_switch(text: &str) -> Option<bool> {
    let is = |word: &&str| text.eq_ignore_ascii_case(word);
    if ["true", "1", "yes", "on"].iter().any(is) {
        Some(true)
    } else if ["false", "0", "no", "off"].iter().any(is) {
        Some(false)
    } else {
        None
    }
}
