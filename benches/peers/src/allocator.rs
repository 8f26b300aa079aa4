//! Counts bytes.

use std::{
    alloc::{GlobalAlloc, Layout},
    cell::Cell,
    sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed},
};

use mimalloc::MiMalloc;

/// mimalloc, which for events and result maps is kinder to the peers than the C library's allocator. While
/// counting is on, it keeps the sum of the bytes that were asked for and not yet given back.
pub(crate) struct Counting;

static COUNTS: AtomicBool = AtomicBool::new(false);
static LIVE: AtomicI64 = AtomicI64::new(0);

thread_local! {
    /// Whether this thread's allocations are left out.
    static LEFT_OUT: Cell<bool> = const { Cell::new(false) };
}

/// Sets the sum to zero and starts to count, in all threads.
pub(crate) fn start() {
    LIVE.store(0, Relaxed);
    COUNTS.store(true, Relaxed);
}

/// The sum now. What was allocated before [`start`] and is given back after it counts as negative.
pub(crate) fn live() -> i64 {
    LIVE.load(Relaxed)
}

/// Does `work` in this thread without counting it.
pub(crate) fn uncounted<T>(work: impl FnOnce() -> T) -> T {
    LEFT_OUT.set(true);
    let result = work();
    LEFT_OUT.set(false);
    result
}

/// Stops counting, so that timed work pays nothing but one load.
pub(crate) fn stop() {
    COUNTS.store(false, Relaxed);
}

fn add(bytes: usize, sign: i64) {
    // Relaxed: the sum is read when the threads that change it are idle.
    if COUNTS.load(Relaxed) && !LEFT_OUT.get() {
        LIVE.fetch_add(sign * bytes as i64, Relaxed);
    }
}

// SAFETY: every call goes to mimalloc unchanged, and its answer comes back unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size(), 1);
        // SAFETY: the caller's promises are those that mimalloc asks for.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size(), 1);
        // SAFETY: as above.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        add(layout.size(), -1);
        add(size, 1);
        // SAFETY: as above.
        unsafe { MiMalloc.realloc(start, layout, size) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        add(layout.size(), -1);
        // SAFETY: as above.
        unsafe { MiMalloc.dealloc(start, layout) }
    }
}
