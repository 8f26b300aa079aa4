//! Router flags as changes of a configuration that was recorded: what if it had been so?

use std::fmt;

use thiserror::Error;

use super::{
    Field::{self, *},
    Role, RouterFlags, Setting, Settings, Source, TABLE, Value, tuning,
};
use crate::select::{Mode, Tuning, TuningError};

/// Flags that replace what was recorded, each on its own; what none of them names stays as it was.
#[derive(Clone, PartialEq, Debug)]
pub struct Changes(Vec<Setting>);

/// A flag that recorded decisions cannot answer for.
#[derive(Clone, PartialEq, Debug, Error)]
#[error("{setting} cannot be asked of recorded decisions: {reason}")]
pub struct Unanswerable {
    /// As given.
    setting: Setting,
    /// Why.
    reason: &'static str,
}

impl<R: Role> RouterFlags<R> {
    /// These flags as changes.
    ///
    /// # Errors
    /// The first that a record of rows does not answer for.
    pub fn changes(&self) -> Result<Changes, Unanswerable> {
        let given = TABLE.iter().filter_map(|row| {
            let (value, flag) = self.get(row.field)?;
            Some(Setting { field: row.field, value: value.clone(), source: Source::Flag(flag) })
        });
        let changes: Vec<_> = given.collect();
        for setting in &changes {
            if let Some(reason) = unanswerable(setting) {
                return Err(Unanswerable { setting: setting.clone(), reason });
            }
        }
        Ok(Changes(changes))
    }
}

fn unanswerable(setting: &Setting) -> Option<&'static str> {
    match (setting.field, &setting.value) {
        (RouterMode, Value::Text(mode)) if mode == Mode::Direct.name() => {
            Some("a request names its worker then, and these did not")
        }
        (DeviceWeights, Value::Switch(true)) => {
            Some("where devices had no say, nothing is recorded of them; where they had, it changes nothing")
        }
        (
            RouterMode
            | RouterCostModel
            | OverlapScoreCredit
            | OverlapScoreCreditDecay
            | PrefillLoadScale
            | DecodeActiveRequestWeight
            | HostCacheHitWeight
            | DiskCacheHitWeight
            | Temperature
            | AcceleratorToCpuRatio
            | DeviceWeights
            | DeviceWeightExternal
            | DeviceWeightLeast,
            _,
        ) => None,
        (LoadAware | OverlapScoreWeight, _) => {
            Some("it stands for other flags; give those, such as --router-kv-overlap-score-credit 0")
        }
        _ => Some(
            "it changes what is known or counted of workers, not how that is weighed, and what was not counted is not recorded",
        ),
    }
}

impl Changes {
    /// Whether there is no change.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What `mode` and `tuning` are with these changes.
    ///
    /// # Errors
    /// A setting that is out of its range.
    pub fn apply(&self, mode: Mode, tuning: &Tuning) -> Result<(Mode, Tuning), TuningError> {
        let changed = |field: Field| self.0.iter().find(|setting| setting.field == field).cloned();
        let settings = Settings::of(|row| {
            changed(row.field).unwrap_or_else(|| {
                let value = tuning::value(tuning, row.field).unwrap_or_else(|| row.default());
                Setting { field: row.field, value, source: Source::Default }
            })
        });
        let other = Tuning {
            // No flag that is taken here says anything of it.
            conditional_disagg: tuning.conditional_disagg,
            ..tuning::tuning(&settings, *tuning)
        };
        // No change that is taken excludes another setting, and what was recorded may: it was decided so.
        other.validate_ranges()?;
        // The parser took no word that is no mode.
        let mode = changed(RouterMode).and_then(|_| settings.text(RouterMode)?.parse().ok()).unwrap_or(mode);
        Ok((mode, other))
    }
}

/// As they were given.
impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, setting) in self.0.iter().enumerate() {
            let separator = if position == 0 { "" } else { " " };
            write!(f, "{separator}{setting}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;
    use crate::{
        config::flags::Frontend,
        select::{CostModel, queue::QueuePolicy},
    };

    fn changes(args: &[&str]) -> Result<Changes, Unanswerable> {
        let command = RouterFlags::<Frontend>::augment_args(Command::new("test").no_binary_name(true));
        let matches = command.try_get_matches_from(args).unwrap();
        RouterFlags::<Frontend>::from_arg_matches(&matches).unwrap().changes()
    }

    #[test]
    fn what_no_flag_names_stays_as_it_was_recorded() {
        let recorded = Tuning {
            prefill_load_scale: 7.0,
            router_track_output_blocks: true,
            conditional_disagg: Some(Default::default()),
            device_weights: crate::device::Weights { external: 0.5, ..Default::default() },
            // Whatever excludes what.
            hold: Some(Duration::from_secs(2)),
            queue_policy: QueuePolicy::Wspt,
            ..Tuning::default()
        };
        let none = changes(&[]).unwrap();
        assert!(none.is_empty());
        assert_eq!(none.apply(Mode::LeastLoaded, &recorded), Ok((Mode::LeastLoaded, recorded)));
        let args = ["--router-kv-overlap-score-credit", "2", "--router-cost-model", "blocks"];
        let some = changes(&args).unwrap();
        let expected = Tuning { overlap_score_credit: 2.0, cost_model: CostModel::Blocks, ..recorded };
        assert_eq!(some.apply(Mode::Kv, &recorded), Ok((Mode::Kv, expected)));
        assert_eq!(some.to_string(), "--router-cost-model blocks --router-kv-overlap-score-credit 2.0");
        let mode = changes(&["--router-mode", "random", "--no-device-weights"]).unwrap();
        let (mode, tuning) = mode.apply(Mode::Kv, &recorded).unwrap();
        assert_eq!((mode, tuning.device_weights.enabled), (Mode::Random, false));
    }

    #[test]
    fn what_rows_do_not_answer_for_is_refused_with_the_reason() {
        for (args, says) in [
            (&["--no-router-track-active-blocks"][..], "what was not counted"),
            (&["--router-mode", "direct"], "names its worker"),
            (&["--load-aware"], "stands for other flags"),
            (&["--router-kv-overlap-score-weight", "2"], "stands for other flags"),
            (&["--device-weights"], "nothing is recorded of them"),
            (&["--device-weight-stale-secs", "9"], "what was not counted"),
            (&["--namespace", "n"], "what was not counted"),
        ] {
            let error = changes(args).unwrap_err().to_string();
            assert!(error.starts_with(args[0]) && error.contains(says), "{error}");
        }
    }
}
