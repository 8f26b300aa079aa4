//! The cheapest by cached prefix and load.

use super::eligible;
use crate::select::{
    CostModel, Demand, Row, Tuning,
    cost::{Cost, blocks, on_devices, time, weighed},
    draw,
};
use fastrand::Rng;
use std::time::Duration;

/// Prices every row, the excluded ones too, so that one can see what they would have cost; picks among the
/// eligible ones the cheapest, or by chance when there is a temperature.
pub(in crate::select) fn kv(
    rows: &mut [Row],
    demand: &Demand<'_>,
    tuning: &Tuning,
    now: Duration,
    rng: &mut Rng,
) -> Option<usize> {
    match tuning.cost_model {
        CostModel::Time => {
            let survey = time::Survey::of(rows);
            priced(rows, tuning, rng, |row| Cost::Time(time::price(row, demand, tuning, &survey, now)))
        }
        CostModel::Blocks => {
            let least = eligible(rows).map(|(_, row)| row.load.prefill_tokens).min()?;
            priced(rows, tuning, rng, |row| Cost::Blocks(blocks::price(row, demand, tuning, least)))
        }
    }
}

fn priced(rows: &mut [Row], tuning: &Tuning, rng: &mut Rng, price: impl Fn(&Row) -> Cost) -> Option<usize> {
    for row in &mut *rows {
        row.cost = Some(weighed(on_devices(price(row), row.device), row.slow_start));
    }
    let cost = |row: &Row| row.cost.map_or(f64::INFINITY, |cost| cost.total());
    let costs = eligible(rows).map(|(position, row)| (position, cost(row)));
    if tuning.router_temperature > 0.0 {
        draw::softmax(costs, tuning.router_temperature, rng)
    } else {
        draw::least(costs, rng)
    }
}
