//! Many prompts in one call: the interface that a device can implement.

use std::{num::NonZeroUsize, ops::Range, thread};

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

    /// Makes room for prompts of so many hashes each, and hands it out to be filled, in one list. For implementations
    /// of [`BatchHasher`] that do not go from prompt to prompt.
    pub fn lay_out(&mut self, counts: impl IntoIterator<Item = usize>) -> &mut [BlockHash] {
        self.clear();
        let mut end = 0;
        self.ends.extend(counts.into_iter().map(|count| {
            end += count;
            end
        }));
        self.hashes.resize(end, BlockHash(0));
        &mut self.hashes
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

/// Hashes batches on the CPU: in the calling thread, or in several where there is enough to do.
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
    threads: NonZeroUsize,
}

/// What a thread has to have to do, in tokens, to be worth starting: some ten times what starting it takes.
const TOKENS_FOR_A_THREAD: usize = 1 << 17;

impl CpuBatchHasher {
    /// A hasher for prompts in blocks of `block_size` tokens, which stays in the calling thread.
    #[must_use]
    pub fn new(block_size: BlockSize) -> Self {
        Self::with_threads(block_size, NonZeroUsize::MIN)
    }

    /// A hasher that hashes in up to `threads` threads, the calling one among them. The others are started for a batch of at
    /// least 131072 tokens for each, and end with it. Blocks are shared out evenly, however long the prompts are.
    #[must_use]
    pub fn with_threads(block_size: BlockSize, threads: NonZeroUsize) -> Self {
        Self { hasher: BlockHasher::new(block_size, Identity::plain()), threads }
    }

    /// How many blocks the prompts have together.
    pub(crate) fn count(&self, prompts: &[BatchPrompt<'_>]) -> usize {
        prompts.iter().map(|of| self.hasher.count(&of.prompt)).sum()
    }

    /// Hashes prompts into `out`, which has a place for each of their blocks, in the calling thread.
    #[cfg(feature = "cuda")]
    pub(crate) fn fill(&mut self, prompts: &[BatchPrompt<'_>], out: &mut [BlockHash]) {
        fill_range(&mut self.hasher, prompts, 0..out.len(), out);
    }

    /// How many threads are worth it for `blocks` blocks.
    fn threads_for(&self, blocks: usize) -> usize {
        let tokens = blocks.saturating_mul(self.block_size().tokens());
        (tokens / TOKENS_FOR_A_THREAD).clamp(1, self.threads.get())
    }

    fn in_one_thread(&mut self, prompts: &[BatchPrompt<'_>], out: &mut HashedBatch) {
        out.clear();
        for BatchPrompt { identity, prompt } in prompts {
            switch(&mut self.hasher, *identity);
            out.push(|hashes| self.hasher.append(prompt, hashes));
        }
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
        let blocks = self.count(prompts);
        let threads = self.threads_for(blocks);
        if threads == 1 {
            self.in_one_thread(prompts, out);
            return Ok(());
        }
        let mut rest = out.lay_out(prompts.iter().map(|of| self.hasher.count(&of.prompt)));
        thread::scope(|scope| {
            let mut first = 0;
            for thread in 1..=threads {
                let end = blocks * thread / threads;
                let part;
                (part, rest) = std::mem::take(&mut rest).split_at_mut(end - first);
                let mut hasher = self.hasher.clone();
                let mut work = move || fill_range(&mut hasher, prompts, first..end, part);
                first = end;
                if thread == threads {
                    work();
                } else {
                    scope.spawn(work);
                }
            }
        });
        Ok(())
    }
}

/// Hashes the blocks of `range`, counted over all prompts, into `out`.
fn fill_range(
    hasher: &mut BlockHasher,
    prompts: &[BatchPrompt<'_>],
    range: Range<usize>,
    mut out: &mut [BlockHash],
) {
    let mut start = 0;
    for BatchPrompt { identity, prompt } in prompts {
        let end = start + hasher.count(prompt);
        let (from, to) = (range.start.max(start), range.end.min(end));
        if from < to {
            switch(hasher, *identity);
            let part;
            (part, out) = out.split_at_mut(to - from);
            hasher.fill(prompt, from - start, part);
        } else if start >= range.end {
            return;
        }
        start = end;
    }
}

fn switch(hasher: &mut BlockHasher, identity: Identity) {
    if identity != hasher.identity() {
        *hasher = BlockHasher::new(hasher.block_size(), identity);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hash::BlockObjects;

    /// Prompts of any lengths, some with objects, some with EAGLE, under two identities.
    fn check(size: u32, lengths: &[(usize, bool, bool)], threads: usize, cuts: usize) {
        let block_size = BlockSize::new(size).unwrap();
        let mut rng = fastrand::Rng::with_seed(lengths.len() as u64);
        let tokens: Vec<Vec<u32>> =
            lengths.iter().map(|(length, ..)| (0..*length).map(|_| rng.u32(..)).collect()).collect();
        let objects: Vec<_> =
            (0..8).map(|block| BlockObjects { block: 3 * block, objects: &[7, 5] }).collect();
        let prompts: Vec<_> = lengths
            .iter()
            .zip(&tokens)
            .map(|(&(_, special, eagle), tokens)| BatchPrompt {
                identity: Identity::new(special.then_some("adapter"), None),
                prompt: Prompt { tokens, multimodal: if special { &objects } else { &[] }, eagle },
            })
            .collect();
        let (mut one, mut several) = (HashedBatch::new(), HashedBatch::new());
        CpuBatchHasher::new(block_size).hash(&prompts, &mut one).unwrap();
        let mut hasher = BlockHasher::new(block_size, Identity::plain());
        // In as many pieces as there might be threads, some of them empty.
        let out = several.lay_out(prompts.iter().map(|of| hasher.count(&of.prompt)));
        let all = out.len();
        for cut in 0..cuts {
            let range = all * cut / cuts..all * (cut + 1) / cuts;
            fill_range(&mut hasher, &prompts, range.clone(), &mut out[range]);
        }
        assert_eq!(several, one);
        let threads = NonZeroUsize::new(threads).unwrap();
        CpuBatchHasher::with_threads(block_size, threads).hash(&prompts, &mut several).unwrap();
        assert_eq!(several, one);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn pieces_make_the_whole(
            size in prop_oneof![Just(16_u32), Just(1), Just(64), 2_u32..140],
            lengths in prop::collection::vec((0_usize..900, any::<bool>(), any::<bool>()), 0..12),
            cuts in 1_usize..40,
        ) {
            check(size, &lengths, 3, cuts);
        }
    }

    #[test]
    fn threads_share_one_long_prompt() {
        check(16, &[(5, false, false), (900_000, true, false), (40, false, true), (0, false, false)], 4, 7);
    }
}
