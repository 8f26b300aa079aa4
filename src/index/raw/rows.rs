//! Rows of a table that are made when they are first needed.

use std::{
    marker::PhantomData,
    ptr,
    sync::atomic::Ordering::{Acquire, Relaxed, Release},
};

use super::sync::AtomicPtr;

/// The writer makes rows, anybody looks at those that are there. A row never moves and goes with the table.
pub(super) struct Rows<T> {
    rows: Box<[AtomicPtr<T>]>,
    owned: PhantomData<Box<T>>,
}

impl<T> Rows<T> {
    /// Room for `count` rows.
    pub(super) fn new(count: usize) -> Self {
        Self { rows: (0..count).map(|_| AtomicPtr::new(ptr::null_mut())).collect(), owned: PhantomData }
    }

    #[inline(always)]
    pub(super) fn get(&self, row: usize) -> Option<&T> {
        // Acquire: the row's content comes before its address; pairs with the Release in `get_or_make`.
        let row = self.rows.get(row)?.load(Acquire);
        // SAFETY: null, or a row that `get_or_make` leaked and that is freed with `self`.
        unsafe { row.as_ref() }
    }

    /// The row, made if need be; the writer's. One of `count`.
    pub(super) fn get_or_make(&self, row: usize, make: impl FnOnce() -> T) -> &T {
        let slot = &self.rows[row];
        let mut found = slot.load(Relaxed);
        if found.is_null() {
            found = Box::into_raw(Box::new(make()));
            // Release: pairs with the Acquire in `get`.
            slot.store(found, Release);
        }
        // SAFETY: as in `get`; nobody else makes rows, so this is the one that stays.
        unsafe { &*found }
    }
}

impl<T> Drop for Rows<T> {
    fn drop(&mut self) {
        for row in &self.rows {
            let row = row.load(Relaxed);
            if !row.is_null() {
                // SAFETY: leaked by `get_or_make`, and nobody else has the table any more.
                drop(unsafe { Box::from_raw(row) });
            }
        }
    }
}
