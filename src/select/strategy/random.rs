//! Any, with equal chances.

use super::{eligible, nth};
use crate::select::Row;
use fastrand::Rng;

pub(in crate::select) fn random(rows: &[Row], rng: &mut Rng) -> Option<usize> {
    let count = eligible(rows).count();
    if count == 0 {
        return None;
    }
    nth(rows, rng.usize(..count)).map(|(position, _)| position)
}
