//! Puts a workload together.

use kvroute::hash::{BlockHash, BlockSize, BlockSizeError};

use super::{Block, Checkpoint, Op, PromptAt, PromptId, Segment, Text, Workload};

pub(super) struct Builder {
    workload: Workload,
    text: Text,
}

impl Builder {
    /// An empty workload.
    ///
    /// # Panics
    /// If `block_size` is 0: it is a constant of a workload.
    pub(super) fn new(letter: char, title: &str, workers: u32, block_size: u32) -> Self {
        let block_size = BlockSize::new(block_size)
            .unwrap_or_else(|error: BlockSizeError| panic!("workload {letter}: {error}"));
        let workload = Workload {
            letter,
            title: format!("{title}, {workers} workers, blocks of {block_size}"),
            workers,
            block_size,
            ops: Vec::new(),
            blocks: Vec::new(),
            removed: Vec::new(),
            prompts: Vec::new(),
            hashes: Vec::new(),
            segments: Vec::new(),
            checkpoints: Vec::new(),
            late: Vec::new(),
            resident: 0,
            room: 0,
        };
        Self { workload, text: Text::new(block_size) }
    }

    /// The block hashes of tokens that belong to no prompt yet.
    pub(super) fn hashes(&mut self, segments: &[Segment]) -> Vec<BlockHash> {
        self.text.hashes(segments)
    }

    /// Adds a prompt that can be looked up.
    pub(super) fn prompt(&mut self, segments: &[Segment]) -> PromptId {
        let hashes = self.text.hashes(segments);
        let workload = &mut self.workload;
        let id = PromptId(workload.prompts.len() as u32);
        let starts = (workload.hashes.len(), workload.segments.len());
        workload.hashes.extend(hashes);
        workload.segments.extend(segments);
        workload.prompts.push(PromptAt {
            hashes: starts.0..workload.hashes.len(),
            segments: starts.1..workload.segments.len(),
        });
        id
    }

    /// A chain of blocks becomes resident on a worker.
    pub(super) fn stored(
        &mut self,
        worker: u32,
        parent: Option<u64>,
        blocks: impl IntoIterator<Item = Block>,
    ) {
        let start = self.workload.blocks.len() as u32;
        self.workload.blocks.extend(blocks);
        let end = self.workload.blocks.len() as u32;
        if end > start {
            self.workload.ops.push(Op::Stored { worker, parent, blocks: start..end });
        }
    }

    /// Blocks leave a worker.
    pub(super) fn removed(&mut self, worker: u32, names: &[u64]) {
        let start = self.workload.removed.len() as u32;
        self.workload.removed.extend(names);
        let end = self.workload.removed.len() as u32;
        if end > start {
            self.workload.ops.push(Op::Removed { worker, names: start..end });
        }
    }

    /// Operations so far.
    pub(super) fn len(&self) -> usize {
        self.workload.ops.len()
    }

    /// What was built so far.
    pub(super) fn workload(&self) -> &Workload {
        &self.workload
    }

    /// What the engines' caches have room for, all together.
    pub(super) fn set_room(&mut self, blocks: usize) {
        self.workload.room = blocks;
    }

    /// The workload, with prompts for a reader beside the writer.
    pub(super) fn finish(
        mut self,
        checkpoints: Vec<Checkpoint>,
        late: Vec<PromptId>,
        resident: usize,
    ) -> Workload {
        self.workload.checkpoints = checkpoints;
        self.workload.late = late;
        self.workload.resident = resident;
        self.workload
    }

    /// The workload, with `picks` lookups of random ones of its prompts at the end, and nothing beside the writer.
    pub(super) fn finish_with_picks(
        self,
        picks: usize,
        rng: &mut fastrand::Rng,
        resident: usize,
    ) -> Workload {
        let known = self.workload.prompts.len() as u32;
        let prompts = (0..picks).map(|_| PromptId(rng.u32(..known))).collect();
        let after = self.len();
        self.finish(vec![Checkpoint { after, prompts }], Vec::new(), resident)
    }
}
