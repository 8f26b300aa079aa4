//! The context that a slot decodes with.

/// Blocks in use with the request there: those active now and those that it adds.
#[must_use]
pub fn decode_blocks(active: u64, new: u64) -> f64 {
    active.saturating_add(new) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn active_and_new_blocks_add_up() {
        assert_eq!(decode_blocks(5, 3), 8.0);
        assert!(decode_blocks(u64::MAX, u64::MAX).is_finite());
    }
}
