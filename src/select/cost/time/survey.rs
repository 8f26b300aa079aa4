//! What the candidates have in common.

use crate::{device::MeanSpeed, index::Overlap, select::Row};

/// What the cost of one candidate needs to know of the others; made once for a decision.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Survey {
    /// Seconds a token over all slots, which a slot that showed little is drawn to.
    mean: f64,
    /// The mean of the slots' own.
    typical: f64,
    /// Leading blocks that any eligible slot holds or will hold, at most.
    deepest: u32,
    /// Requests in flight that use the last of these, on all slots.
    sharers: u32,
    /// Slots that have them all.
    holders: u32,
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
        let mean = fleet.seconds_per_token();
        let sum: f64 = rows.iter().map(|row| row.speed.seconds_per_token(mean)).sum();
        let typical = if rows.is_empty() { mean } else { sum / rows.len() as f64 };
        Self { mean, typical, deepest, sharers, holders, least_prefill }
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
        super::super::predicted(overlap, self.deepest)
    }

    /// Requests in flight that use the last block of the deepest overlap.
    #[must_use]
    pub const fn sharers(&self) -> u32 {
        self.sharers
    }

    /// Slots that have the deepest overlap.
    #[must_use]
    pub const fn holders(&self) -> u32 {
        self.holders
    }

    /// Whether more requests share the deepest overlap than slots have it.
    #[must_use]
    pub const fn is_hot(&self) -> bool {
        self.sharers > self.holders
    }

    /// Prefill tokens outstanding on the least busy eligible slot.
    #[must_use]
    pub const fn least_prefill(&self) -> u64 {
        self.least_prefill
    }
}
