//! Recorded decisions made again.

use std::fmt;

use super::{Decision, Verdict};
use crate::select::{Mode, Refusal, Row, Tuning, cost::Cost, decide};

/// A decision as it comes out now.
#[derive(Clone, PartialEq, Debug)]
pub struct Remade {
    /// Every candidate's row, with its cost where the mode prices candidates.
    pub rows: Vec<Row>,
    /// The position of the row that is chosen, or why none is.
    pub made: Result<usize, Refusal>,
}

/// Makes `decision` again, by the function that made it and from what it was made from.
#[must_use]
pub fn replay(decision: &Decision) -> Remade {
    let Decision { rule, rows, turn, .. } = decision;
    remake(decision, rule.mode, &rule.tuning, *turn, rows.clone())
}

/// Makes `decision` as it would be by `mode` and `tuning` and with `rows`.
pub(super) fn remake(
    decision: &Decision,
    mode: Mode,
    tuning: &Tuning,
    turn: u64,
    mut rows: Vec<Row>,
) -> Remade {
    let demand = decision.question.demand(decision.rule.block_size);
    let rng = &mut fastrand::Rng::with_seed(decision.seed);
    let made = decide(mode, tuning, &demand, turn, &mut rows, decision.now, rng);
    Remade { rows, made }
}

impl Remade {
    /// What is recorded of it.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match self.made {
            Ok(row) => Verdict::Chosen { row, cost: self.rows[row].cost },
            Err(refusal) => Verdict::Refused { reason: refusal.name().to_owned() },
        }
    }

    /// In what it differs from what was recorded; `None` if it is the same to the last bit.
    #[must_use]
    pub fn difference(&self, decision: &Decision) -> Option<Difference> {
        let (recorded, made) = (&decision.verdict, &self.verdict());
        // The row that was chosen then is looked at, whoever is chosen now: its terms tell what changed.
        let terms = match recorded {
            Verdict::Chosen { row, cost } => apart(cost.as_ref(), self.rows[*row].cost.as_ref()),
            Verdict::Refused { .. } => Vec::new(),
        };
        let same = match (recorded, made) {
            (Verdict::Chosen { row, .. }, Verdict::Chosen { row: other, .. }) => row == other,
            (Verdict::Refused { reason }, Verdict::Refused { reason: other }) => reason == other,
            _ => false,
        };
        if same && terms.is_empty() {
            return None;
        }
        Some(Difference {
            number: decision.number,
            request: decision.request.clone(),
            recorded: name(recorded, &decision.rows),
            made: name(made, &decision.rows),
            terms,
        })
    }
}

/// A decision that does not come out as it was recorded.
#[derive(Clone, PartialEq, Debug)]
pub struct Difference {
    /// The decision's number.
    pub number: u64,
    /// The request's name.
    pub request: String,
    /// What was decided.
    pub recorded: String,
    /// What is decided now.
    pub made: String,
    /// The terms of the recorded choice that are not what they were: as recorded, and as they are now. NaN where a side has
    /// none.
    pub terms: Vec<(&'static str, f64, f64)>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, request, recorded, made, terms } = self;
        write!(f, "decision {number} (request {request}): recorded {recorded}, now {made}")?;
        for (position, (term, then, now)) in terms.iter().enumerate() {
            let before = if position == 0 { "; of the recorded choice " } else { ", " };
            write!(f, "{before}{term} was {then:?} and is {now:?}")?;
        }
        Ok(())
    }
}

fn name(verdict: &Verdict, rows: &[Row]) -> String {
    match verdict {
        Verdict::Chosen { row, .. } => format!("worker {} rank {}", rows[*row].worker, rows[*row].rank),
        Verdict::Refused { reason } => format!("refusal {reason}"),
    }
}

/// The terms of two costs that differ in any bit.
fn apart(recorded: Option<&Cost>, made: Option<&Cost>) -> Vec<(&'static str, f64, f64)> {
    let (then, now) = (recorded.map_or_else(Vec::new, terms), made.map_or_else(Vec::new, terms));
    let of = |terms: &[(&'static str, f64)], name| {
        terms.iter().find(|(term, _)| *term == name).map_or(f64::NAN, |(_, value)| *value)
    };
    let added = now.iter().filter(|(name, _)| then.iter().all(|(known, _)| known != name));
    let names = then.iter().chain(added).map(|(name, _)| *name);
    let all = names.map(|name| (name, of(&then, name), of(&now, name)));
    all.filter(|(_, then, now)| then.to_bits() != now.to_bits()).collect()
}

fn terms(cost: &Cost) -> Vec<(&'static str, f64)> {
    match *cost {
        Cost::Time(cost) => vec![
            ("queue", cost.queue),
            ("own_prefill", cost.own_prefill),
            ("surcharge", cost.surcharge),
            ("replication", cost.replication),
            ("harm", cost.harm),
            ("context", cost.context),
            ("requests", cost.requests),
            ("session", cost.session),
            ("first_token", cost.first_token.unwrap_or(f64::NAN)),
            ("seconds_per_token", cost.seconds_per_token),
            ("decay", cost.decay),
            ("total", cost.total),
        ],
        Cost::Blocks(cost) => vec![
            ("prefill", cost.prefill),
            ("decode", cost.decode),
            ("requests", cost.requests),
            ("session", cost.session),
            ("credit", cost.credit),
            ("decay", cost.decay),
            ("total", cost.total),
        ],
    }
}
