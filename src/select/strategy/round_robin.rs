//! Each in turn.

use super::{eligible, nth};
use crate::select::Row;

/// The row whose turn it is. `turn` counts the requests placed so far; the list may grow and shrink under it
/// and is not re-based.
pub(in crate::select) fn round_robin(rows: &[Row], turn: u64) -> Option<usize> {
    let n = turn.checked_rem(eligible(rows).count() as u64)?;
    nth(rows, usize::try_from(n).ok()?).map(|(position, _)| position)
}
