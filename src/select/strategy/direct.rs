//! The one that the request names.

use super::least_loaded;
use crate::select::Row;
use fastrand::Rng;

/// A pin leaves nobody else eligible. Where it names a worker without a rank, the least loaded rank serves.
pub(in crate::select) fn direct(rows: &[Row], rng: &mut Rng) -> Option<usize> {
    least_loaded(rows, rng)
}
