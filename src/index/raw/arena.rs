//! Words in chunks that never move.

#[cfg(not(loom))]
use std::ptr;
use std::{
    ptr::NonNull,
    sync::atomic::Ordering::{Acquire, Relaxed, Release},
};

use super::sync::{AtomicPtr, AtomicU64, Line, free, zeroed};

const CHUNK_BITS: u32 = if cfg!(loom) { 5 } else { 15 };
/// Words of one plane in a chunk: 256 KiB. What is allocated together never crosses a chunk.
pub(in crate::index) const CHUNK: u32 = 1 << CHUNK_BITS;

/// Words by index: `PLANES` parallel arrays, so that one allocation yields a place in each.
///
/// An index beyond what has been grown reads as zeros, and so does any index made up from stale words.
pub(in crate::index) struct Arena<const PLANES: usize> {
    /// A power of two of them. Null: not grown yet.
    chunks: Box<[AtomicPtr<AtomicU64>]>,
}

/// Stands in for every chunk that is not there, so that readers need not ask.
#[cfg(not(loom))]
static NOTHING: [AtomicU64; 2 * CHUNK as usize] = [const { AtomicU64::new(0) }; 2 * CHUNK as usize];

impl<const PLANES: usize> Arena<PLANES> {
    /// Of a chunk.
    const LINES: usize = PLANES * CHUNK as usize / Line::WORDS;

    /// An arena that may grow to `chunks` chunks, a power of two.
    pub(in crate::index) fn new(chunks: usize) -> Self {
        const { assert!(PLANES == 1 || PLANES == 2, "NOTHING has room for two planes") };
        assert!(chunks.is_power_of_two(), "indices are masked to the directory");
        Self { chunks: (0..chunks).map(|_| AtomicPtr::new(Self::nothing())).collect() }
    }

    /// Chunks that it may grow to.
    pub(in crate::index) fn limit(&self) -> usize {
        self.chunks.len()
    }

    #[cfg(not(loom))]
    fn nothing() -> *mut AtomicU64 {
        ptr::from_ref(&NOTHING[0]).cast_mut()
    }

    /// loom has no statics: there every chunk is real from the start.
    #[cfg(loom)]
    fn nothing() -> *mut AtomicU64 {
        zeroed::<Line>(Self::LINES).as_ptr().cast()
    }

    /// The words from `index` on in `plane`: readable as far as the end of the index's chunk.
    #[inline(always)]
    pub(in crate::index) fn words(&self, plane: usize, index: u32) -> *const AtomicU64 {
        debug_assert!(plane < PLANES);
        let chunk = (index >> CHUNK_BITS) as usize & (self.chunks.len() - 1);
        // SAFETY: the index is masked to the length, and each chunk has CHUNK words for each plane.
        unsafe {
            // Acquire: the chunk's zeroes come before its address; pairs with the Release in `grow`.
            let chunk = self.chunks.get_unchecked(chunk).load(Acquire);
            chunk.add(plane * CHUNK as usize + (index & (CHUNK - 1)) as usize)
        }
    }

    #[inline(always)]
    pub(in crate::index) fn word(&self, plane: usize, index: u32) -> &AtomicU64 {
        // SAFETY: `words` points into a chunk, or into NOTHING, which both outlive `self`.
        unsafe { &*self.words(plane, index) }
    }

    /// The words from `index` on in `plane`, `count` of them if the chunk does not end before.
    #[inline(always)]
    pub(in crate::index) fn cells(&self, plane: usize, index: u32, count: u32) -> &[AtomicU64] {
        let count = count.min(CHUNK - (index & (CHUNK - 1)));
        // SAFETY: as in `word`; they lie in one chunk.
        unsafe { std::slice::from_raw_parts(self.words(plane, index), count as usize) }
    }

    /// `count` consecutive words as the writer sees them.
    ///
    /// # Safety
    /// Nobody may write these words while the slice lives: the caller is the arena's one writer and does not.
    #[inline(always)]
    pub(in crate::index) unsafe fn slice(&self, plane: usize, index: u32, count: u32) -> &[u64] {
        debug_assert!((index & (CHUNK - 1)) + count <= CHUNK);
        #[cfg(loom)]
        return Vec::leak(
            (index..index + count).map(|index| self.word(plane, index).load(Relaxed)).collect(),
        );
        // SAFETY: the words lie in one chunk; readers only read them, and the writer promises not to write.
        #[cfg(not(loom))]
        unsafe {
            std::slice::from_raw_parts(self.words(plane, index).cast(), count as usize)
        }
    }

    /// Makes a chunk real. Only the writer grows, each chunk once.
    pub(in crate::index) fn grow(&self, chunk: usize) {
        if cfg!(loom) {
            return;
        }
        let slot = &self.chunks[chunk];
        debug_assert_eq!(slot.load(Relaxed), Self::nothing());
        // Release: pairs with the Acquire in `words`.
        slot.store(zeroed::<Line>(Self::LINES).as_ptr().cast(), Release);
    }
}

impl<const PLANES: usize> Drop for Arena<PLANES> {
    fn drop(&mut self) {
        for chunk in &self.chunks {
            let words = chunk.load(Relaxed);
            if cfg!(not(loom)) && words == Self::nothing() {
                continue;
            }
            if let Some(lines) = NonNull::new(words.cast::<Line>()) {
                // SAFETY: made in `grow`, and nobody else has the arena any more.
                unsafe { free(lines, Self::LINES) };
            }
        }
    }
}
