//! From when on a slot counts as busy.

use super::SlotLoad;

/// What a slot's engine can take, as far as its worker said so.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Capacity {
    /// KV blocks, in all.
    pub kv_blocks: Option<u64>,
    /// Tokens of its largest batch.
    pub batch_tokens: Option<u64>,
}

/// A slot is busy if it is over any of these. What is not set is never over, nor is what is a part of something that nobody
/// stated. Names and rules are those of Dynamo's `load_threshold_config`.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Thresholds {
    /// The share of its KV blocks that may be in use, 0 to 1.
    pub active_decode_blocks: Option<f64>,
    /// The prompt tokens that may wait for prefill.
    pub active_prefill_tokens: Option<u64>,
    /// The same in largest batches, rounded down to tokens. At least 0.
    pub active_prefill_tokens_frac: Option<f64>,
}

impl Thresholds {
    /// Whether any is set.
    #[must_use]
    pub const fn any(&self) -> bool {
        self.active_decode_blocks.is_some()
            || self.active_prefill_tokens.is_some()
            || self.active_prefill_tokens_frac.is_some()
    }

    /// Whether a slot with this load is busy. `latch` is what it was by its blocks the last time: it gets busy with more
    /// blocks in use than it may have, and stays so until there are fewer, or none.
    #[must_use]
    pub fn are_exceeded(&self, load: &SlotLoad, capacity: &Capacity, latch: &mut bool) -> bool {
        *latch = match self.active_decode_blocks.zip(capacity.kv_blocks) {
            Some((share, all)) => {
                let (used, may) = (load.decode_blocks as f64, share * all as f64);
                used > may || (*latch && used == may && load.decode_blocks > 0)
            }
            None => false,
        };
        let tokens = load.prefill_tokens;
        let frac = self.active_prefill_tokens_frac.zip(capacity.batch_tokens);
        // A cast from float to integer saturates.
        let frac = frac.map(|(factor, batch)| (factor * batch as f64) as u64);
        *latch || self.active_prefill_tokens.into_iter().chain(frac).any(|may| tokens > may)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(thresholds: Thresholds, prefill_tokens: u64, decode_blocks: u64, capacity: Capacity) -> bool {
        let load = SlotLoad { requests: 1, prefill_tokens, decode_blocks };
        thresholds.are_exceeded(&load, &capacity, &mut false)
    }

    const STATED: Capacity = Capacity { kv_blocks: Some(100), batch_tokens: Some(1001) };
    const UNKNOWN: Capacity = Capacity { kv_blocks: None, batch_tokens: None };
    const NONE: Thresholds = Thresholds {
        active_decode_blocks: None,
        active_prefill_tokens: None,
        active_prefill_tokens_frac: None,
    };

    #[test]
    fn each_rule_of_the_thresholds() {
        let blocks = Thresholds { active_decode_blocks: Some(0.85), ..NONE };
        let tokens = Thresholds { active_prefill_tokens: Some(500), ..NONE };
        let frac = Thresholds { active_prefill_tokens_frac: Some(0.5), ..NONE };
        let any = Thresholds { active_prefill_tokens: Some(0), ..blocks };
        for (rule, thresholds, prefill, decode, capacity, expected) in [
            ("unset is never over", NONE, u64::MAX, u64::MAX, STATED, false),
            ("what equals a share is not over it", blocks, 0, 85, STATED, false),
            ("what is more is", blocks, 0, 86, STATED, true),
            ("a share of what nobody stated is never over", blocks, 0, u64::MAX, UNKNOWN, false),
            ("what equals a number of tokens is not over it", tokens, 500, 0, UNKNOWN, false),
            ("what is more is, whatever is stated", tokens, 501, 0, UNKNOWN, true),
            ("a factor of a batch is rounded down", frac, 500, 0, STATED, false),
            ("and compared strictly", frac, 501, 0, STATED, true),
            ("a factor of what nobody stated is never over", frac, u64::MAX, 0, UNKNOWN, false),
            ("any of them will do", any, 1, 0, STATED, true),
            (
                "zero is over with anything at all",
                Thresholds { active_decode_blocks: Some(0.0), ..NONE },
                0,
                1,
                STATED,
                true,
            ),
            (
                "and not with nothing",
                Thresholds { active_decode_blocks: Some(0.0), ..NONE },
                0,
                0,
                STATED,
                false,
            ),
        ] {
            assert_eq!(busy(thresholds, prefill, decode, capacity), expected, "{rule}");
        }
    }

    #[test]
    fn blocks_latch_until_there_are_fewer() {
        let thresholds = Thresholds { active_decode_blocks: Some(0.5), ..NONE };
        let mut latch = false;
        let mut at = |decode_blocks| {
            thresholds.are_exceeded(&SlotLoad { decode_blocks, ..SlotLoad::default() }, &STATED, &mut latch)
        };
        assert_eq!([50, 51, 50, 49, 50].map(&mut at), [false, true, true, false, false]);
        let thresholds = Thresholds { active_decode_blocks: Some(0.0), ..NONE };
        let mut at = |decode_blocks| {
            thresholds.are_exceeded(&SlotLoad { decode_blocks, ..SlotLoad::default() }, &STATED, &mut latch)
        };
        assert_eq!([1, 0].map(&mut at), [true, false], "there are no fewer than none");
    }
}
