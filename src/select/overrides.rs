//! What one request can set for itself.

use super::tuning::{self, TuningError};

/// Settings of a [`Tuning`](super::Tuning) that one request replaces; `None` keeps the worker set's.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Overrides {
    /// Replaces `overlap_score_credit`.
    pub overlap_score_credit: Option<f64>,
    /// Replaces `prefill_load_scale`.
    pub prefill_load_scale: Option<f64>,
    /// Replaces `router_temperature`.
    pub router_temperature: Option<f64>,
    /// Replaces `router_assume_kv_reuse`.
    pub assume_kv_reuse: Option<bool>,
    /// Replaces `router_track_prefill_tokens`.
    pub track_prefill_tokens: Option<bool>,
}

impl Overrides {
    /// Checks every range.
    ///
    /// # Errors
    /// The first override out of its range.
    pub fn validate(&self) -> Result<(), TuningError> {
        self.overlap_score_credit.map_or(Ok(()), tuning::credit)?;
        for (field, value) in
            [("prefill_load_scale", self.prefill_load_scale), ("router_temperature", self.router_temperature)]
        {
            value.map_or(Ok(()), |value| tuning::weight(field, value))?;
        }
        Ok(())
    }

    /// Applies the legacy `overlap_score_weight`, as
    /// [`Tuning::set_overlap_score_weight`](super::Tuning::set_overlap_score_weight) does.
    pub fn set_overlap_score_weight(&mut self, weight: f64) {
        self.prefill_load_scale = Some(weight);
        if weight == 0.0 {
            self.overlap_score_credit = Some(0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::Tuning;

    #[test]
    fn what_is_absent_keeps_the_set_tuning() {
        let base = Tuning { overlap_score_credit: 2.0, ..Tuning::default() };
        assert_eq!(base.with(&Overrides::default()), base);
        let overrides = Overrides {
            router_temperature: Some(0.5),
            assume_kv_reuse: Some(false),
            track_prefill_tokens: Some(false),
            ..Overrides::default()
        };
        let tuning = base.with(&overrides);
        assert_eq!((tuning.overlap_score_credit, tuning.router_temperature), (2.0, 0.5));
        assert!(!tuning.router_assume_kv_reuse && !tuning.router_track_prefill_tokens);
        assert_eq!(tuning.with(&overrides), tuning);
    }

    #[test]
    fn ranges_are_those_of_the_tuning() {
        let check = |overrides: Overrides| overrides.validate().unwrap_err().to_string();
        assert_eq!(
            check(Overrides { overlap_score_credit: Some(-1.0), ..Overrides::default() }),
            "overlap_score_credit must be a finite, non-negative number"
        );
        assert_eq!(
            check(Overrides { router_temperature: Some(f64::NAN), ..Overrides::default() }),
            "router_temperature must be finite and non-negative"
        );
    }
}
