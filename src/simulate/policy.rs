//! What is to be compared.

use std::{str::FromStr, time::Duration};

use super::peer::Peer;
use crate::select::{CostModel, Mode, Tuning, queue::QueuePolicy};

/// A routing policy and what it is called.
#[derive(Clone, PartialEq, Debug)]
pub struct Policy {
    /// As it was given.
    pub name: String,
    /// Who gets a request.
    pub rule: Rule,
    /// The settings of mode `kv`. Weights that count in blocks are for blocks of 16 tokens, whatever a page is.
    pub tuning: Tuning,
}

/// Who gets a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Whom the production selector chooses in this mode.
    Selector(Mode),
    /// Whom the rule of another router would choose.
    Peer(Peer),
    /// Whom the time model chooses, where all engines share one cache of their joint size and see each other's pages at once. No
    /// fleet can do that: it is what is left to gain.
    Pooled,
}

/// Policies with names of their own, beside the router modes and `MODEL:SCALE:CREDIT`.
const NAMED: [&str; 8] =
    ["time", "time-hold", "blocks", "blocks-s20c2", "dynamo-tuned", "smg", "llm-d", "pooled"];

/// For how long a request is held at most.
const HOLD: Duration = Duration::from_secs(60);

/// A policy that cannot be read.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum PolicyError {
    /// Nobody knows it.
    #[error(
        "unknown policy '{name}'; expected one of {}, a cost model with a scale and a credit as in blocks:20:2, or a router mode: {}",
        NAMED.join(", "), Mode::ALL.map(Mode::name).join(", ")
    )]
    Name {
        /// As it was given.
        name: String,
    },
    /// Weights that are none.
    #[error(
        "'{0}' is not a policy: after a cost model come prefill_load_scale and overlap_score_credit, as in blocks:20:2"
    )]
    Weights(String),
}

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(name: &str) -> Result<Self, PolicyError> {
        let blocks = |prefill_load_scale, overlap_score_credit| Tuning {
            cost_model: CostModel::Blocks,
            prefill_load_scale,
            overlap_score_credit,
            ..Tuning::default()
        };
        let kv = Rule::Selector(Mode::Kv);
        let (rule, tuning) = match name {
            "time" => (kv, Tuning::default()),
            "time-hold" => (kv, Tuning { hold: Some(HOLD), ..Tuning::default() }),
            "blocks" => (kv, blocks(1.0, 1.0)),
            "blocks-s20c2" => (kv, blocks(20.0, 2.0)),
            "dynamo-tuned" => {
                let tuning = Tuning {
                    decode_active_request_weight: 1000.0,
                    queue_threshold: Some(1.0),
                    queue_policy: QueuePolicy::Wspt,
                    ..blocks(80.0, 2.0)
                };
                (kv, tuning)
            }
            "smg" => (Rule::Peer(Peer::Smg), Tuning::default()),
            "llm-d" => (Rule::Peer(Peer::LlmD), Tuning::default()),
            "pooled" => (Rule::Pooled, Tuning::default()),
            _ => match weights(name)? {
                Some(tuning) => (kv, tuning),
                None => match name.parse() {
                    Ok(mode) => (Rule::Selector(mode), Tuning::default()),
                    Err(_) => return Err(PolicyError::Name { name: name.to_owned() }),
                },
            },
        };
        Ok(Self { name: name.to_owned(), rule, tuning })
    }
}

/// `MODEL:SCALE:CREDIT`; `None` if it does not begin with a cost model and a colon.
fn weights(name: &str) -> Result<Option<Tuning>, PolicyError> {
    let wrong = || PolicyError::Weights(name.to_owned());
    let Some((model, weights)) = name.split_once(':') else { return Ok(None) };
    let Ok(cost_model) = model.parse::<CostModel>() else { return Ok(None) };
    let weights: Vec<f64> =
        weights.split(':').map(str::parse).collect::<Result<_, _>>().map_err(|_| wrong())?;
    let [prefill_load_scale, overlap_score_credit] = weights[..] else { return Err(wrong()) };
    let tuning = Tuning { cost_model, prefill_load_scale, overlap_score_credit, ..Tuning::default() };
    tuning.validate().map_err(|_| wrong())?;
    Ok(Some(tuning))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read() {
        let read = |name: &str| name.parse::<Policy>().map(|policy| (policy.rule, policy.tuning));
        let kv = Rule::Selector(Mode::Kv);
        assert_eq!(read("time"), Ok((kv, Tuning::default())));
        let blocks = Tuning { cost_model: CostModel::Blocks, ..Tuning::default() };
        assert_eq!(read("blocks"), Ok((kv, blocks)));
        let heavy = Tuning { prefill_load_scale: 20.0, overlap_score_credit: 2.0, ..blocks };
        assert_eq!(read("blocks:20:2"), Ok((kv, heavy)));
        assert_eq!(read("blocks-s20c2"), Ok((kv, heavy)));
        assert_eq!(read("round-robin"), Ok((Rule::Selector(Mode::RoundRobin), Tuning::default())));
        for name in NAMED {
            assert_eq!(name.parse::<Policy>().unwrap().name, name);
        }
        for wrong in ["blocks:20", "blocks:-1:1", "blocks:a:b", "time:1:2:3"] {
            assert!(matches!(read(wrong), Err(PolicyError::Weights(_))), "{wrong}");
        }
        let unknown = read("fast").unwrap_err().to_string();
        assert!(unknown.contains("round-robin") && unknown.contains("llm-d"), "{unknown}");
    }
}
