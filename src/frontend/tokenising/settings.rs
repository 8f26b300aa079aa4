//! What tokenising may use.

use std::{num::NonZeroUsize, thread};

/// Settings of tokenising here, for all models together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TokenizerSettings {
    /// Bytes for tokens of segments that were seen before; 0 keeps none. Default 64 MiB.
    pub cache_bytes: u64,
    /// Threads that tokenise long prompts. Default: one fewer than there are cores, and at least one.
    pub threads: NonZeroUsize,
    /// How many prompts may wait for such a thread; one beyond is refused. Default 256.
    pub queue_limit: usize,
}

impl Default for TokenizerSettings {
    fn default() -> Self {
        let spare = thread::available_parallelism().map_or(1, |cores| cores.get() - 1);
        Self {
            cache_bytes: 64 << 20,
            threads: NonZeroUsize::new(spare).unwrap_or(NonZeroUsize::MIN),
            queue_limit: 256,
        }
    }
}
