//! What an operator says of the log.

use std::{fmt, path::PathBuf, str::FromStr};

use serde::Deserialize;

/// Where decisions are kept, and how many of them: `FILE[,sample=SHARE][,max=BYTES][,keep=N]`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct DecisionLogSettings {
    /// The file.
    pub path: PathBuf,
    /// The share of the requests that are recorded, above 0, to 1. Default 1.
    pub sample: f64,
    /// The size at which a new file is begun, in bytes. Default 256 MiB.
    pub max_bytes: u64,
    /// How many full files are kept beside it, as `FILE.1` (the latest) to `FILE.N`. Default 3.
    pub keep: u32,
}

/// The least that makes a file of its own worth it.
const LEAST_BYTES: u64 = 64 << 10;

/// Beyond that nobody looks through them.
const MOST_FILES: u32 = 1000;

impl DecisionLogSettings {
    /// A log in `path` of every request.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), sample: 1.0, max_bytes: 256 << 20, keep: 3 }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "sample" => {
                let share = value.parse().ok().filter(|share| *share > 0.0 && *share <= 1.0);
                self.sample = share.ok_or_else(|| format!("sample={value} is not above 0 and at most 1"))?;
            }
            "max" => {
                let bytes = value.parse().ok().filter(|bytes| *bytes >= LEAST_BYTES);
                self.max_bytes = bytes
                    .ok_or_else(|| format!("max={value} is not a number of bytes from {LEAST_BYTES} on"))?;
            }
            "keep" => {
                let files = value.parse().ok().filter(|files| *files <= MOST_FILES);
                self.keep =
                    files.ok_or_else(|| format!("keep={value} is not a number from 0 to {MOST_FILES}"))?;
            }
            _ => return Err(format!("'{key}' is unknown; there are sample, max and keep")),
        }
        Ok(())
    }
}

impl FromStr for DecisionLogSettings {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let failed = |problem: String| {
            format!(
                "{problem}; accepted is FILE[,sample=SHARE][,max=BYTES][,keep=N], and a file without a comma in its name"
            )
        };
        let mut parts = text.split(',');
        let path = parts.next().unwrap_or_default();
        if path.is_empty() {
            return Err(failed("the file is missing".to_owned()));
        }
        let mut settings = Self::new(path);
        let mut given = Vec::new();
        for part in parts {
            let (key, value) =
                part.split_once('=').ok_or_else(|| failed(format!("'{part}' is not key=value")))?;
            let key = key.trim();
            if given.contains(&key) {
                return Err(failed(format!("{key} is given twice")));
            }
            settings.set(key, value.trim()).map_err(failed)?;
            given.push(key);
        }
        Ok(settings)
    }
}

/// In full, as it can be given.
impl fmt::Display for DecisionLogSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, sample, max_bytes, keep } = self;
        write!(f, "{},sample={sample},max={max_bytes},keep={keep}", path.display())
    }
}

impl TryFrom<String> for DecisionLogSettings {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_alone_keeps_every_request_and_the_rest_is_said_behind_it() {
        let plain: DecisionLogSettings = "/var/log/kvroute.decisions".parse().unwrap();
        assert_eq!(plain, DecisionLogSettings::new("/var/log/kvroute.decisions"));
        let full: DecisionLogSettings = "d.log,sample=0.25,max=1000000,keep=0".parse().unwrap();
        let expected =
            DecisionLogSettings { path: "d.log".into(), sample: 0.25, max_bytes: 1_000_000, keep: 0 };
        assert_eq!(full, expected);
        assert_eq!(plain.to_string().parse(), Ok(plain));
        assert_eq!(full.to_string().parse(), Ok(full));
    }

    #[test]
    fn what_cannot_be_used_says_what_can() {
        for (text, says) in [
            ("", "the file is missing"),
            (",sample=1", "the file is missing"),
            ("d,sample=0", "above 0 and at most 1"),
            ("d,sample=1.5", "above 0 and at most 1"),
            ("d,sample=NaN", "above 0 and at most 1"),
            ("d,max=10", "bytes from 65536 on"),
            ("d,keep=1001", "0 to 1000"),
            ("d,rotate=1", "sample, max and keep"),
            ("d,e", "'e' is not key=value"),
            ("d,sample=1, sample=0.5", "sample is given twice"),
        ] {
            let error = text.parse::<DecisionLogSettings>().unwrap_err();
            assert!(error.contains(says) && error.contains("FILE[,sample=SHARE]"), "{text}: {error}");
        }
    }
}
