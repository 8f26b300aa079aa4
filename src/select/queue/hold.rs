//! Late binding: a request is given to a worker when that can begin with it, not before.
//!
//! A prefill that stands behind others at its worker stands there whatever happens elsewhere. In the router it goes to whoever is
//! free first, and a shorter one, or one whose prefix is cached there by now, may go before it. In simulation that takes
//! some per cent off times to first token near saturation and in bursts, and nothing where workers are idle anyway.

use super::Waiting;
use std::time::Duration;

/// A request is held while the rank that is cheapest for it has more prefill before it than this. Simulation found 0.1 to 1 s
/// alike; it should not be less than a step of the engine takes.
pub const HOLD_BEYOND: Duration = Duration::from_millis(250);

/// How many of the requests that wait, in order of coming, are looked at for one that can go.
pub(super) const LOOKED_AT: usize = 512;

/// By what part of its time a prefill counts as shorter for each second of waiting.
const AGING: f64 = 0.2;

/// The score of a request that is held, of which the greatest goes first: `-prefill / (1 + 0.2 * waited)`, both in seconds.
/// Shortest first has the least mean wait; aging keeps the long ones from waiting for the end of their hold. First come, first
/// served gets about half of the gain, as long as it steps over those who cannot go; if it does not, times to first token grow
/// sevenfold.
pub(super) fn score(waiting: &Waiting, now: Duration) -> f64 {
    let waited = now.saturating_sub(waiting.arrived).as_secs_f64();
    -waiting.prefill_seconds / (1.0 + AGING * waited)
}
