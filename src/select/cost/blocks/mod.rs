//! The cost in blocks: the cost function of Dynamo's KV router, to the letter. In block units, for a slot that holds the first `D` blocks of the
//! prompt on its GPU, `H` more in host memory and `K` more below:
//!
//! ```text
//! credit = overlap_score_credit * decay * D + host weight * H + disk weight * K
//! cost   = prefill_load_scale * max(0, prefill tokens / block size - credit)
//!        + decode blocks + decode_active_request_weight * requests
//! ```
//!
//! Where a request's session wishes for the slot, the prefill of half of its prompt is taken off.
//!
//! Nothing is normalised across workers. Costs that the credit brings to 0 tie.

mod decode;
mod prefill;
mod requests;

pub use decode::decode_blocks;
pub use prefill::prefill_blocks;
pub use requests::request_cost;

use super::{credit, decay, decodes_only, session_bonus};
use crate::select::{Demand, Row, Tuning};

/// The terms of one candidate's cost, in blocks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BlockCost {
    /// What is left of the credit for GPU blocks, 0 to 1. No unit.
    pub decay: f64,
    /// Credit for what is cached.
    pub credit: f64,
    /// The prefill term: waiting and own prefill less the credit, never below 0, scaled.
    pub prefill: f64,
    /// The decode term: blocks in use with this request there.
    pub decode: f64,
    /// The term for requests in flight.
    pub requests: f64,
    /// What going on with the request's session is worth; it is taken off.
    pub session: f64,
    /// The sum; never NaN.
    pub total: f64,
}

/// The cost of `demand` on the slot of `row`. `least_prefill` is the least number of prefill tokens outstanding
/// on any eligible slot; `tuning` holds for this request.
#[inline] // As in the time model.
#[must_use]
pub fn price(row: &Row, demand: &Demand<'_>, tuning: &Tuning, least_prefill: u64) -> BlockCost {
    let waiting = row.load.prefill_tokens.saturating_sub(least_prefill);
    let decay = decay(waiting, demand, tuning);
    let credit = credit(row.overlap, decay, tuning);
    let prefill = prefill_blocks(row.load.prefill_tokens, row.cached_tokens, demand, tuning);
    let blocks = decode_blocks(row.load.decode_blocks, row.new_blocks);
    let requests = request_cost(row.load.requests, tuning);
    let (prefill, decode) = if decodes_only(demand, tuning) {
        // There is no prefill to save; blocks that are here already need no transfer instead.
        (0.0, (blocks - credit).max(0.0))
    } else {
        (tuning.prefill_load_scale * (prefill - credit).max(0.0), blocks)
    };
    let session = session_bonus(row, demand, tuning) / f64::from(demand.block_size.get());
    let total = prefill + decode + requests - session;
    // Settings beyond reason can make 0 * infinity. Such a slot is the last choice, and never undefined.
    let total = if total.is_nan() { f64::INFINITY } else { total };
    BlockCost { decay, credit, prefill, decode, requests, session, total }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        hash::BlockSize,
        index::Overlap,
        load::SlotLoad,
        select::{Member, Phase, cost::cached_tokens},
        slot::{Rank, Slot, WorkerId},
    };

    fn demand() -> Demand<'static> {
        Demand::new(128, BlockSize::new(16).unwrap(), &[])
    }

    /// A slot with `prefill` tokens outstanding and `blocks` in use once the request is there.
    fn row(overlap: Overlap, prefill: u64, blocks: u64, tuning: &Tuning) -> Row {
        let member = Member::new(Slot { index: 0, generation: 0 }, WorkerId(0), Rank(0));
        Row {
            overlap,
            cached_tokens: cached_tokens(overlap, demand().block_size, tuning),
            load: SlotLoad { requests: 3, prefill_tokens: prefill, decode_blocks: blocks },
            ..Row::new(&member)
        }
    }

    #[test]
    fn the_worked_example() {
        let tuning = Tuning::default();
        let gpu = |gpu| Overlap { gpu, ..Overlap::default() };
        let total = |overlap, prefill, blocks| {
            price(&row(overlap, prefill, blocks, &tuning), &demand(), &tuning, 0).total
        };
        assert_eq!(total(gpu(6), 0, 2), 4.0);
        assert_eq!(total(gpu(0), 64, 8), 20.0);
        assert_eq!(total(Overlap { gpu: 4, host: 2, ..Overlap::default() }, 32, 6), 10.5);
    }

    #[test]
    fn the_terms_add_up_to_the_total() {
        let tuning = Tuning {
            overlap_score_credit_decay: 0.5,
            prefill_load_scale: 20.0,
            decode_active_request_weight: 2.0,
            ..Tuning::default()
        };
        let cost =
            price(&row(Overlap { gpu: 4, ..Overlap::default() }, 64, 6, &tuning), &demand(), &tuning, 32);
        assert_eq!(cost.decay, 1.0 / (1.0 + 0.5 * 2.0 / 8.0));
        assert_eq!(cost.prefill, 20.0 * (12.0 - 4.0 * cost.decay));
        assert_eq!((cost.decode, cost.requests), (6.0, 6.0));
        assert_eq!(cost.total, cost.prefill + cost.decode + cost.requests);
    }

    #[test]
    fn a_decode_worker_with_prefill_untracked_saves_on_its_blocks() {
        let tuning = Tuning {
            router_track_prefill_tokens: false,
            decode_active_request_weight: 1.0,
            ..Tuning::default()
        };
        let row = row(Overlap { gpu: 4, ..Overlap::default() }, 64, 6, &tuning);
        let decode = Demand { phase: Phase::Decode, ..demand() };
        assert_eq!(price(&row, &decode, &tuning, 0).total, 2.0 + 3.0);
        let deeper = Row { overlap: Overlap { gpu: 8, ..Overlap::default() }, ..row };
        assert_eq!(price(&deeper, &decode, &tuning, 0).total, 3.0, "the credit stops at zero");
        assert_eq!(price(&row, &demand(), &tuning, 0).total, 6.0 + 3.0, "other phases keep the formula");
        let without = Tuning { overlap_score_credit: 0.0, ..tuning };
        assert_eq!(price(&row, &decode, &without, 0).total, 6.0 + 3.0);
    }

    #[test]
    fn settings_beyond_reason_never_make_an_undefined_cost() {
        let tuning = Tuning { prefill_load_scale: f64::INFINITY, ..Tuning::default() };
        let cost =
            price(&row(Overlap { gpu: 8, ..Overlap::default() }, 0, 0, &tuning), &demand(), &tuning, 0);
        assert_eq!(cost.total, f64::INFINITY);
    }
}
