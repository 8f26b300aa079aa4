//! The caller's memory for scores: one number a worker.

/// Blocks that each worker holds. Whoever fills it clears it first, inside the timed call: a stale score would route a
/// request to a worker that holds nothing.
pub(super) struct Dense {
    blocks: Box<[u32]>,
}

impl Dense {
    pub(super) fn new(workers: u32) -> Self {
        Self { blocks: vec![0; workers as usize].into() }
    }

    #[inline(always)]
    pub(super) fn clear(&mut self) {
        self.blocks.fill(0);
    }

    /// A worker that there is not is left out: no index names one, and a branch to a panic costs more than one to nothing.
    #[inline(always)]
    pub(super) fn set(&mut self, worker: u32, blocks: u32) {
        if let Some(place) = self.blocks.get_mut(worker as usize) {
            *place = blocks;
        }
    }

    /// All of it, for an index that clears and fills it itself.
    #[inline(always)]
    pub(super) fn blocks_mut(&mut self) -> &mut [u32] {
        &mut self.blocks
    }

    pub(super) fn scores(&self) -> Vec<(u32, u32)> {
        (0..).zip(self.blocks.iter().copied()).filter(|&(_, blocks)| blocks > 0).collect()
    }
}
