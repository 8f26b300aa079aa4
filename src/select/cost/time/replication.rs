//! What another copy of a hot prefix would save.

/// How soon a second copy pays. Anything between a tenth and a half serves as well.
const RHO: f64 = 0.2;

/// The part of the recomputation of a shared prefix that its later users are held to pay, where `sharers` requests in
/// flight use its last block and `holders` slots have it: 0 while every holder has at most one of them, and towards 1 with
/// the crowd at each holder.
#[must_use]
fn share(sharers: u32, holders: u32) -> f64 {
    if holders == 0 || sharers <= holders {
        return 0.0;
    }
    1.0 - 1.0 / (1.0 + RHO * (f64::from(sharers) / f64::from(holders) - 1.0))
}

/// Seconds taken off where computing the prefix again takes `missing` tokens of work, at `sigma` seconds a token. Without
/// it a burst of equal prompts piles up on the slot that got the first of them.
#[must_use]
pub fn replication(sigma: f64, missing: f64, sharers: u32, holders: u32) -> f64 {
    sigma * missing.max(0.0) * share(sharers, holders)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_saved_until_holders_are_crowded() {
        for (sharers, holders) in [(0, 0), (0, 1), (1, 1), (4, 4), (3, 4), (7, 0)] {
            assert_eq!(replication(1e-4, 1000.0, sharers, holders), 0.0, "{sharers} on {holders}");
        }
    }

    #[test]
    fn it_grows_with_the_crowd_and_stays_below_the_recomputation() {
        let expected = |ratio: f64| 1e-4 * 1000.0 * (1.0 - 1.0 / (1.0 + 0.2 * (ratio - 1.0)));
        assert_eq!(replication(1e-4, 1000.0, 6, 1), expected(6.0));
        assert_eq!(replication(1e-4, 1000.0, 6, 4), expected(1.5));
        assert!(replication(1e-4, 1000.0, u32::MAX, 1) < 1e-4 * 1000.0);
        assert_eq!(replication(1e-4, -5.0, 6, 1), 0.0);
    }
}
