//! When a decode worker computes a prompt itself, though there are prefill workers to do it.
//!
//! Handing a prompt's blocks from one worker to another has its price. Where little of the prompt is left to compute, or
//! where the prefill workers are busy, the decode worker that already holds part of it is the shorter way: the request
//! *bypasses* the prefill workers. The rule is Dynamo's conditional disaggregation. Here is the rule alone: a pure
//! function of settings and facts. What is not known never speaks for a bypass.

use std::{fmt, str::FromStr};

use super::tuning::{self, TuningError};

/// The settings of a decode set that a bypass depends on. Names and defaults are those of Dynamo's
/// `conditional_disagg_*` keys.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ConditionalDisagg {
    /// What speaks for a bypass. Default [`BypassPolicy::IslBounding`].
    pub policy: BypassPolicy,
    /// A prompt is short if fewer tokens than this are left to compute. Default 2048.
    pub eff_isl_threshold: u64,
    /// And if they are less than this share of it, 0 to 1. Default 0.7.
    pub eff_isl_ratio_threshold: f64,
    /// A prefill worker is busy if more tokens wait there than this many times those of its largest batch. At least 0;
    /// needed by the policies that look at it. Default `None`.
    pub prefill_busy_threshold: Option<f64>,
    /// A decode worker is busy, and takes no bypass, if with the request more than this share of its blocks would be in
    /// use. At least 0. Default `None`: it is not asked.
    pub decode_busy_threshold: Option<f64>,
}

impl Default for ConditionalDisagg {
    fn default() -> Self {
        Self {
            policy: BypassPolicy::default(),
            eff_isl_threshold: 2048,
            eff_isl_ratio_threshold: 0.7,
            prefill_busy_threshold: None,
            decode_busy_threshold: None,
        }
    }
}

/// What speaks for a bypass.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum BypassPolicy {
    /// Little of the prompt is left to compute.
    #[default]
    IslBounding,
    /// The prefill worker that would get the prompt is busy.
    PrefillLoad,
    /// Either.
    IslOrLoad,
}

impl BypassPolicy {
    /// Every policy, in order of name.
    pub const ALL: [Self; 3] = [Self::IslBounding, Self::IslOrLoad, Self::PrefillLoad];

    /// The spelling of cards and flags.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::IslBounding => "isl_bounding",
            Self::PrefillLoad => "prefill_load",
            Self::IslOrLoad => "isl_or_load",
        }
    }

    /// Whether it asks how busy prefill workers are.
    #[must_use]
    pub const fn asks_load(self) -> bool {
        !matches!(self, Self::IslBounding)
    }
}

impl fmt::Display for BypassPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A policy that nobody knows.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown policy '{name}'; expected one of {}", BypassPolicy::ALL.map(BypassPolicy::name).join(", "))]
pub struct UnknownBypassPolicy {
    /// The name as given.
    pub name: String,
}

impl FromStr for BypassPolicy {
    type Err = UnknownBypassPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownBypassPolicy> {
        let known = Self::ALL.into_iter().find(|policy| policy.name() == name);
        known.ok_or_else(|| UnknownBypassPolicy { name: name.to_owned() })
    }
}

/// How much of something is taken, of how much there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Level {
    /// What is taken.
    pub used: u64,
    /// All of it.
    pub capacity: u64,
}

impl Level {
    fn is_over(self, threshold: f64) -> bool {
        self.used as f64 > threshold * self.capacity as f64
    }
}

/// What is known of one request and of the two workers that it would go to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BypassFacts {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens of it that the decode worker has cached.
    pub cached_tokens: u64,
    /// Prompt tokens that wait at the prefill worker, of those that its largest batch takes; `None` if either is not
    /// known.
    pub prefill: Option<Level>,
    /// Blocks that would be in use at the decode worker with the request there, of all its blocks; `None` if either is
    /// not known.
    pub decode: Option<Level>,
}

impl BypassFacts {
    /// Tokens that the decode worker would have to compute.
    #[must_use]
    pub fn net_new_tokens(&self) -> u64 {
        self.prompt_tokens - self.cached_tokens.min(self.prompt_tokens)
    }
}

