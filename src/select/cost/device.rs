//! The devices that a slot computes on.

use super::Cost;
use crate::device::Terms;

/// The cost on devices of that weight: a block takes the longer, the less they are worth, so the sum is divided by the
/// weight. Without telemetry, with weights off and at weight 1 it is what it was, to the last bit.
#[must_use]
pub fn on_devices(cost: Cost, device: Option<Terms>) -> Cost {
    device.map_or(cost, |terms| Cost { total: cost.total / terms.weight, ..cost })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Condition, Weights};

    #[test]
    fn half_the_weight_is_twice_the_cost() {
        let cost = Cost { decay: 1.0, credit: 3.0, prefill: 4.0, decode: 5.0, requests: 1.0, total: 10.0 };
        let at =
            |capability| Weights::default().terms(Condition { capability, external_load: 0.0, age_ms: 0 });
        assert_eq!(on_devices(cost, Some(at(0.5))), Cost { total: 20.0, ..cost });
        for neutral in [None, Some(at(1.0))] {
            assert_eq!(on_devices(cost, neutral), cost);
        }
        let endless = Cost { total: f64::INFINITY, ..cost };
        assert_eq!(on_devices(endless, Some(at(0.5))), endless);
    }
}
