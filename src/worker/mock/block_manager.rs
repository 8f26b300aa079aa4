//! The paged KV cache: which physical block holds what, who uses it, what is reused next.

use std::fmt;

use ahash::AHashMap;
use smallvec::SmallVec;

use super::cache_event::{CacheEvent, StoredRun};
use super::free_queue::FreeQueue;
use super::sequence::Sequence;
use crate::event::EngineHash;

/// A fixed pool of blocks with prefix reuse, as vLLM 0.32 behaves on one GPU with full attention.
///
/// A block is *referenced* by the running sequences that use it, or it waits in the free queue. A full block
/// carries its name until the block is taken for something else, so a free block is still a cached one. What
/// happens to names is told by [`CacheEvent`]s, in order.
///
/// The same name may be on several physical blocks: the last token of a prompt is always computed, so a
/// prompt of exactly N cached blocks computes the last one into a fresh block under the name that the cache
/// has already. Each copy is reported when it comes and when it goes.
#[derive(Debug)]
pub struct BlockManager {
    block_size: usize,
    blocks: Vec<Block>,
    free: FreeQueue,
    /// Every physical copy of a name, oldest first.
    by_name: AHashMap<EngineHash, SmallVec<[u32; 1]>>,
    named: usize,
    events: Vec<CacheEvent>,
}

#[derive(Clone, Copy, Default, Debug)]
struct Block {
    references: u32,
    name: Option<EngineHash>,
}

/// No unreferenced block is left. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheFull;

impl fmt::Display for CacheFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("every cache block is in use: wait for a request to end, or preempt one")
    }
}

impl std::error::Error for CacheFull {}

impl BlockManager {
    /// A cache of `num_gpu_blocks` blocks of `block_size` tokens (at least 1). As in vLLM one of the blocks
    /// is set aside and never holds anything, so [`capacity`](Self::capacity) is one less.
    pub fn new(block_size: usize, num_gpu_blocks: u32) -> Self {
        let capacity = num_gpu_blocks.saturating_sub(1);
        Self {
            block_size: block_size.max(1),
            blocks: vec![Block::default(); capacity as usize],
            free: FreeQueue::full(capacity),
            by_name: AHashMap::new(),
            named: 0,
            events: Vec::new(),
        }
    }

    /// Gives a sequence that holds nothing the blocks of its leading cached prefix and fresh blocks for the
    /// rest of its tokens. Returns how many tokens need no computing: at least one always does, since the
    /// next token comes from computing the last.
    ///
    /// # Errors
    /// When the fresh blocks are not there.
    pub fn admit(&mut self, sequence: &mut Sequence) -> Result<usize, CacheFull> {
        let reusable = sequence.tokens.len().saturating_sub(1) / self.block_size;
        let hits: Vec<u32> = sequence.names[..reusable]
            .iter()
            .map_while(|name| self.by_name.get(name)?.first().copied())
            .collect();
        let fresh = sequence.tokens.len().div_ceil(self.block_size) - hits.len();
        let reclaimed = hits.iter().filter(|&&block| self.blocks[block as usize].references == 0).count();
        if fresh + reclaimed > self.free.len() {
            return Err(CacheFull);
        }
        // Hits are pinned before anything is taken: otherwise a fresh block could be one of them.
        for &block in &hits {
            let state = &mut self.blocks[block as usize];
            if state.references == 0 {
                self.free.remove(block);
            }
            state.references += 1;
        }
        sequence.computed = hits.len() * self.block_size;
        sequence.published = hits.len();
        sequence.blocks = hits;
        self.grow(sequence, fresh);
        Ok(sequence.computed)
    }

    /// Gives a sequence that holds nothing fresh blocks for all of its tokens, whose keys and values come from
    /// another engine: all but the last token need no computing, which is the number returned. Its full blocks
    /// carry no name here: nobody else may reuse them, and nothing is said of them.
    ///
    /// # Errors
    /// When the fresh blocks are not there.
    pub fn admit_transferred(&mut self, sequence: &mut Sequence) -> Result<usize, CacheFull> {
        let fresh = sequence.tokens.len().div_ceil(self.block_size);
        if fresh > self.free.len() {
            return Err(CacheFull);
        }
        sequence.computed = sequence.tokens.len().saturating_sub(1);
        sequence.published = sequence.tokens.len() / self.block_size;
        self.grow(sequence, fresh);
        Ok(sequence.computed)
    }

