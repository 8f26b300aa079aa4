//! The router modes.

use std::{fmt, str::FromStr};

/// The rule by which a worker set picks a worker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Mode {
    /// Each in turn.
    #[default]
    RoundRobin,
    /// Any, with equal chances.
    Random,
    /// The less loaded of two drawn at random.
    PowerOfTwo,
    /// The least loaded.
    LeastLoaded,
    /// The one that the request names.
    Direct,
    /// The least loaded, with CPUs and accelerators weighed by what they are worth.
    DeviceAwareWeighted,
    /// The cheapest by cached prefix and load.
    Kv,
}

impl Mode {
    /// Every mode, in order of name.
    pub const ALL: [Self; 7] = [
        Self::DeviceAwareWeighted,
        Self::Direct,
        Self::Kv,
        Self::LeastLoaded,
        Self::PowerOfTwo,
        Self::Random,
        Self::RoundRobin,
    ];

    /// The spelling of the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round-robin",
            Self::Random => "random",
            Self::PowerOfTwo => "power-of-two",
            Self::LeastLoaded => "least-loaded",
            Self::Direct => "direct",
            Self::DeviceAwareWeighted => "device-aware-weighted",
            Self::Kv => "kv",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A mode that nobody knows.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown router mode '{name}'; expected one of {}", Mode::ALL.map(Mode::name).join(", "))]
pub struct UnknownMode {
    /// The name as given.
    pub name: String,
}

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(name: &str) -> Result<Self, UnknownMode> {
        Self::ALL
            .into_iter()
            .find(|mode| mode.name() == name)
            .ok_or_else(|| UnknownMode { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back_and_the_list_is_sorted() {
        for mode in Mode::ALL {
            assert_eq!(mode.name().parse(), Ok(mode));
        }
        assert!(Mode::ALL.map(Mode::name).is_sorted());
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = "bogus".parse::<Mode>().unwrap_err().to_string();
        assert_eq!(
            error,
            "unknown router mode 'bogus'; expected one of device-aware-weighted, direct, kv, least-loaded, \
             power-of-two, random, round-robin"
        );
    }
}
