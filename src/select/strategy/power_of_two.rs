//! The less loaded of two.

use super::{eligible, nth};
use crate::select::Row;
use fastrand::Rng;

/// Draws two different rows; the second must be less loaded to win.
pub(in crate::select) fn power_of_two(rows: &[Row], rng: &mut Rng) -> Option<usize> {
    let count = eligible(rows).count();
    if count < 2 {
        return nth(rows, 0).map(|(position, _)| position);
    }
    let i = rng.usize(..count);
    let j = (i + 1 + rng.usize(..count - 1)) % count;
    let (first, first_load) = nth(rows, i)?;
    let (second, second_load) = nth(rows, j)?;
    Some(if first_load <= second_load { first } else { second })
}
