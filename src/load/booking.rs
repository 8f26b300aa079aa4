//! One request's share of a slot's load.

use super::{
    backlog::Ticket,
    loads::{Ledger, Loads},
    slot_load::SlotLoad,
};
use crate::{
    hash::{BlockSize, ChainEnd, SequenceHash},
    slot::Slot,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// What a request takes from the slot that serves it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Claim<'a> {
    /// Prompt tokens that must be prefilled: those that are not cached.
    pub prefill_tokens: u64,
    /// What that is for the engine, in tokens of work: besides those tokens, what each request costs whatever its length.
    /// 0 if there is nothing to prefill.
    pub prefill_work: u64,
    /// Whether somebody will say when the first token comes. If not, the prefill counts as done once its time is over.
    pub first_token_seen: bool,
    /// The prompt's blocks, which count once with those of other requests of the slot.
    pub sequence: &'a [SequenceHash],
    /// Whether those are followed and are no load: that they are on their way is known, and nobody counts them.
    pub sequence_uncounted: bool,
    /// Blocks that count for this request alone.
    pub private_blocks: u64,
    /// How output adds blocks; `None` when it does not.
    pub output: Option<OutputGrowth>,
}

impl Claim<'_> {
    /// Blocks that the claim adds where none of them is in use.
    pub(super) const fn blocks(&self) -> u64 {
        let shared = if self.sequence_uncounted { 0 } else { self.sequence.len() as u64 };
        self.private_blocks.saturating_add(shared)
    }
}

/// From how many tokens of output a request needs another block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutputGrowth {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Blocks of the prompt that the claim counts already.
    pub prompt_blocks: u64,
    /// Tokens a block.
    pub block_size: BlockSize,
}

impl OutputGrowth {
    /// Blocks beyond the prompt's own after `output` tokens: the ceiling of all tokens over the block
    /// size, less the blocks counted.
    fn blocks(self, output: u64) -> u64 {
        if output == 0 {
            return 0;
        }
        let tokens = self.prompt_tokens.saturating_add(output);
        tokens.div_ceil(u64::from(self.block_size.get())).saturating_sub(self.prompt_blocks)
    }
}

/// The token of an admitted request. Dropping it returns everything that it took, once, whatever
/// happened to the request; after the slot's generation was forgotten there is nothing to return.
///
/// The methods for progress take `&self`, so that whoever watches the response can share the booking with
/// whoever ends it.
#[derive(Debug)]
pub struct Booking {
    loads: Arc<Loads>,
    slot: Slot,
    /// Prefill tokens still booked. Whoever swaps them out gives them back, so they go once.
    prefill_tokens: AtomicU64,
    /// Whether the prefill goes on. Whoever swaps it out takes the prefill out of the slot's queue.
    prefilling: AtomicBool,
    /// The prefill's work, and its place in the slot's queue, if there is any.
    prefill_work: u64,
    first_token_seen: bool,
    ticket: Option<Ticket>,
    /// Blocks that count for this request alone, output included.
    private_blocks: AtomicU64,
    /// Tokens of output so far.
    output: AtomicU64,
    growth: Option<OutputGrowth>,
    /// Blocks of the claim's sequence, where its chain ends among the slot's active blocks, and whether they are no load.
    shared_blocks: u64,
    chain_end: Option<ChainEnd>,
    uncounted: bool,
}

impl Booking {
    /// Where the request is booked.
    #[must_use]
    pub const fn slot(&self) -> Slot {
        self.slot
    }

    /// The first token came at `now`: the prompt is prefilled, and its tokens no longer wait. How long that took says how
    /// fast the slot is. Calls after the first, of this or of [`Booking::prefill_done`], change nothing.
    pub fn first_token(&self, now: Duration) {
        self.end_prefill(|ledger, ticket| ledger.first_token(self.slot, ticket, now));
    }

    /// As [`Booking::first_token`], some time after it: the prompt is prefilled, and nothing is learned.
    pub fn prefill_done(&self) {
        self.end_prefill(|ledger, ticket| ledger.leave(self.slot, ticket));
    }

    fn end_prefill(&self, leave: impl FnOnce(&mut Ledger, Ticket)) {
        // Relaxed: the swap alone decides which call returns the prefill; the ledger orders the counters.
        if !self.prefilling.swap(false, Relaxed) {
            return;
        }
        let tokens = self.prefill_tokens.swap(0, Relaxed);
        let mut ledger = self.loads.ledger();
        ledger.sub(self.slot, SlotLoad { prefill_tokens: tokens, ..SlotLoad::default() });
        if let Some(ticket) = self.ticket {
            leave(&mut ledger, ticket);
        }
        drop(ledger);
        self.loads.relieved();
    }

    /// The engine produced `tokens` more tokens. Adds the blocks that they fill, if output is tracked.
    pub fn output(&self, tokens: u64) {
        let Some(growth) = self.growth else { return };
        // Relaxed: each call owns the range of tokens that its addition covers, so that the blocks of all
        // calls add up whatever their order; the ledger orders the counters.
        // No response is longer than u32 can count; the cap keeps nonsense from wrapping the sum.
        let tokens = tokens.min(u64::from(u32::MAX));
        let before = self.output.fetch_add(tokens, Relaxed);
        let blocks = growth.blocks(before.saturating_add(tokens)).saturating_sub(growth.blocks(before));
        if blocks > 0 {
            self.private_blocks.fetch_add(blocks, Relaxed);
            self.loads.ledger().add(self.slot, SlotLoad { decode_blocks: blocks, ..SlotLoad::default() });
        }
    }

