//! What the candidates have in common.

use super::{replicated_share, surcharge_rate};
use crate::{
    device::MeanSpeed,
    index::Overlap,
    select::{Row, cost::predicted},
};

/// What the cost of one candidate needs to know of the others; made once for a decision.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Survey {
    /// Seconds a token over all slots, which a slot that showed little is drawn to.
    mean: f64,
    /// The mean of the slots' own.
    typical: f64,
    /// Leading blocks that any eligible slot holds or will hold, at most.
    deepest: u32,
    /// What is added to each second of a prefill, for how many requests in flight use the last of these blocks.
    surcharge_rate: f64,
    /// The part of their recomputation that is taken off, for how many use them and how many slots have them.
    replicated_share: f64,
    /// Prefill tokens outstanding on the least busy eligible slot.
    least_prefill: u64,
}

impl Survey {
    /// Looks at all rows, for prefixes and load at the eligible ones only.
    #[must_use]
    pub fn of(rows: &[Row]) -> Self {
        let mut fleet = MeanSpeed::default();
        let (mut deepest, mut sharers, mut holders) = (0, 0_u32, 0);
        let mut least_prefill = u64::MAX;
        for row in rows {
            fleet.add(row.speed);
            if !row.is_eligible() {
                continue;
            }
            least_prefill = least_prefill.min(row.load.prefill_tokens);
            let depth = row.predicted.gpu;
            if depth > deepest {
                (deepest, sharers, holders) = (depth, 0, 0);
            }
            if depth == deepest && depth > 0 {
                holders += 1;
                if row.carried == depth {
                    sharers = sharers.saturating_add(row.carriers);
                }
            }
        }
        let (mean, typical) = (fleet.seconds_per_token(), fleet.typical());
        let surcharge_rate = surcharge_rate(sharers);
        let replicated_share = replicated_share(sharers, holders);
        Self { mean, typical, deepest, surcharge_rate, replicated_share, least_prefill }
    }

    /// Seconds a token over all slots.
    #[must_use]
    pub const fn mean(&self) -> f64 {
        self.mean
    }

    /// Half way between a slot's own seconds a token and the fleet's, by their ratio: `typical * (own / typical)^0.5`. At
    /// their full worth the fast slots of a mixed fleet take all prefills, which stalls their decodes and churns their
    /// caches; at the root they take most.
    #[must_use]
    pub fn tempered(&self, seconds_per_token: f64) -> f64 {
        (self.typical * seconds_per_token).sqrt()
    }

    /// `overlap` as it would be with the deepest prefix on its GPU.
    #[must_use]
    pub fn deepest(&self, overlap: Overlap) -> Overlap {
        predicted(overlap, self.deepest)
    }

    /// Seconds by which each second of a prefill counts as longer.
    #[must_use]
    pub const fn surcharge_rate(&self) -> f64 {
        self.surcharge_rate
    }

    /// The part of recomputing the deepest overlap that is taken off.
    #[must_use]
    pub const fn replicated_share(&self) -> f64 {
        self.replicated_share
    }

    /// Prefill tokens outstanding on the least busy eligible slot.
    #[must_use]
    pub const fn least_prefill(&self) -> u64 {
        self.least_prefill
    }
}
