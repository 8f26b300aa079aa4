//! What a slot weighs: the devices that it computes on, and its slow start.

use super::{BlockCost, Cost, TimeCost};
use crate::device::Terms;

/// The cost on devices of that weight: work takes the longer, the less they are worth, so the sum is divided by the weight,
/// and what is better than nothing is worth the less. Without telemetry, with weights off and at weight 1 it is what it
/// was, to the last bit.
#[must_use]
pub fn on_devices(cost: Cost, device: Option<Terms>) -> Cost {
    device.map_or(cost, |terms| weighed(cost, terms.weight))
}

/// The same for any weight, above 0, to 1.
#[must_use]
pub fn weighed(cost: Cost, weight: f64) -> Cost {
    let weighed = |total: f64| if total < 0.0 { total * weight } else { total / weight };
    match cost {
        Cost::Time(cost) => Cost::Time(TimeCost { total: weighed(cost.total), ..cost }),
        Cost::Blocks(cost) => Cost::Blocks(BlockCost { total: weighed(cost.total), ..cost }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Condition, Weights};

    #[test]
    fn half_the_weight_is_twice_the_cost() {
        let of = |total| {
            Cost::Blocks(BlockCost {
                decay: 1.0,
                credit: 3.0,
                prefill: 4.0,
                decode: 5.0,
                requests: 1.0,
                session: 0.0,
                total,
            })
        };
        let at =
            |capability| Weights::default().terms(Condition { capability, external_load: 0.0, age_ms: 0 });
        for (total, half) in [(10.0, 20.0), (0.0, 0.0), (-10.0, -5.0), (f64::INFINITY, f64::INFINITY)] {
            assert_eq!(on_devices(of(total), Some(at(0.5))), of(half));
            for neutral in [None, Some(at(1.0))] {
                assert_eq!(on_devices(of(total), neutral), of(total));
            }
        }
    }
}
