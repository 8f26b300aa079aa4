//! Recorded decisions under other settings.

use super::{Decision, Verdict, replay::remake};
use crate::select::{CostModel, Mode, Row, Tuning, cost::Cost};

/// What would have been chosen, over many decisions. Each is taken by itself: the loads of a row are those that the recorded
/// choices led to, so what a choice would have changed for later ones is not in it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Comparison {
    /// Decisions looked at.
    pub decisions: u64,
    /// Those that were refused, or would have been.
    pub refused: u64,
    /// Those that would have chosen another candidate.
    pub changed: u64,
    /// By how much those other choices are cheaper by the recorded model, in each model's unit.
    pub by_recorded: Savings,
    /// By how much they are cheaper by the other settings' model.
    pub by_other: Savings,
    /// By how many seconds their first tokens would come sooner, as the time model predicts it. It is nobody's where
    /// neither the recorded settings nor the others price by time.
    pub first_token: Saving,
}

/// Differences by the unit that they are in.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Savings {
    /// In seconds.
    pub time: Saving,
    /// In blocks.
    pub blocks: Saving,
}

/// A sum of differences, positive where the other choice is the better one.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Saving {
    /// Over how many decisions.
    pub decisions: u64,
    /// The sum.
    pub sum: f64,
}

/// Adds to `comparison` what would have come of `decision` by `mode` and `tuning`.
///
/// Rows are valued anew: weights of tiers and of devices act as they would have. What was counted under the recorded settings stays as
/// it was counted. Round robin goes by the decision's number.
pub fn what_if(comparison: &mut Comparison, decision: &Decision, mode: Mode, tuning: &Tuning) {
    let demand = decision.question.demand(decision.rule.block_size);
    let with_overrides = tuning.with(&decision.question.overrides);
    let mut rows = decision.rows.clone();
    rows.iter_mut().for_each(|row| row.revalue(&demand, &with_overrides));
    let other = remake(decision, mode, tuning, decision.number, rows);
    comparison.decisions += 1;
    let (Verdict::Chosen { row: chosen, .. }, Ok(instead)) = (&decision.verdict, &other.made) else {
        comparison.refused += 1;
        return;
    };
    if chosen == instead {
        return;
    }
    comparison.changed += 1;
    let recorded = super::replay(decision);
    let costs = |rows: &[Row]| Some((rows[*chosen].cost?, rows[*instead].cost?));
    let (then, now) = (costs(&recorded.rows), costs(&other.rows));
    comparison.by_recorded.add(then);
    comparison.by_other.add(now);
    let sooner = |costs: Option<(Cost, Cost)>| {
        let (chosen, instead) = costs?;
        Some(chosen.first_token()? - instead.first_token()?)
    };
    if let Some(seconds) = sooner(then).or_else(|| sooner(now)) {
        comparison.first_token.add(seconds);
    }
}

impl Savings {
    fn add(&mut self, costs: Option<(Cost, Cost)>) {
        let Some((chosen, instead)) = costs else { return };
        let saved = chosen.total() - instead.total();
        match chosen.model() {
            CostModel::Time => self.time.add(saved),
            CostModel::Blocks => self.blocks.add(saved),
        }
    }
}

impl Saving {
    fn add(&mut self, saved: f64) {
        self.decisions += 1;
        self.sum += saved;
    }
}
