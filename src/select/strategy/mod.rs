//! The rules of the modes, one a file.
//!
//! Each picks among the eligible rows and returns the position of its pick; `None` only if no row is eligible.
//! A row's load is its number of requests in flight, for what it weighs while it starts slowly. Turns and plain chance ask for no
//! load, and so for no weight.

mod device_aware_weighted;
mod direct;
mod kv;
mod least_loaded;
mod power_of_two;
mod random;
mod round_robin;

pub(super) use device_aware_weighted::device_aware_weighted;
pub(super) use direct::direct;
pub(super) use kv::kv;
pub(super) use least_loaded::least_loaded;
pub(super) use power_of_two::power_of_two;
pub(super) use random::random;
pub(super) use round_robin::round_robin;

use super::Row;

/// The eligible rows with their positions.
fn eligible(rows: &[Row]) -> impl Iterator<Item = (usize, &Row)> + Clone {
    rows.iter().enumerate().filter(|(_, row)| row.is_eligible())
}

/// The position of the `n`-th eligible row, and its load.
fn nth(rows: &[Row], n: usize) -> Option<(usize, f64)> {
    eligible(rows).nth(n).map(|(position, row)| (position, row.requests_for_weight()))
}