    /// Moves the request to `slot` at `now`, for a retry elsewhere, with what it still holds.
    ///
    /// Prefill tokens move as they were booked, whatever `slot` has cached. If the old slot was forgotten,
    /// the names of the prompt's blocks went with it, and they count for this request alone. Where the
    /// demand is still at hand, admitting it again and dropping this booking is more exact.
    pub fn rebind(&mut self, slot: Slot, now: Duration) {
        let chain = self.chain_end.map(|end| self.loads.active(self.uncounted).chain(self.slot, end));
        self.return_everything();
        let sequence = match chain {
            Some(Some(chain)) => chain,
            Some(None) if !self.uncounted => {
                let blocks = self.private_blocks.get_mut();
                *blocks = blocks.saturating_add(self.shared_blocks);
                Vec::new()
            }
            _ => Vec::new(),
        };
        self.slot = slot;
        self.shared_blocks = sequence.len() as u64;
        let counted = if self.uncounted { 0 } else { self.shared_blocks };
        let blocks = self.private_blocks.get_mut().saturating_add(counted);
        let load =
            SlotLoad { requests: 1, prefill_tokens: *self.prefill_tokens.get_mut(), decode_blocks: blocks };
        let mut ledger = self.loads.ledger();
        ledger.add(slot, load);
        if *self.prefilling.get_mut() {
            self.ticket = ledger.enter(slot, self.prefill_work, now, self.first_token_seen);
        }
        drop(ledger);
        self.enter(&sequence, blocks);
    }

    /// Takes `claim`'s share under the admission mutex, so that the next decision sees it. The blocks
    /// enter as `new_blocks`, the number expected when the decision was prepared;
    /// [`Booking::settle`] must follow, once the mutex is free.
    pub(crate) fn open(
        loads: &Arc<Loads>,
        ledger: &mut Ledger,
        slot: Slot,
        claim: &Claim<'_>,
        new_blocks: u64,
        now: Duration,
    ) -> Self {
        let load = SlotLoad { requests: 1, prefill_tokens: claim.prefill_tokens, decode_blocks: new_blocks };
        ledger.add(slot, load);
        let ticket = ledger.enter(slot, claim.prefill_work, now, claim.first_token_seen);
        Self {
            loads: Arc::clone(loads),
            slot,
            prefill_tokens: AtomicU64::new(claim.prefill_tokens),
            prefilling: AtomicBool::new(ticket.is_some() || claim.prefill_tokens > 0),
            prefill_work: claim.prefill_work,
            first_token_seen: claim.first_token_seen,
            ticket,
            private_blocks: AtomicU64::new(claim.private_blocks),
            output: AtomicU64::new(0),
            growth: claim.output,
            shared_blocks: claim.sequence.len() as u64,
            chain_end: None,
            uncounted: claim.sequence_uncounted,
        }
    }

    /// Enters the blocks of `sequence` among those active on the slot and corrects the ledger by what
    /// `expected` missed.
    ///
    /// What may be stale in between: requests that start or end on the slot after the overlap with its
    /// active blocks was read, and before this, change which blocks are new. Until this correction
    /// the slot's decode blocks are off by at most the blocks shared with those requests. A block is
    /// taken off the ledger only by the last request that leaves it, and the request that put it on
    /// the ledger corrected before it could leave, so no subtraction ever meets a missing addition.
    pub(crate) fn settle(mut self, sequence: &[SequenceHash], expected: u64) -> Self {
        self.enter(sequence, expected);
        self
    }

    fn enter(&mut self, sequence: &[SequenceHash], expected: u64) {
        let entered = self.loads.active(self.uncounted).enter(self.slot, sequence);
        self.chain_end = entered.end;
        let added = if self.uncounted { 0 } else { entered.added };
        let actual = self.private_blocks.get_mut().saturating_add(added);
        if actual > expected {
            let missing = SlotLoad { decode_blocks: actual - expected, ..SlotLoad::default() };
            self.loads.ledger().add(self.slot, missing);
        } else if actual < expected {
            let surplus = SlotLoad { decode_blocks: expected - actual, ..SlotLoad::default() };
            self.loads.ledger().sub(self.slot, surplus);
        }
    }

    fn return_everything(&mut self) {
        let released =
            self.chain_end.take().map_or(0, |end| self.loads.active(self.uncounted).leave(self.slot, end));
        let released = if self.uncounted { 0 } else { released };
        let load = SlotLoad {
            requests: 1,
            prefill_tokens: *self.prefill_tokens.get_mut(),
            decode_blocks: self.private_blocks.get_mut().saturating_add(released),
        };
        let mut ledger = self.loads.ledger();
        ledger.sub(self.slot, load);
        if let Some(ticket) = self.ticket.take().filter(|_| *self.prefilling.get_mut()) {
            ledger.leave(self.slot, ticket);
        }
        drop(ledger);
        self.loads.relieved();
    }
}

impl Drop for Booking {
    fn drop(&mut self) {
        self.return_everything();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settling_corrects_what_was_expected() {
        let slot = Slot { index: 0, generation: 0 };
        let sequence = [1, 2, 3].map(SequenceHash);
        let claim = Claim { sequence: &sequence, private_blocks: 1, ..Claim::default() };
        for expected in [0, 4, 9] {
            let loads = Loads::new();
            let booking = Booking::open(&loads, &mut loads.ledger(), slot, &claim, expected, Duration::ZERO);
            assert_eq!(loads.get(slot).decode_blocks, expected, "what the next decision sees");
            let booking = booking.settle(claim.sequence, expected);
            assert_eq!(loads.get(slot).decode_blocks, 4);
            drop(booking);
            assert_eq!(loads.get(slot), SlotLoad::default());
        }
    }
}