    /// Computes the next `count` tokens of an admitted sequence: grows it by the blocks that these need, then
    /// names and reports the blocks that become full. `count` is at most [`Sequence::uncomputed`].
    ///
    /// # Errors
    /// When a block is needed and none is left.
    pub fn compute(&mut self, sequence: &mut Sequence, count: usize) -> Result<(), CacheFull> {
        let computed = sequence.computed + count.min(sequence.uncomputed());
        let missing = computed.div_ceil(self.block_size).saturating_sub(sequence.blocks.len());
        if missing > self.free.len() {
            return Err(CacheFull);
        }
        self.grow(sequence, missing);
        sequence.computed = computed;
        self.publish(sequence, computed / self.block_size);
        Ok(())
    }

    /// Takes all blocks back from a sequence, which may be admitted again. Named blocks queue up for reuse
    /// with the end of the sequence first, so that prefixes outlive tails; blocks without a name are of no
    /// use to anyone and are taken before all others.
    pub fn release(&mut self, sequence: &mut Sequence) {
        for block in std::mem::take(&mut sequence.blocks).into_iter().rev() {
            let state = &mut self.blocks[block as usize];
            state.references -= 1;
            match (state.references, state.name) {
                (0, Some(_)) => self.free.push_back(block),
                (0, None) => self.free.push_front(block),
                _ => {}
            }
        }
        sequence.computed = 0;
        sequence.published = 0;
    }

    /// Forgets every name. Returns `false`, and does nothing, while a sequence holds blocks.
    pub fn reset(&mut self) -> bool {
        if self.used() > 0 {
            return false;
        }
        self.blocks.iter_mut().for_each(|block| block.name = None);
        self.by_name.clear();
        self.named = 0;
        self.events.push(CacheEvent::Cleared);
        true
    }

    /// Reports the cached prefix that an admitted sequence reuses as if it had just been stored.
    pub fn report_reused(&mut self, sequence: &Sequence) {
        if sequence.published > 0 {
            self.report(sequence, 0..sequence.published);
        }
    }

    /// What happened since the last call, in order.
    pub fn take_events(&mut self) -> Vec<CacheEvent> {
        std::mem::take(&mut self.events)
    }

    /// Blocks that sequences can use.
    pub fn capacity(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks that running sequences hold.
    pub fn used(&self) -> usize {
        self.blocks.len() - self.free.len()
    }

    /// Blocks that can be taken; they may carry names.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Physical blocks that carry a name, copies included.
    pub fn cached(&self) -> usize {
        self.named
    }

    /// Every name and the number of physical blocks that carry it, in no order.
    pub fn held(&self) -> impl Iterator<Item = (EngineHash, usize)> {
        self.by_name.iter().map(|(&name, copies)| (name, copies.len()))
    }

    /// The caller has checked that `count` blocks are free.
    fn grow(&mut self, sequence: &mut Sequence, count: usize) {
        for _ in 0..count {
            let Some(block) = self.free.pop_front() else { return };
            if let Some(name) = self.blocks[block as usize].name.take() {
                self.forget(name, block);
            }
            self.blocks[block as usize].references = 1;
            sequence.blocks.push(block);
        }
    }

    fn forget(&mut self, name: EngineHash, block: u32) {
        if let Some(copies) = self.by_name.get_mut(&name) {
            copies.retain(|copy| *copy != block);
            if copies.is_empty() {
                self.by_name.remove(&name);
            }
        }
        self.named -= 1;
        self.events.push(CacheEvent::Removed(name));
    }

    fn publish(&mut self, sequence: &mut Sequence, full: usize) {
        if full <= sequence.published {
            return;
        }
        for index in sequence.published..full {
            let (block, name) = (sequence.blocks[index], sequence.names[index]);
            self.blocks[block as usize].name = Some(name);
            self.by_name.entry(name).or_default().push(block);
        }
        self.named += full - sequence.published;
        self.report(sequence, sequence.published..full);
        sequence.published = full;
    }

    fn report(&mut self, sequence: &Sequence, range: std::ops::Range<usize>) {
        let size = self.block_size;
        self.events.push(CacheEvent::Stored(StoredRun {
            parent: range.start.checked_sub(1).map(|parent| sequence.names[parent]),
            names: sequence.names[range.clone()].to_vec(),
            tokens: sequence.tokens[range.start * size..range.end * size].to_vec(),
            block_size: u32::try_from(size).unwrap_or(u32::MAX),
            namespace: sequence.namespace.clone(),
        }));
    }
}
