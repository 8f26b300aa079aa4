//! Memory on both sides, and slots: what one chunk of a batch needs from the first copy to the last.

#![allow(unsafe_code, reason = "memory that a device copies from and to")]

use std::{marker::PhantomData, ptr, slice};

use cudarc::driver::sys;

use super::{
    driver::{Event, Failure, Stream, check},
    kernels::{Blocks, Kernels},
};

/// Tokens that a slot holds: 4 MiB, some 80 us of PCIe, beside which what a chunk costs once is little.
pub(super) const SLOT_TOKENS: usize = 1 << 20;
/// Hashes that it holds: those of blocks of four tokens. Smaller blocks make smaller chunks.
pub(super) const SLOT_HASHES: usize = SLOT_TOKENS / 4;

/// Numbers that may be copied byte by byte, and of which any bytes make one.
pub(super) trait Word: Copy + Send + 'static {}
impl Word for u32 {}
impl Word for u64 {}

/// Device memory.
#[derive(Debug)]
pub(super) struct DeviceMemory<T> {
    address: sys::CUdeviceptr,
    len: usize,
    of: PhantomData<T>,
}

impl<T: Word> DeviceMemory<T> {
    pub(super) fn new(len: usize) -> Result<Self, Failure> {
        let mut address = 0;
        // SAFETY: room for an address.
        check("cuMemAlloc_v2", unsafe { sys::cuMemAlloc_v2(&raw mut address, len * size_of::<T>()) })?;
        Ok(Self { address, len, of: PhantomData })
    }

    pub(super) const fn address(&self) -> u64 {
        self.address
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }
}

impl<T> Drop for DeviceMemory<T> {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`; nothing queued uses it, see `Slot`.
        let _ = unsafe { sys::cuMemFree_v2(self.address) };
    }
}

/// Host memory that the device copies from and to by itself. What is in it at first is not defined, and any content will do.
#[derive(Debug)]
pub(super) struct Pinned<T> {
    address: *mut T,
    len: usize,
}

// SAFETY: it is memory of our own, like a `Vec`'s.
unsafe impl<T: Word> Send for Pinned<T> {}

impl<T: Word> Pinned<T> {
    /// For the device to read: fast to fill in order, and slow to read back.
    fn for_upload(len: usize) -> Result<Self, Failure> {
        Self::new(len, sys::CU_MEMHOSTALLOC_WRITECOMBINED)
    }

    /// For the device to write.
    fn for_download(len: usize) -> Result<Self, Failure> {
        Self::new(len, 0)
    }

    fn new(len: usize, flags: u32) -> Result<Self, Failure> {
        let mut address = ptr::null_mut();
        // SAFETY: room for an address.
        let result = unsafe { sys::cuMemHostAlloc(&raw mut address, len * size_of::<T>(), flags) };
        check("cuMemHostAlloc", result)?;
        let pinned = Self { address: address.cast(), len };
        // SAFETY: `len` words of our own, aligned to pages. They are given a value, since Rust must not read what has none.
        unsafe { ptr::write_bytes(pinned.address, 0, len) };
        Ok(pinned)
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`; nothing queued uses it, see `Slot`.
        let _ = unsafe { sys::cuMemFreeHost(self.address.cast()) };
    }
}

/// Queues a copy of the first `len` words.
fn upload<T: Word>(
    stream: &Stream,
    from: &Pinned<T>,
    to: &mut DeviceMemory<T>,
    len: usize,
) -> Result<(), Failure> {
    let bytes = len.min(from.len).min(to.len) * size_of::<T>();
    // SAFETY: both ranges are there. Their slot keeps others away from them until the stream has been waited for.
    let result =
        unsafe { sys::cuMemcpyHtoDAsync_v2(to.address, from.address.cast(), bytes, stream.handle()) };
    check("cuMemcpyHtoDAsync_v2", result)
}

/// Queues a copy of the first `len` words.
fn download<T: Word>(
    stream: &Stream,
    from: &DeviceMemory<T>,
    to: &mut Pinned<T>,
    len: usize,
) -> Result<(), Failure> {
    let bytes = len.min(from.len).min(to.len) * size_of::<T>();
    // SAFETY: as in `upload`.
    let result =
        unsafe { sys::cuMemcpyDtoHAsync_v2(to.address.cast(), from.address, bytes, stream.handle()) };
    check("cuMemcpyDtoHAsync_v2", result)
}

