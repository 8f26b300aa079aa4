//! Which cost a choice goes by.

use std::{fmt, str::FromStr};

/// How mode `kv` prices candidates.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum CostModel {
    /// In seconds, with speeds learned from first tokens.
    #[default]
    Time,
    /// In blocks, by Dynamo's formula.
    Blocks,
}

impl CostModel {
    /// Every model, in order of name.
    pub const ALL: [Self; 2] = [Self::Blocks, Self::Time];

    /// The spelling of the command line, the card and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Blocks => "blocks",
        }
    }

    /// What its costs are counted in.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Time => "seconds",
            Self::Blocks => "blocks",
        }
    }
}

impl fmt::Display for CostModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A model that nobody knows.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown router cost model '{name}'; expected one of {}", CostModel::ALL.map(CostModel::name).join(", "))]
pub struct UnknownCostModel {
    /// The name as given.
    pub name: String,
}

impl FromStr for CostModel {
    type Err = UnknownCostModel;

    fn from_str(name: &str) -> Result<Self, UnknownCostModel> {
        Self::ALL
            .into_iter()
            .find(|model| model.name() == name)
            .ok_or_else(|| UnknownCostModel { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_others_are_told_which_there_are() {
        for model in CostModel::ALL {
            assert_eq!(model.name().parse(), Ok(model));
        }
        let error = "tokens".parse::<CostModel>().unwrap_err().to_string();
        assert_eq!(error, "unknown router cost model 'tokens'; expected one of blocks, time");
    }
}
