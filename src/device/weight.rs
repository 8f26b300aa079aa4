//! What a slot's devices are worth in a choice.

use thiserror::Error;

/// What an operator can set about device weights. It belongs to a worker set: a card may bring its own.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Weights {
    /// Whether devices have a say in choices at all: in costs, in shares, and by fencing. Default true.
    pub enabled: bool,
    /// The most that load of others may take from a weight, 0 to 1; 0 leaves it out. Default 0.75.
    pub external: f64,
    /// The least that a weight can be, above 0, to 1: a device that is worth little still gets a little, or nobody would see
    /// it recover. Default 0.1.
    pub least: f64,
    /// From which age on a sample counts for nothing, in seconds; it counts in full until a third of that. At least 1.
    /// Default 30.
    pub stale_secs: f64,
}

impl Default for Weights {
    fn default() -> Self {
        Self { enabled: true, external: 0.75, least: 0.1, stale_secs: 30.0 }
    }
}

/// A setting out of its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum WeightsError {
    /// Not a share.
    #[error("device weight external must be between 0 and 1")]
    External,
    /// Not a weight.
    #[error("device weight least must be above 0 and at most 1")]
    Least,
    /// Not a time, or one too short to tell a late sample from a lost one.
    #[error("device weight stale_secs must be at least 1")]
    StaleSecs,
}

/// What is known of a slot's devices.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Condition {
    /// What the slowest of them is capable of, above 0, to 1.
    pub capability: f64,
    /// What others keep the busiest of them busy with, 0 to 1.
    pub external_load: f64,
    /// How old that is, in milliseconds.
    pub age_ms: u64,
}

/// How the weight of a slot's devices came about. Shares, no unit.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Terms {
    /// What the slowest of them is capable of, above 0, to 1.
    pub capability: f64,
    /// What others keep the busiest of them busy with, 0 to 1.
    pub external_load: f64,
    /// What the sample counts for, by its age, 0 to 1.
    pub freshness: f64,
    /// What they are worth, above 0, to 1:
    /// `full + (1 - freshness) * (1 - full)`, with `full = max(least, capability * (1 - min(external, external_load)))`.
    pub weight: f64,
}

impl Weights {
    /// Checks every range.
    ///
    /// # Errors
    /// The first setting out of its range.
    pub fn validate(&self) -> Result<(), WeightsError> {
        if !(0.0..=1.0).contains(&self.external) {
            return Err(WeightsError::External);
        }
        if !(self.least > 0.0 && self.least <= 1.0) {
            return Err(WeightsError::Least);
        }
        if !(self.stale_secs.is_finite() && self.stale_secs >= 1.0) {
            return Err(WeightsError::StaleSecs);
        }
        Ok(())
    }

    /// What a sample of that age counts for: 1 until a third of `stale_secs`, then ever less, 0 from `stale_secs` on.
    #[must_use]
    pub fn freshness(&self, age_ms: u64) -> f64 {
        let (age, stale) = (age_ms as f64, self.stale_secs * 1000.0);
        let fresh = stale / 3.0;
        if age <= fresh { 1.0 } else { ((stale - age) / (stale - fresh)).clamp(0.0, 1.0) }
    }

    /// What devices weigh of which this is known; `None` without telemetry, and where weights are off.
    #[must_use]
    pub fn of(&self, condition: Option<Condition>) -> Option<Terms> {
        condition.filter(|_| self.enabled).map(|condition| self.terms(condition))
    }

    /// The weight of devices in that condition.
    #[must_use]
    pub fn terms(&self, condition: Condition) -> Terms {
        let Condition { capability, external_load, age_ms } = condition;
        self.weigh(capability, external_load, self.freshness(age_ms))
    }

    /// What devices would weigh under these settings of which others told `terms`: the sample counts for what it did then.
    /// `None` where weights are off.
    #[must_use]
    pub fn again(&self, terms: Option<Terms>) -> Option<Terms> {
        let terms = terms.filter(|_| self.enabled)?;
        Some(self.weigh(terms.capability, terms.external_load, terms.freshness))
    }