/// What the rule says of one request, and why.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BypassVerdict {
    /// Bypass: little is left to compute.
    ShortPrompt,
    /// Bypass: the prefill worker is busy.
    PrefillBusy,
    /// No bypass: much is left to compute.
    LongPrompt,
    /// No bypass: the prefill worker is not busy.
    PrefillFree,
    /// No bypass: nobody knows whether the prefill worker is busy.
    PrefillLoadUnknown,
    /// No bypass: the decode worker is busy.
    DecodeBusy,
    /// No bypass: nobody knows whether the decode worker is busy.
    DecodeLoadUnknown,
}

impl BypassVerdict {
    /// Every verdict, for tables of counters.
    pub const ALL: [Self; 7] = [
        Self::ShortPrompt,
        Self::PrefillBusy,
        Self::LongPrompt,
        Self::PrefillFree,
        Self::PrefillLoadUnknown,
        Self::DecodeBusy,
        Self::DecodeLoadUnknown,
    ];

    /// Whether the decode worker shall compute the prompt.
    #[must_use]
    pub const fn bypasses(self) -> bool {
        matches!(self, Self::ShortPrompt | Self::PrefillBusy)
    }

    /// The name used in metrics and explain.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ShortPrompt => "short_prompt",
            Self::PrefillBusy => "prefill_busy",
            Self::LongPrompt => "long_prompt",
            Self::PrefillFree => "prefill_free",
            Self::PrefillLoadUnknown => "prefill_load_unknown",
            Self::DecodeBusy => "decode_busy",
            Self::DecodeLoadUnknown => "decode_load_unknown",
        }
    }
}

impl ConditionalDisagg {
    /// Takes the threshold of the set's queue for how busy a prefill worker may be, if that is asked and not said.
    pub fn fall_back_to(&mut self, queue_threshold: Option<f64>) {
        if self.policy.asks_load() {
            self.prefill_busy_threshold = self.prefill_busy_threshold.or(queue_threshold);
        }
    }

    /// Checks every range, and that the policy has the threshold that it asks.
    ///
    /// # Errors
    /// The first setting out of its range, or the policy.
    pub fn validate(&self) -> Result<(), TuningError> {
        self.validate_ranges()?;
        if self.policy.asks_load() && self.prefill_busy_threshold.is_none() {
            return Err(TuningError::NoPrefillBusyThreshold { policy: self.policy });
        }
        Ok(())
    }

    /// Checks every range.
    ///
    /// # Errors
    /// The first setting out of its range.
    pub fn validate_ranges(&self) -> Result<(), TuningError> {
        tuning::share("conditional_disagg_eff_isl_ratio_threshold", self.eff_isl_ratio_threshold)?;
        for (field, value) in [
            ("conditional_disagg_prefill_busy_threshold", self.prefill_busy_threshold),
            ("conditional_disagg_decode_busy_threshold", self.decode_busy_threshold),
        ] {
            value.map_or(Ok(()), |value| tuning::weight(field, value))?;
        }
        Ok(())
    }

    /// Whether a request bypasses the prefill workers. All comparisons are strict: what equals a threshold is
    /// neither below nor over it.
    #[must_use]
    pub fn judge(&self, facts: &BypassFacts) -> BypassVerdict {
        let wanted = match self.policy {
            BypassPolicy::IslBounding => self.by_length(facts),
            BypassPolicy::PrefillLoad => self.by_load(facts),
            BypassPolicy::IslOrLoad => match self.by_length(facts) {
                BypassVerdict::ShortPrompt => BypassVerdict::ShortPrompt,
                _ => self.by_load(facts),
            },
        };
        if wanted.bypasses() { self.veto(facts).unwrap_or(wanted) } else { wanted }
    }

    fn by_length(&self, facts: &BypassFacts) -> BypassVerdict {
        let left = facts.net_new_tokens();
        let share = left as f64 / facts.prompt_tokens.max(1) as f64;
        if left < self.eff_isl_threshold && share < self.eff_isl_ratio_threshold {
            BypassVerdict::ShortPrompt
        } else {
            BypassVerdict::LongPrompt
        }
    }