/// What one chunk needs: a stream, and memory on both sides. While it is in flight nobody gets at its memory.
#[derive(Debug)]
pub(super) struct Slot {
    stream: Stream,
    in_flight: bool,
    pinned_tokens: Pinned<u32>,
    tokens: DeviceMemory<u32>,
    hashes: DeviceMemory<u64>,
    pinned_hashes: Pinned<u64>,
}

/// How long the steps of one chunk took on the device, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Steps {
    pub(super) upload: f64,
    pub(super) kernel: f64,
    pub(super) download: f64,
}

impl Slot {
    pub(super) fn new() -> Result<Self, Failure> {
        Ok(Self {
            stream: Stream::new()?,
            in_flight: false,
            pinned_tokens: Pinned::for_upload(SLOT_TOKENS)?,
            tokens: DeviceMemory::new(SLOT_TOKENS)?,
            hashes: DeviceMemory::new(SLOT_HASHES)?,
            pinned_hashes: Pinned::for_download(SLOT_HASHES)?,
        })
    }

    /// Waits, and hands out the hashes of the last chunk, or rather what is in their place if there was none.
    pub(super) fn finish(&mut self) -> Result<&[u64], Failure> {
        if self.in_flight {
            self.stream.wait()?;
            self.in_flight = false;
        }
        // SAFETY: `len` words that were given values, by us or by the copy that has been waited for; nobody else has them until
        // the next `submit`, which borrows the slot.
        Ok(unsafe { slice::from_raw_parts(self.pinned_hashes.address, self.pinned_hashes.len) })
    }

    /// Waits, and hands out the place for the tokens of the next chunk. It is not to be read.
    pub(super) fn tokens(&mut self) -> Result<&mut [u32], Failure> {
        self.finish()?;
        // SAFETY: as in `finish`: the copy out of it has been waited for.
        Ok(unsafe { slice::from_raw_parts_mut(self.pinned_tokens.address, self.pinned_tokens.len) })
    }

    /// Queues the copy, the kernel and the copy back for the blocks at the start of the place for tokens.
    pub(super) fn submit(&mut self, kernels: &Kernels, blocks: Blocks) -> Result<(), Failure> {
        self.finish()?;
        // From here on also if one of the three fails: those before it are queued.
        self.in_flight = true;
        let (words, hashes) = (blocks.count as usize * blocks.words as usize, blocks.count as usize);
        upload(&self.stream, &self.pinned_tokens, &mut self.tokens, words)?;
        kernels.hash(&self.stream, &self.tokens, &mut self.hashes, blocks)?;
        download(&self.stream, &self.hashes, &mut self.pinned_hashes, hashes)
    }

    /// The same with the time that each step took.
    pub(super) fn submit_timed(&mut self, kernels: &Kernels, blocks: Blocks) -> Result<Steps, Failure> {
        self.finish()?;
        self.in_flight = true;
        let (words, hashes) = (blocks.count as usize * blocks.words as usize, blocks.count as usize);
        let start = Event::record(&self.stream)?;
        upload(&self.stream, &self.pinned_tokens, &mut self.tokens, words)?;
        let uploaded = Event::record(&self.stream)?;
        kernels.hash(&self.stream, &self.tokens, &mut self.hashes, blocks)?;
        let hashed = Event::record(&self.stream)?;
        download(&self.stream, &self.hashes, &mut self.pinned_hashes, hashes)?;
        let downloaded = Event::record(&self.stream)?;
        Ok(Steps {
            download: downloaded.microseconds_since(&hashed)?,
            kernel: hashed.microseconds_since(&uploaded)?,
            upload: uploaded.microseconds_since(&start)?,
        })
    }
}

impl Drop for Slot {
    /// The fields go after this, and nothing queued must use them then. If waiting fails the context is beyond use, and its
    /// owner lets go of it as a whole instead of dropping this: see `Gpu`.
    fn drop(&mut self) {
        let _ = self.finish();
    }
}