    fn weigh(&self, capability: f64, external_load: f64, freshness: f64) -> Terms {
        let full = (capability * (1.0 - external_load.min(self.external))).clamp(self.least, 1.0);
        let faded = full + (1.0 - freshness) * (1.0 - full);
        // Rounding must not leave a trace of a sample that counts for nothing.
        let weight = if freshness > 0.0 { faded.min(1.0) } else { 1.0 };
        Terms { capability, external_load, freshness, weight }
    }
}

impl Terms {
    /// The share of their full speed that the devices are known to have, above 0, to 1: what the weight would be with no load of
    /// others.
    #[must_use]
    pub fn pace(&self) -> f64 {
        // `least` is not at hand. Where it counts, the weight is at it already, and no external load was taken off.
        self.weight.max(1.0 - self.freshness * (1.0 - self.capability))
    }
}

/// What is left of a difference after `elapsed`, if half is left after `half_life`; same unit.
pub(super) fn share_left(elapsed: f64, half_life: f64) -> f64 {
    (-elapsed / half_life).exp2()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn weigh(weights: Weights, capability: f64, external_load: f64, age_ms: u64) -> Terms {
        weights.terms(Condition { capability, external_load, age_ms })
    }

    #[test]
    fn the_formula() {
        let weights = Weights::default();
        for (capability, external, age_ms, expected) in [
            (1.0, 0.0, 0, 1.0),
            (0.5, 0.0, 0, 0.5),
            (0.5, 0.5, 0, 0.25),
            (1.0, 1.0, 0, 0.25),
            (0.2, 1.0, 0, 0.1),
            (0.5, 0.0, 10_000, 0.5),
            (0.5, 0.0, 20_000, 0.75),
            (0.5, 0.0, 30_000, 1.0),
            (0.5, 0.0, u64::MAX, 1.0),
        ] {
            let terms = weigh(weights, capability, external, age_ms);
            assert!((terms.weight - expected).abs() < 1e-12, "{terms:?}");
        }
        assert_eq!(weigh(Weights { external: 0.0, ..weights }, 0.5, 1.0, 0).weight, 0.5);
    }

    #[test]
    fn the_pace_is_the_weight_without_others() {
        let weights = Weights::default();
        for (capability, age_ms) in
            [(1.0, 0), (0.5, 0), (0.05, 0), (0.5, 20_000), (0.05, 20_000), (0.5, u64::MAX)]
        {
            let alone = weigh(weights, capability, 0.0, age_ms);
            assert!((alone.pace() - alone.weight).abs() < 1e-12, "{alone:?}");
            for external in [0.3, 1.0] {
                let beside = weigh(weights, capability, external, age_ms);
                assert!((beside.pace() - alone.weight).abs() < 1e-12, "{beside:?}");
            }
        }
    }

    #[test]
    fn ranges() {
        let refused = |weights: Weights| weights.validate().is_err();
        let base = Weights::default();
        assert!(!refused(base) && !refused(Weights { least: 1.0, external: 0.0, ..base }));
        for external in [-0.1, 1.1, f64::NAN] {
            assert!(refused(Weights { external, ..base }));
        }
        for least in [0.0, -1.0, 1.1, f64::NAN] {
            assert!(refused(Weights { least, ..base }));
        }
        for stale_secs in [0.5, f64::INFINITY, f64::NAN] {
            assert!(refused(Weights { stale_secs, ..base }));
        }
    }

    proptest! {
        #[test]
        fn a_weight_is_never_zero_and_falls_with_what_is_wrong(
            capability in 0.0..=1.0_f64, external in 0.0..=1.0_f64, age in 0_u64..60_000,
            worse in 0.0..=1.0_f64, least in 0.01..=1.0_f64, most in 0.0..=1.0_f64,
        ) {
            let weights = Weights { external: most, least, ..Weights::default() };
            let terms = weigh(weights, capability, external, age);
            prop_assert!((least..=1.0).contains(&terms.weight), "{terms:?}");
            let limit = terms.weight + 1e-12;
            prop_assert!(weigh(weights, capability * worse, external, age).weight <= limit);
            prop_assert!(weigh(weights, capability, external.max(worse), age).weight <= limit);
            prop_assert!(weigh(weights, capability, external, age + 1).weight + 1e-12 >= terms.weight);
        }
    }
}
