//! The two flags of conditional disaggregation: a switch, and a JSON object with the rule.

use serde::Deserialize;

use super::{BuildError, Field, Settings};
use crate::select::ConditionalDisagg;

/// The keys of `--router-conditional-disagg-config`, which are Dynamo's.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Keys {
    policy: String,
    eff_isl_threshold: u64,
    eff_isl_ratio_threshold: f64,
    prefill_busy_threshold: Option<f64>,
    decode_busy_threshold: Option<f64>,
}

impl Default for Keys {
    fn default() -> Self {
        let rule = ConditionalDisagg::default();
        Self {
            policy: rule.policy.name().to_owned(),
            eff_isl_threshold: rule.eff_isl_threshold,
            eff_isl_ratio_threshold: rule.eff_isl_ratio_threshold,
            prefill_busy_threshold: rule.prefill_busy_threshold,
            decode_busy_threshold: rule.decode_busy_threshold,
        }
    }
}

/// The rule that the flags make; none if the switch is off.
///
/// # Errors
/// A text that is no such object, or a rule that cannot work.
pub(super) fn read(settings: &Settings) -> Result<Option<ConditionalDisagg>, BuildError> {
    if !settings.switch(Field::ConditionalDisagg) {
        return Ok(None);
    }
    let text = settings.text(Field::ConditionalDisaggConfig);
    let queue = settings.number(Field::QueueThreshold);
    let rule = text.map_or(Ok(ConditionalDisagg::default()), |text| parse(text, queue));
    rule.map(Some).map_err(|problem| BuildError::ConditionalDisagg {
        setting: settings.get(Field::ConditionalDisaggConfig).clone(),
        problem,
    })
}

/// `queue` is the threshold of the queue, which stands in for a missing one.
fn parse(text: &str, queue: Option<f64>) -> Result<ConditionalDisagg, String> {
    // A list of the values in order would read, too.
    if !text.trim_start().starts_with('{') {
        return Err("not a JSON object".to_owned());
    }
    let keys: Keys = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let mut rule = ConditionalDisagg {
        policy: keys.policy.parse().map_err(|error| format!("{error}"))?,
        eff_isl_threshold: keys.eff_isl_threshold,
        eff_isl_ratio_threshold: keys.eff_isl_ratio_threshold,
        prefill_busy_threshold: keys.prefill_busy_threshold,
        decode_busy_threshold: keys.decode_busy_threshold,
    };
    rule.fall_back_to(queue);
    rule.validate().map_err(|error| error.to_string())?;
    Ok(rule)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::BypassPolicy;

    #[test]
    fn every_key_is_read_and_what_is_left_out_is_the_default() {
        assert_eq!(parse("{}", None), Ok(ConditionalDisagg::default()));
        let text = r#" {"policy":"isl_or_load","eff_isl_threshold":4096,"eff_isl_ratio_threshold":0.5,
            "prefill_busy_threshold":0.8,"decode_busy_threshold":0.9}"#;
        let rule = ConditionalDisagg {
            policy: BypassPolicy::IslOrLoad,
            eff_isl_threshold: 4096,
            eff_isl_ratio_threshold: 0.5,
            prefill_busy_threshold: Some(0.8),
            decode_busy_threshold: Some(0.9),
        };
        assert_eq!(parse(text, None), Ok(rule));
        let null = r#"{"prefill_busy_threshold":null,"decode_busy_threshold":null}"#;
        assert_eq!(parse(null, None), Ok(ConditionalDisagg::default()));
    }

    #[test]
    fn the_queue_s_threshold_stands_in_for_a_missing_one() {
        let busy = |text, queue| parse(text, queue).map(|rule| rule.prefill_busy_threshold);
        let by_load = r#"{"policy":"prefill_load"}"#;
        assert_eq!(busy(by_load, Some(1.5)), Ok(Some(1.5)));
        assert_eq!(busy(r#"{"policy":"prefill_load","prefill_busy_threshold":2}"#, Some(1.5)), Ok(Some(2.0)));
        assert_eq!(busy("{}", Some(1.5)), Ok(None), "nobody asks for it");
        assert!(busy(by_load, None).is_err());
    }

    #[test]
    fn what_does_not_read_says_why() {
        for (text, says) in [
            ("[]", "not a JSON object"),
            ("isl_bounding", "not a JSON object"),
            ("{", "EOF"),
            (r#"{"threshold":1}"#, "unknown field `threshold`"),
            (r#"{"policy":"isl"}"#, "unknown policy 'isl'"),
            (r#"{"policy":null}"#, "invalid type: null"),
            (r#"{"eff_isl_threshold":true}"#, "invalid type: boolean `true`"),
            (r#"{"eff_isl_threshold":1.5}"#, "invalid type: floating point"),
            (r#"{"eff_isl_threshold":-1}"#, "invalid value: integer `-1`"),
            (r#"{"eff_isl_ratio_threshold":false}"#, "invalid type: boolean `false`"),
            (r#"{"eff_isl_ratio_threshold":1.01}"#, "must be between 0 and 1"),
            (r#"{"decode_busy_threshold":-0.1}"#, "must be finite and non-negative"),
            (r#"{"decode_busy_threshold":"0.5"}"#, "invalid type: string"),
            (r#"{"policy":"prefill_load"}"#, "the policy prefill_load needs prefill_busy_threshold"),
        ] {
            let error = parse(text, None).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
