//! First come, first served.

use crate::select::queue::Waiting;

/// `jump - arrival`, in seconds: a jump of two seconds overtakes everybody who came up to two seconds earlier.
pub(super) fn score(waiting: &Waiting) -> f64 {
    waiting.urgency.jump() - waiting.arrived.as_secs_f64()
}
