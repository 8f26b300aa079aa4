//! What readers and the writer synchronise with: the standard library's atomics, or under `--cfg loom` those of the model
//! checker, which tries every order in which threads may see each other's stores.
//!
//! loom's atomics are not made of zero bytes, and every one costs each of thousands of executions: memory is therefore
//! asked for here, and the sizes of tables shrink under loom (see `LOOM` where they are set).

#[cfg(not(loom))]
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

#[cfg(loom)]
pub(in crate::index) use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, fence},
    thread::yield_now,
};
#[cfg(not(loom))]
pub(in crate::index) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, fence},
    thread::yield_now,
};

/// Values whose bytes are all zero at first.
///
/// # Safety
/// Zero bytes are a value of the type.
pub(super) unsafe trait Zeroes: Sized {
    /// The same value, where atomics are not made of bytes.
    #[cfg(loom)]
    fn zero() -> Self;
}

/// Eight words: one cache line.
#[cfg_attr(not(loom), repr(C, align(64)))]
#[cfg_attr(loom, repr(C))]
pub(super) struct Line([AtomicU64; Line::WORDS]);

impl Line {
    pub(super) const WORDS: usize = 8;
}

// SAFETY: atomics are made of any bytes.
unsafe impl Zeroes for Line {
    #[cfg(loom)]
    fn zero() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// Memory for `count` values, at least one, that are zero.
///
/// Aligned here: of the standard library one gets memory that is aligned beyond 16 bytes by its clearing it by hand, which
/// for a chunk of the arena touches half a megabyte in the middle of one event. Memory that need not be aligned comes from the
/// system as it is, zero already, and each page is made when it is first used.
#[cfg(not(loom))]
pub(super) fn zeroed<T: Zeroes>(count: usize) -> NonNull<T> {
    let layout = padded::<T>(count);
    // SAFETY: the layout is not empty.
    let Some(start) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
    // SAFETY: the padding has room for the values to begin behind the next multiple of their alignment, which leaves a word
    // or more before them for where the memory begins.
    unsafe {
        let values = start.add(PADDING - start.addr().get() % PADDING).cast::<T>();
        values.cast::<NonNull<u8>>().sub(1).write(start);
        values
    }
}

/// What values are aligned to at most, and how much more is asked for to align them here.
#[cfg(not(loom))]
const PADDING: usize = 64;

/// Room for `count` values that begin within the first [`PADDING`] bytes, but not at once.
#[cfg(not(loom))]
fn padded<T>(count: usize) -> Layout {
    const { assert!(size_of::<T>() > 0 && align_of::<T>() <= PADDING) };
    let layout = size_of::<T>().checked_mul(count).and_then(|bytes| bytes.checked_add(PADDING));
    let layout = layout.and_then(|bytes| Layout::from_size_align(bytes, align_of::<usize>()).ok());
    layout.unwrap_or_else(|| unreachable!("no table of the index is as large as the address space"))
}

/// As above, made one by one.
#[cfg(loom)]
pub(super) fn zeroed<T: Zeroes>(count: usize) -> NonNull<T> {
    let values: Box<[T]> = (0..count).map(|_| T::zero()).collect();
    NonNull::from(Box::leak(values)).cast()
}

/// Gives back what [`zeroed`] made.
///
/// # Safety
/// `count` is the number that was asked for, and nobody uses the values any more.
#[cfg(not(loom))]
pub(super) unsafe fn free<T: Zeroes>(values: NonNull<T>, count: usize) {
    const { assert!(!std::mem::needs_drop::<T>()) };
    // SAFETY: `zeroed` wrote there where the memory begins, and asked for as much, as the caller vouches.
    unsafe { dealloc(values.cast::<NonNull<u8>>().sub(1).read().as_ptr(), padded::<T>(count)) };
}

/// As above, of what was made one by one.
///
/// # Safety
/// As above.
#[cfg(loom)]
pub(super) unsafe fn free<T: Zeroes>(values: NonNull<T>, count: usize) {
    // SAFETY: a leaked box of that many, as the caller vouches.
    drop(unsafe { Box::from_raw(NonNull::slice_from_raw_parts(values, count).as_ptr()) });
}
