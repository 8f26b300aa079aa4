//! The context that a slot decodes with.

/// Seconds for each second that prefilling the context in use would take: reading it is cheap, and is done for every
/// token. It spreads long contexts; together with `harm` it is what keeps decoding smooth (in simulation end-to-end times
/// are 55 % longer without both).
pub(super) const READING: f64 = 0.02;

/// Seconds for the context of a slot with the request there: `active` blocks in use now and `new` ones, less the blocks
/// that are `spared`, of `block` tokens, at `sigma` seconds a token. 0 where blocks in use are not tracked.
#[must_use]
pub fn context(sigma: f64, active: u64, new: u64, spared: f64, block: f64) -> f64 {
    let blocks = (active.saturating_add(new) as f64 - spared).max(0.0);
    READING * sigma * blocks * block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_fiftieth_of_the_prefill_of_what_is_in_use() {
        assert_eq!(context(1e-4, 500, 100, 0.0, 16.0), 0.02 * 1e-4 * 600.0 * 16.0);
        assert_eq!(context(1e-4, 500, 100, 50.0, 16.0), 0.02 * 1e-4 * 550.0 * 16.0);
        assert_eq!(context(1e-4, 5, 1, 50.0, 16.0), 0.0);
        assert!(context(0.1, u64::MAX, u64::MAX, 0.0, 1024.0).is_finite());
    }
}
