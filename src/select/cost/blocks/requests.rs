//! The requests that a slot serves side by side.

use crate::select::Tuning;

/// The cost of `requests` in flight, in blocks.
#[must_use]
pub fn request_cost(requests: u32, tuning: &Tuning) -> f64 {
    tuning.decode_active_request_weight * f64::from(requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_costs_the_weight() {
        let tuning = Tuning { decode_active_request_weight: 1000.0, ..Tuning::default() };
        assert_eq!(request_cost(3, &tuning), 3000.0);
        assert_eq!(request_cost(3, &Tuning::default()), 0.0);
    }
}
