//! The least loaded.

use super::eligible;
use crate::select::{Row, draw::least};
use fastrand::Rng;

/// For what a row weighs while it starts slowly. Rows that tie have equal chances.
pub(in crate::select) fn least_loaded(rows: &[Row], rng: &mut Rng) -> Option<usize> {
    least(eligible(rows).map(|(position, row)| (position, row.requests_for_weight())), rng)
}
