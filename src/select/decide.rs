//! The decision itself.

use super::{Demand, Mode, Refusal, Row, Tuning, refusal::refuse, strategy};
use fastrand::Rng;
use std::time::Duration;

/// Picks a row for `demand` by the rule of `mode` and returns its position.
///
/// Live traffic, dry runs and simulations all decide here. The function reads its arguments and nothing else;
/// it writes the costs of the rows, if the mode prices them. `turn` is the number of requests that the set's
/// round robin has placed, `now` the time on the clock of the loads. `tuning` is the set's; the demand's overrides are
/// applied here.
///
/// A session's wish for a slot is part of the cost in mode `kv`, and followed by the others.
///
/// A pinned request is outside the mode's rule: it goes where it is pinned, and to the least loaded rank if
/// that leaves several. Mode `kv` prices it as any other.
///
/// # Errors
/// A [`Refusal`] if no row is eligible or the request is pinned to what does not exist.
#[expect(
    clippy::too_many_arguments,
    reason = "nothing is taken from the surroundings, so all of it is an argument"
)]
pub fn decide(
    mode: Mode,
    tuning: &Tuning,
    demand: &Demand<'_>,
    turn: u64,
    rows: &mut [Row],
    now: Duration,
    rng: &mut Rng,
) -> Result<usize, Refusal> {
    if let Some(refusal) = refuse(mode, demand, rows) {
        return Err(refusal);
    }
    let tuning = &tuning.with(&demand.overrides);
    let wished = || rows.iter().position(|row| row.tied.is_some() && row.is_eligible());
    let picked = match mode {
        Mode::Kv => strategy::kv(rows, demand, tuning, now, rng),
        _ if let Some(wished) = wished() => Some(wished),
        _ if demand.pin.is_some() => strategy::direct(rows, rng),
        Mode::Direct => strategy::direct(rows, rng),
        Mode::RoundRobin => strategy::round_robin(rows, turn),
        Mode::Random => strategy::random(rows, rng),
        Mode::PowerOfTwo => strategy::power_of_two(rows, rng),
        Mode::LeastLoaded => strategy::least_loaded(rows, rng),
        Mode::DeviceAwareWeighted => strategy::device_aware_weighted(rows, tuning, rng),
    };
    // Every strategy picks where any row is eligible, and `refuse` found one.
    picked.ok_or(Refusal::NoWorkers)
}
