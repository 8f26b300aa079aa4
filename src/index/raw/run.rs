//! Runs: stretches of consecutive blocks of one chain.

use std::{
    ptr::{self, NonNull},
    sync::atomic::Ordering::{Acquire, Relaxed, Release},
};

use super::{
    arena::CHUNK,
    sync::{AtomicPtr, AtomicU64, Zeroes, fence, free, zeroed},
};

/// Blocks that one run can hold; a longer chain goes on in a child. Offsets fit in 15 bits.
pub(in crate::index) const MAX_RUN: u32 = if cfg!(loom) { CHUNK - 8 } else { CHUNK - 64 };
/// No seat holds the whole run: four times [`NO_SEAT`](super::NO_SEAT).
pub(in crate::index) const NO_SEATS: u64 = u64::MAX;

/// What readers see of a run: one cache line. All zeroes is a run that was never used.
#[repr(C, align(64))]
pub(in crate::index) struct Run {
    /// Odd while the writer changes the run. Never goes back, not even when the run is used again for another
    /// chain, so a reader that saw an earlier owner always finds out.
    version: AtomicU64,
    /// Index of the first block's words << 32 | blocks. One word, so that a reader's pair always lies inside
    /// one chunk, however stale.
    pub(in crate::index) array: AtomicU64,
    /// Parent run << 32 | offset in it where this run goes on. (0, 0) is the start of all prompts.
    pub(in crate::index) link: AtomicU64,
    /// Content of the first block, so that a reader can tell that it found the right child.
    pub(in crate::index) first: AtomicU64,
    /// Up to four seats that hold the whole run on the GPU, ascending; the rest is [`NO_SEATS`].
    pub(in crate::index) whole: AtomicU64,
    /// Set of the seats that hold the whole run, if they are more than four << 32 | list of the other GPU marks.
    pub(in crate::index) gpu: AtomicU64,
    /// List of the marks in slower tiers.
    pub(in crate::index) slower: AtomicU64,
    /// Offset at which the latest child was hung << 32 | blocks that the array has room for. The room is the writer's; the
    /// offset is where prompts will probably leave the run, for asking the memory ahead.
    room: AtomicU64,
}

// SAFETY: atomics are made of any bytes.
unsafe impl Zeroes for Run {
    #[cfg(loom)]
    fn zero() -> Self {
        let word = || AtomicU64::new(0);
        Self {
            version: word(),
            array: word(),
            link: word(),
            first: word(),
            whole: word(),
            gpu: word(),
            slower: word(),
            room: word(),
        }
    }
}

impl Run {
    /// Before reading the rest. Acquire: what a reader sees is at least as new as the window that made this
    /// version; pairs with the Release at the end of [`Self::change`].
    #[inline(always)]
    pub(in crate::index) fn version(&self) -> u64 {
        self.version.load(Acquire)
    }

    /// Whether the run is still as it was at `version`. The caller has put an Acquire fence between its last
    /// read and this: it pairs with the Release fence in [`Self::change`], so a reader that saw any word written
    /// in a window or after it sees that window's version here.
    #[inline(always)]
    pub(in crate::index) fn is_still(&self, version: u64) -> bool {
        self.version.load(Relaxed) == version
    }

    /// Changes the run: readers see all of `stores` or none. Keep it to a few stores: readers that meet the window
    /// wait for its end, and the writer may be descheduled inside it.
    #[inline(always)]
    pub(in crate::index) fn change(&self, stores: impl FnOnce(&Self)) {
        let version = self.version.load(Relaxed);
        self.version.store(version.wrapping_add(1), Relaxed);
        // Keeps the stores below from becoming visible before the odd version; see `is_still`.
        fence(Release);
        stores(self);
        // Release: pairs with the Acquire in `version`.
        self.version.store(version.wrapping_add(2), Release);
    }

    /// Where prompts will probably leave the run; 0 if nobody knows. A hint that comes from any moment.
    #[inline(always)]
    pub(in crate::index) fn likely_exit(&self) -> u32 {
        // Relaxed: nobody believes it.
        halves(self.room.load(Relaxed)).0
    }

    /// A child hangs at `offset` since now.
    pub(in crate::index) fn note_exit(&self, offset: u32) {
        self.room.store(u64::from(offset) << 32 | u64::from(self.capacity()), Relaxed);
    }

    /// Blocks that the array has room for; the writer's.
    #[inline(always)]
    pub(in crate::index) fn capacity(&self) -> u32 {
        self.room.load(Relaxed) as u32
    }

    pub(in crate::index) fn set_capacity(&self, blocks: u32) {
        self.room.store(u64::from(self.likely_exit()) << 32 | u64::from(blocks), Relaxed);
    }

    /// Index of the first word, and the number of blocks.
    #[inline(always)]
    pub(in crate::index) fn extent(&self) -> (u32, u32) {
        halves(self.array.load(Relaxed))
    }
}

/// The upper and the lower half of a packed word.
#[inline(always)]
pub(in crate::index) fn halves(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

const RUNS_BITS: u32 = if cfg!(loom) { 3 } else { 10 };
const RUNS: usize = 1 << RUNS_BITS;

/// All runs of a shard by number, in chunks that never move. Number 0 is no run: it stands for the start.
pub(in crate::index) struct Runs {
    chunks: Box<[AtomicPtr<Run>]>,
}

impl Runs {
    /// Room for `chunks` chunks, of which the first is made.
    pub(in crate::index) fn new(chunks: usize) -> Self {
        let runs = Self { chunks: (0..chunks).map(|_| AtomicPtr::new(ptr::null_mut())).collect() };
        runs.grow(0);
        runs
    }

    /// The run of a number that [`Self::make`] has made, which every number in a header, a child table or a name
    /// table is.
    #[inline(always)]
    pub(in crate::index) fn get(&self, run: u32) -> &Run {
        // Acquire: pairs with the Release in `grow`, so that the zeroes come before the address.
        let chunk = self.chunks[(run >> RUNS_BITS) as usize].load(Acquire);
        debug_assert!(!chunk.is_null());
        // SAFETY: numbers are handed out by `make`, after their chunk was made; chunks live as long as `self`.
        unsafe { &*chunk.add(run as usize & (RUNS - 1)) }
    }

    /// Makes number `run` usable; `false` if there is no room for that many runs.
    pub(in crate::index) fn make(&self, run: u32) -> bool {
        let chunk = (run >> RUNS_BITS) as usize;
        if chunk >= self.chunks.len() {
            return false;
        }
        if self.chunks[chunk].load(Relaxed).is_null() {
            self.grow(chunk);
        }
        true
    }

    fn grow(&self, chunk: usize) {
        // Release: pairs with the Acquire in `get`.
        self.chunks[chunk].store(zeroed::<Run>(RUNS).as_ptr(), Release);
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        for chunk in &self.chunks {
            if let Some(runs) = NonNull::new(chunk.load(Relaxed)) {
                // SAFETY: made in `grow`, and nobody else has the runs any more.
                unsafe { free(runs, RUNS) };
            }
        }
    }
}
