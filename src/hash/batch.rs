//! Many prompts in one call: the interface that a device can implement.

use super::{BlockHash, BlockHasher, BlockSize, Identity, Prompt};

/// One prompt of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct BatchPrompt<'a> {
    /// Whose cache it may share.
    pub identity: Identity,
    /// Its tokens and objects.
    pub prompt: Prompt<'a>,
}

/// Hashes many prompts at once.
///
/// A single prompt is best hashed by [`BlockHasher`], in the caller's thread. A batch is for work that comes
/// in bulk (a replay of events, a trace) and that a device may do faster, copies included. Every
/// implementation yields the same hashes, so a caller whose device fails hashes the same batch again with
/// [`CpuBatchHasher`].
pub trait BatchHasher: Send {
    /// What hashes, for logs and metrics: `cpu` or the name of a device backend.
    fn backend(&self) -> &'static str;

    /// The block size of every prompt.
    fn block_size(&self) -> BlockSize;

    /// Replaces the content of `out` by one entry for each of `prompts`, in their order.
    ///
    /// # Errors
    /// When the backend cannot do the work now. `out` is then unspecified, but safe to use again.
    fn hash(&mut self, prompts: &[BatchPrompt<'_>], out: &mut HashedBatch) -> Result<(), BatchError>;
}

/// Why a backend did not hash a batch.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("batch hashing on {backend} failed: {reason}; hash the batch on the CPU instead")]
pub struct BatchError {
    /// The backend's name.
    pub backend: &'static str,
    /// What went wrong, in the backend's words.
    pub reason: String,
}

/// The hashes of a batch: one flat list, cut at the ends of the prompts.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct HashedBatch {
    hashes: Vec<BlockHash>,
    /// For each prompt the end of its hashes in `hashes`; ascending.
    ends: Vec<usize>,
}

impl HashedBatch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets all prompts and keeps the memory.
    pub fn clear(&mut self) {
        self.hashes.clear();
        self.ends.clear();
    }

    /// Adds a prompt, whose hashes are what `fill` appends to the flat list. For implementations of
    /// [`BatchHasher`]; `fill` must leave what is there alone.
    pub fn push(&mut self, fill: impl FnOnce(&mut Vec<BlockHash>)) {
        fill(&mut self.hashes);
        self.ends.push(self.hashes.len());
    }

    /// How many prompts there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no prompt.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The hashes of the prompt at `index`.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&[BlockHash]> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.hashes.get(start..end)
    }

    /// The hashes of each prompt, in order.
    pub fn iter(&self) -> impl Iterator<Item = &[BlockHash]> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// The hashes of all prompts in one list.
    #[must_use]
    pub fn all(&self) -> &[BlockHash] {
        &self.hashes
    }
}

/// Hashes batches in the calling thread.
///
/// ```
/// use kvroute::hash::{BatchHasher, BatchPrompt, BlockSize, CpuBatchHasher, HashedBatch, Identity, Prompt};
///
/// let mut hasher = CpuBatchHasher::new(BlockSize::new(4)?);
/// let (long, short): (Vec<u32>, Vec<u32>) = ((0..9).collect(), (0..4).collect());
/// let batch = [&long, &short]
///     .map(|tokens| BatchPrompt { identity: Identity::plain(), prompt: Prompt::text(tokens) });
/// let mut hashed = HashedBatch::new();
/// hasher.hash(&batch, &mut hashed)?;
/// assert_eq!(hashed.get(0).map(<[_]>::len), Some(2));
/// assert_eq!(hashed.get(1), hashed.get(0).map(|hashes| &hashes[..1])); // they share a block
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct CpuBatchHasher {
    /// For the identity of the prompt before: neighbours in a batch mostly share it.
    hasher: BlockHasher,
}

impl CpuBatchHasher {
    /// A hasher for prompts in blocks of `block_size` tokens.
    #[must_use]
    pub fn new(block_size: BlockSize) -> Self {
        Self { hasher: BlockHasher::new(block_size, Identity::plain()) }
    }
}

impl BatchHasher for CpuBatchHasher {
    fn backend(&self) -> &'static str {
        "cpu"
    }

    fn block_size(&self) -> BlockSize {
        self.hasher.block_size()
    }

    fn hash(&mut self, prompts: &[BatchPrompt<'_>], out: &mut HashedBatch) -> Result<(), BatchError> {
        out.clear();
        for BatchPrompt { identity, prompt } in prompts {
            if *identity != self.hasher.identity() {
                self.hasher = BlockHasher::new(self.hasher.block_size(), *identity);
            }
            out.push(|hashes| self.hasher.append(prompt, hashes));
        }
        Ok(())
    }
}
