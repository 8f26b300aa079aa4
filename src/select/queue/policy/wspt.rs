//! Weighted shortest prefill first.

use crate::select::queue::Waiting;

/// `(1 + jump) / uncached tokens`. It has the least mean wait and no bound on the longest: a long prompt waits for as long as shorter
/// ones come.
pub(super) fn score(waiting: &Waiting) -> f64 {
    (1.0 + waiting.urgency.jump()) / waiting.work() as f64
}
