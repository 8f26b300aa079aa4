//! The batch interface of `hash`, served by whatever is fastest.

use std::sync::Arc;

use super::{Accelerator, Where};
use crate::hash::{BatchError, BatchHasher, BatchPrompt, BlockSize, CpuBatchHasher, HashedBatch};

/// Hashes batches for whoever asked [`Accelerator::hasher`]. It never fails: what a device does not do the CPU does.
#[derive(Debug)]
pub struct AcceleratedHasher {
    accelerator: Arc<Accelerator>,
    cpu: CpuBatchHasher,
    last: Where,
}

impl AcceleratedHasher {
    pub(super) fn new(accelerator: Arc<Accelerator>, block_size: BlockSize) -> Self {
        let cpu = CpuBatchHasher::with_threads(block_size, accelerator.settings.threads);
        Self { accelerator, cpu, last: Where::NoDevice }
    }
}

impl BatchHasher for AcceleratedHasher {
    /// Where the last batch was hashed: `gpu` or `cpu`.
    fn backend(&self) -> &'static str {
        if self.last == Where::Gpu { "gpu" } else { "cpu" }
    }

    fn block_size(&self) -> BlockSize {
        self.cpu.block_size()
    }

    fn hash(&mut self, prompts: &[BatchPrompt<'_>], out: &mut HashedBatch) -> Result<(), BatchError> {
        let blocks = self.cpu.count(prompts);
        self.last = self.accelerator.try_device(&mut self.cpu, prompts, blocks, out);
        if self.last != Where::Gpu {
            self.cpu.hash(prompts, out)?;
        }
        self.accelerator.status.count(self.last, blocks);
        Ok(())
    }
}
