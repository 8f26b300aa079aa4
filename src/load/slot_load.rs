//! The counters of one slot.

/// What one slot is doing on behalf of this router.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SlotLoad {
    /// Requests in flight.
    pub requests: u32,
    /// Prompt tokens booked that were not cached and whose prefill is not reported done.
    pub prefill_tokens: u64,
    /// KV blocks in use by requests in flight; a prompt block that several of them share counts once.
    pub decode_blocks: u64,
}

impl SlotLoad {
    /// Adds `more`, stopping at the largest value instead of wrapping.
    pub(super) const fn add(&mut self, more: Self) {
        self.requests = self.requests.saturating_add(more.requests);
        self.prefill_tokens = self.prefill_tokens.saturating_add(more.prefill_tokens);
        self.decode_blocks = self.decode_blocks.saturating_add(more.decode_blocks);
    }

    /// Takes `less` away, stopping at zero.
    pub(super) const fn sub(&mut self, less: Self) {
        self.requests = self.requests.saturating_sub(less.requests);
        self.prefill_tokens = self.prefill_tokens.saturating_sub(less.prefill_tokens);
        self.decode_blocks = self.decode_blocks.saturating_sub(less.decode_blocks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_never_go_below_zero_nor_wrap() {
        let one = SlotLoad { requests: 1, prefill_tokens: 1, decode_blocks: 1 };
        let mut load = SlotLoad::default();
        load.sub(one);
        assert_eq!(load, SlotLoad::default());
        load = SlotLoad { requests: u32::MAX, prefill_tokens: u64::MAX, decode_blocks: u64::MAX };
        let full = load;
        load.add(one);
        assert_eq!(load, full);
    }
}