    fn by_load(&self, facts: &BypassFacts) -> BypassVerdict {
        match self.prefill_busy_threshold.zip(facts.prefill) {
            Some((threshold, level)) if level.is_over(threshold) => BypassVerdict::PrefillBusy,
            Some(_) => BypassVerdict::PrefillFree,
            None => BypassVerdict::PrefillLoadUnknown,
        }
    }

    fn veto(&self, facts: &BypassFacts) -> Option<BypassVerdict> {
        let threshold = self.decode_busy_threshold?;
        match facts.decode {
            Some(level) if level.is_over(threshold) => Some(BypassVerdict::DecodeBusy),
            Some(_) => None,
            None => Some(BypassVerdict::DecodeLoadUnknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BypassVerdict::*, *};

    const fn level(used: u64, capacity: u64) -> Option<Level> {
        Some(Level { used, capacity })
    }

    fn facts(prompt_tokens: u64, cached_tokens: u64) -> BypassFacts {
        BypassFacts { prompt_tokens, cached_tokens, prefill: None, decode: None }
    }

    #[test]
    fn a_prompt_is_short_strictly_below_both_bounds() {
        let rule =
            ConditionalDisagg { eff_isl_threshold: 100, eff_isl_ratio_threshold: 0.5, ..Default::default() };
        for (prompt, cached, verdict) in [
            // The count at its bound, the share well below.
            (1000, 901, ShortPrompt),
            (1000, 900, LongPrompt),
            (1000, 899, LongPrompt),
            // The share at its bound, the count well below.
            (100, 51, ShortPrompt),
            (100, 50, LongPrompt),
            (100, 49, LongPrompt),
            // Nothing is left to compute, and more cached than asked for.
            (100, 100, ShortPrompt),
            (100, 200, ShortPrompt),
            (0, 0, ShortPrompt),
            (1, 0, LongPrompt),
        ] {
            assert_eq!(rule.judge(&facts(prompt, cached)), verdict, "{prompt} {cached}");
        }
        let never = ConditionalDisagg { eff_isl_ratio_threshold: 0.0, ..rule };
        assert_eq!(never.judge(&facts(100, 100)), LongPrompt, "nothing is below zero");
        let never = ConditionalDisagg { eff_isl_threshold: 0, ..rule };
        assert_eq!(never.judge(&facts(100, 100)), LongPrompt);
        let cold = ConditionalDisagg { eff_isl_ratio_threshold: 1.0, ..rule };
        assert_eq!(cold.judge(&facts(50, 0)), LongPrompt, "a share of 1 is not below 1");
        assert_eq!(cold.judge(&facts(50, 1)), ShortPrompt);
    }

    #[test]
    fn the_defaults_are_dynamo_s() {
        let rule = ConditionalDisagg::default();
        assert_eq!(rule.judge(&facts(10_000, 10_000 - 2047)), ShortPrompt);
        assert_eq!(rule.judge(&facts(10_000, 10_000 - 2048)), LongPrompt);
        assert_eq!((rule.judge(&facts(1000, 301)), rule.judge(&facts(1000, 300))), (ShortPrompt, LongPrompt));
    }

    #[test]
    fn a_prefill_worker_is_busy_strictly_over_its_bound_and_only_if_that_is_known() {
        let rule = ConditionalDisagg {
            policy: BypassPolicy::PrefillLoad,
            prefill_busy_threshold: Some(0.5),
            ..Default::default()
        };
        for (prefill, verdict) in [
            (level(51, 100), PrefillBusy),
            (level(50, 100), PrefillFree),
            (level(0, 100), PrefillFree),
            (level(0, 0), PrefillFree),
            (None, PrefillLoadUnknown),
        ] {
            // The length of the prompt has no say.
            for cached in [0, 1000] {
                assert_eq!(
                    rule.judge(&BypassFacts { prefill, ..facts(1000, cached) }),
                    verdict,
                    "{prefill:?}"
                );
            }
        }
        let any = ConditionalDisagg { prefill_busy_threshold: Some(0.0), ..rule };
        assert_eq!(any.judge(&BypassFacts { prefill: level(1, 100), ..facts(9, 0) }), PrefillBusy);
        let unset = ConditionalDisagg { prefill_busy_threshold: None, ..rule };
        assert_eq!(unset.judge(&BypassFacts { prefill: level(99, 1), ..facts(9, 0) }), PrefillLoadUnknown);
    }

    #[test]
    fn either_will_do_for_isl_or_load() {
        let rule = ConditionalDisagg {
            policy: BypassPolicy::IslOrLoad,
            prefill_busy_threshold: Some(1.0),
            ..Default::default()
        };
        let (long, short) = (facts(10_000, 0), facts(1000, 900));
        for (facts, prefill, verdict) in [
            (short, None, ShortPrompt),
            (short, level(2, 1), ShortPrompt),
            (long, level(2, 1), PrefillBusy),
            (long, level(1, 1), PrefillFree),
            (long, None, PrefillLoadUnknown),
        ] {
            assert_eq!(rule.judge(&BypassFacts { prefill, ..facts }), verdict, "{facts:?} {prefill:?}");
        }
    }

    #[test]
    fn a_decode_worker_that_is_busy_or_unknown_takes_no_bypass() {
        let rule = ConditionalDisagg { decode_busy_threshold: Some(0.9), ..Default::default() };
        let (short, long) = (facts(1000, 900), facts(1000, 0));
        for (decode, verdict) in
            [(level(90, 100), ShortPrompt), (level(91, 100), DecodeBusy), (None, DecodeLoadUnknown)]
        {
            assert_eq!(rule.judge(&BypassFacts { decode, ..short }), verdict, "{decode:?}");
            // Where no bypass is wanted there is nothing to veto.
            assert_eq!(rule.judge(&BypassFacts { decode, ..long }), LongPrompt);
        }
        let ungated = ConditionalDisagg::default();
        assert_eq!(ungated.judge(&BypassFacts { decode: level(9, 1), ..short }), ShortPrompt);
    }

    #[test]
    fn ranges_and_the_threshold_that_a_policy_needs() {
        let says = |rule: ConditionalDisagg| rule.validate().map_err(|error| error.to_string());
        let base = ConditionalDisagg::default();
        assert_eq!(says(base), Ok(()));
        for (rule, text) in [
            (
                ConditionalDisagg { eff_isl_ratio_threshold: 1.1, ..base },
                "conditional_disagg_eff_isl_ratio_threshold must be between 0 and 1",
            ),
            (
                ConditionalDisagg { eff_isl_ratio_threshold: f64::NAN, ..base },
                "conditional_disagg_eff_isl_ratio_threshold must be between 0 and 1",
            ),
            (
                ConditionalDisagg { decode_busy_threshold: Some(-0.1), ..base },
                "conditional_disagg_decode_busy_threshold must be finite and non-negative",
            ),
            (
                ConditionalDisagg { prefill_busy_threshold: Some(f64::INFINITY), ..base },
                "conditional_disagg_prefill_busy_threshold must be finite and non-negative",
            ),
            (
                ConditionalDisagg { policy: BypassPolicy::IslOrLoad, ..base },
                "the policy isl_or_load needs prefill_busy_threshold (conditional_disagg_prefill_busy_threshold on a \
                 card), or the queue's threshold in its place: how many of its largest batches may wait at a prefill worker that is \
                 not busy",
            ),
        ] {
            assert_eq!(says(rule), Err(text.to_owned()));
        }
    }

    #[test]
    fn every_policy_reads_back() {
        for policy in BypassPolicy::ALL {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        assert!(BypassPolicy::ALL.map(BypassPolicy::name).is_sorted());
        let error = "isl".parse::<BypassPolicy>().unwrap_err().to_string();
        assert_eq!(error, "unknown policy 'isl'; expected one of isl_bounding, isl_or_load, prefill_load");
    }
}
