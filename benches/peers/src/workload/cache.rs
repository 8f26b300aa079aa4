//! The block manager of one engine.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

/// Blocks by name. Those of running requests are pinned; the others are kept until their room is needed, the one that
/// was used longest ago going first.
pub(super) struct Cache {
    room: usize,
    blocks: FxHashMap<u64, Resident>,
    /// Blocks in the order in which they were let go. An entry counts only while its block is not pinned and has not
    /// been let go again since.
    idle: VecDeque<(u64, u64)>,
    now: u64,
}

struct Resident {
    pins: u32,
    idle_since: u64,
}

impl Cache {
    pub(super) fn new(room: usize) -> Self {
        Self { room, blocks: FxHashMap::default(), idle: VecDeque::new(), now: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.blocks.len() >= self.room
    }

    /// Pins a block that is here; false if it is not.
    pub(super) fn pin(&mut self, name: u64) -> bool {
        let block = self.blocks.get_mut(&name);
        block.map(|block| block.pins += 1).is_some()
    }

    /// Takes a block in, pinned.
    pub(super) fn insert(&mut self, name: u64) {
        self.blocks.insert(name, Resident { pins: 1, idle_since: 0 });
    }

    /// Lets go of the blocks of a request, the last one first, so that tails are evicted before what they hang from.
    pub(super) fn release(&mut self, path: &[u64]) {
        for &name in path.iter().rev() {
            self.now += 1;
            let Some(block) = self.blocks.get_mut(&name) else { continue };
            block.pins = block.pins.saturating_sub(1);
            block.idle_since = self.now;
            self.idle.push_back((name, self.now));
        }
    }

    /// Evicts the block that has been idle longest; `None` if all are pinned.
    pub(super) fn evict(&mut self) -> Option<u64> {
        while let Some(entry) = self.idle.pop_front() {
            if self.drop_if_idle(entry) {
                return Some(entry.0);
            }
        }
        None
    }

    /// Evicts the block at position `pick` of the idle ones, wherever it lies in its chain, if there is one.
    pub(super) fn evict_any(&mut self, pick: usize) -> Option<u64> {
        let entry = *self.idle.get(pick % self.idle.len().max(1))?;
        self.drop_if_idle(entry).then_some(entry.0)
    }

    fn drop_if_idle(&mut self, (name, since): (u64, u64)) -> bool {
        let idle = self.blocks.get(&name).is_some_and(|block| block.pins == 0 && block.idle_since == since);
        if idle {
            self.blocks.remove(&name);
        }
        idle
    }
}
