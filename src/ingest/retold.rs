//! Prefixes that an engine tells of once more.
//!
//! A block that an engine holds twice is stored twice and removed twice, so the index counts copies. But a request can have vLLM
//! publish the prefix that it found cached (`kv_cache_report_mode`), for routers that missed it, and such a report looks as
//! a store does. If it counted, there would be one removal too few, and the router would believe in those blocks until the
//! cache is emptied.
//!
//! What tells it apart is where it begins: at the prompt's first block. An engine computes blocks of which it has a copy when a
//! prompt ends with a full block, or when two prompts are computed at a time, and both come after a beginning that it
//! found, so such a store names a parent. Only a prompt of one block is all end; a chain of one block therefore counts.
//!
//! The price: where an engine does compute a whole prefix without looking for it, one removal of two ends the credit of both copies,
//! until the blocks are computed again. To claim too little is the lesser error.

use smallvec::SmallVec;

use crate::{
    event::{Event, Removed, Stored},
    index::{Applied, IndexWriter},
    slot::Slot,
};

/// The chain in an event that may be a report: several blocks from a prompt's first one on.
pub(super) fn may_be(event: &Event) -> Option<&Stored> {
    match event {
        Event::Stored(stored) if stored.parent.is_none() && stored.blocks.len() > 1 => Some(stored),
        _ => None,
    }
}

/// Takes back the copies that a chain just added to blocks that were there, if it did; `applied` says what it did.
pub(super) fn take_back(writer: &mut IndexWriter, slot: Slot, stored: &Stored, applied: Applied) {
    if applied.already + applied.attached == 0 {
        return;
    }
    let tier = stored.tier;
    let names = stored.blocks.iter().map(|block| block.engine);
    let hashes: SmallVec<_> = names.filter(|&name| writer.copies(slot, name, tier) > 1).collect();
    writer.apply(slot, &Event::Removed(Removed { tier, hashes, remaining_copies: None }));
}
