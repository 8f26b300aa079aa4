//! The requests that a slot serves side by side.

use crate::select::Tuning;

/// Seconds for `requests` in flight: each costs `decode_active_request_weight` blocks of `block` tokens, prefilled at
/// `sigma` seconds a token.
#[must_use]
pub fn request_seconds(sigma: f64, block: f64, requests: u32, tuning: &Tuning) -> f64 {
    tuning.decode_active_request_weight * block * sigma * f64::from(requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_costs_the_prefill_of_so_many_blocks() {
        let tuning = Tuning { decode_active_request_weight: 5.0, ..Tuning::default() };
        assert_eq!(request_seconds(1e-4, 16.0, 3, &tuning), 5.0 * 16.0 * 1e-4 * 3.0);
        assert_eq!(request_seconds(1e-4, 16.0, 3, &Tuning::default()), 0.0);
    }
}
