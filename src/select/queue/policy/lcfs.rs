//! Last come, first served.

use crate::select::queue::Waiting;

/// `jump + arrival`, in seconds. It serves clients that give up soon: who came last is the likeliest to be there still.
pub(super) fn score(waiting: &Waiting) -> f64 {
    waiting.urgency.jump() + waiting.arrived.as_secs_f64()
}
