//! What another copy of a hot prefix would save.

/// How soon a second copy pays. Anything between a tenth and a half serves as well.
const RHO: f64 = 0.2;

/// The part of the recomputation of a shared prefix that its later users are held to pay, where `sharers` requests in
/// flight use its last block and `holders` slots have it: 0 while every holder has at most one of them, and towards 1 with
/// the crowd at each holder. Without it a burst of equal prompts piles up on the slot that got the first of them.
#[must_use]
pub fn replicated_share(sharers: u32, holders: u32) -> f64 {
    if holders == 0 || sharers <= holders {
        return 0.0;
    }
    1.0 - 1.0 / (1.0 + RHO * (f64::from(sharers) / f64::from(holders) - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_saved_until_holders_are_crowded() {
        for (sharers, holders) in [(0, 0), (0, 1), (1, 1), (4, 4), (3, 4), (7, 0)] {
            assert_eq!(replicated_share(sharers, holders), 0.0, "{sharers} on {holders}");
        }
    }

    #[test]
    fn it_grows_with_the_crowd_and_stays_below_all_of_it() {
        assert_eq!(replicated_share(6, 1), 1.0 - 1.0 / (1.0 + 0.2 * 5.0));
        assert_eq!(replicated_share(6, 4), 1.0 - 1.0 / (1.0 + 0.2 * 0.5));
        assert!(replicated_share(u32::MAX, 1) < 1.0);
    }
}
