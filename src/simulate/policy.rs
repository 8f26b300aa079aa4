//! What is to be compared.

use std::str::FromStr;

use crate::select::{CostModel, Mode, Tuning, UnknownMode};

/// A routing policy and what it is called.
#[derive(Clone, PartialEq, Debug)]
pub struct Policy {
    /// As it was given.
    pub name: String,
    /// The mode.
    pub mode: Mode,
    /// Its settings.
    pub tuning: Tuning,
}

/// A policy that cannot be read.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum PolicyError {
    /// Neither a cost model nor a mode.
    #[error(
        "{0}; or one of the cost models of mode kv, time and blocks, as in blocks:20:2 with a scale and a credit"
    )]
    Name(#[from] UnknownMode),
    /// Weights that are none.
    #[error(
        "'{0}' is not a policy: after a cost model come prefill_load_scale and overlap_score_credit, as in blocks:20:2"
    )]
    Weights(String),
}

/// `time` or `blocks`, alone or as `MODEL:SCALE:CREDIT`; or a router mode.
impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(name: &str) -> Result<Self, PolicyError> {
        let wrong = || PolicyError::Weights(name.to_owned());
        let mut parts = name.split(':');
        let Ok(cost_model) = parts.next().unwrap_or_default().parse::<CostModel>() else {
            return Ok(Self { name: name.to_owned(), mode: name.parse()?, tuning: Tuning::default() });
        };
        let mut tuning = Tuning { cost_model, ..Tuning::default() };
        let weights: Vec<f64> = parts.map(str::parse).collect::<Result<_, _>>().map_err(|_| wrong())?;
        match weights[..] {
            [] => {}
            [scale, credit] => (tuning.prefill_load_scale, tuning.overlap_score_credit) = (scale, credit),
            _ => return Err(wrong()),
        }
        tuning.validate().map_err(|_| wrong())?;
        Ok(Self { name: name.to_owned(), mode: Mode::Kv, tuning })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read() {
        let read = |name: &str| name.parse::<Policy>().map(|policy| (policy.mode, policy.tuning));
        assert_eq!(read("time"), Ok((Mode::Kv, Tuning::default())));
        let blocks = Tuning { cost_model: CostModel::Blocks, ..Tuning::default() };
        assert_eq!(read("blocks"), Ok((Mode::Kv, blocks)));
        let heavy = Tuning { prefill_load_scale: 20.0, overlap_score_credit: 2.0, ..blocks };
        assert_eq!(read("blocks:20:2"), Ok((Mode::Kv, heavy)));
        assert_eq!(read("round-robin"), Ok((Mode::RoundRobin, Tuning::default())));
        for wrong in ["blocks:20", "blocks:-1:1", "blocks:a:b", "time:1:2:3"] {
            assert!(matches!(read(wrong), Err(PolicyError::Weights(_))), "{wrong}");
        }
        assert!(read("fast").unwrap_err().to_string().contains("round-robin"));
    }
}
