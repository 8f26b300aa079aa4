//! The cheapest by cached prefix and load.

use super::eligible;
use crate::select::{Demand, Row, Tuning, cost, draw};
use fastrand::Rng;

/// Prices every row, the excluded ones too, so that one can see what they would have cost; picks among the
/// eligible ones the cheapest, or by chance when there is a temperature.
pub(in crate::select) fn kv(
    rows: &mut [Row],
    demand: &Demand<'_>,
    tuning: &Tuning,
    rng: &mut Rng,
) -> Option<usize> {
    let least_prefill = eligible(rows).map(|(_, row)| row.load.prefill_tokens).min()?;
    for row in &mut *rows {
        row.cost = Some(cost::on_devices(cost::price(row, demand, tuning, least_prefill), row.device));
    }
    let costs = eligible(rows).map(|(position, row)| (position, row.cost.map_or(f64::INFINITY, |c| c.total)));
    if tuning.router_temperature > 0.0 {
        draw::softmax(costs, tuning.router_temperature, rng)
    } else {
        draw::least(costs, rng)
    }
}
