//! What readers and the writer synchronise with: the standard library's atomics, or under `--cfg loom` those of the model
//! checker, which tries every order in which threads may see each other's stores.
//!
//! loom's atomics are not made of zero bytes, and every one costs each of thousands of executions: memory is therefore
//! asked for here, and the sizes of tables shrink under loom (see `LOOM` where they are set).

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
#[cfg(not(loom))]
pub(super) fn zeroed<T: Zeroes>(count: usize) -> NonNull<T> {
    // SAFETY: zeroes are values of the type.
    let values = unsafe { Box::<[T]>::new_zeroed_slice(count).assume_init() };
    NonNull::from(Box::leak(values)).cast()
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
pub(super) unsafe fn free<T: Zeroes>(values: NonNull<T>, count: usize) {
    // SAFETY: a leaked box of that many, as the caller vouches.
    drop(unsafe { Box::from_raw(NonNull::slice_from_raw_parts(values, count).as_ptr()) });
}
