//! Device memory: allocations with gaps between them, what was written, and who touched what.

use std::collections::BTreeMap;

use crate::machine::Fault;

/// Nothing that the host can look at has such an address: host code that tries crashes at once.
const FIRST: u64 = 0x7f00_0000_0000_0000;
/// What lies between two allocations, so that whoever runs past the end of one does not land in the next.
const GAP: u64 = 4096;

/// Global memory in words of four bytes: what is smaller is not written by kernels here.
const WORD: usize = 4;

/// All of a device's memory.
#[derive(Debug)]
pub struct Memory {
    allocations: BTreeMap<u64, Allocation>,
    next: u64,
    used: usize,
    size: usize,
    /// The launch that runs, counted from 1.
    launch: u32,
}

#[derive(Debug)]
struct Allocation {
    bytes: Vec<u8>,
    /// Per word: whether somebody wrote it.
    written: Vec<u8>,
    /// Per word: by which thread of which launch it was last written and read.
    writer: Vec<Touch>,
    reader: Vec<Touch>,
}

/// A thread of a launch. The first launch is 1, so that zeroed memory is nobody's.
type Touch = (u32, u32);

/// Who has read a word that several threads have read.
const SEVERAL: u32 = u32::MAX;

impl Memory {
    pub fn new(size: usize) -> Self {
        Self { allocations: BTreeMap::new(), next: FIRST, used: 0, size, launch: 0 }
    }

    pub fn free_bytes(&self) -> usize {
        self.size - self.used
    }

    pub fn size(&self) -> usize {
        self.size
    }

    /// Allocations that were not given back.
    pub fn allocations(&self) -> usize {
        self.allocations.len()
    }

    /// `None` if there is not so much.
    pub fn allocate(&mut self, bytes: usize) -> Option<u64> {
        if bytes == 0 || bytes > self.free_bytes() {
            return None;
        }
        let words = bytes.div_ceil(WORD);
        let allocation = Allocation {
            bytes: vec![0; bytes],
            written: vec![0; words],
            writer: vec![(0, 0); words],
            reader: vec![(0, 0); words],
        };
        let address = self.next;
        self.next += (bytes as u64).next_multiple_of(GAP) + GAP;
        self.used += bytes;
        self.allocations.insert(address, allocation);
        Some(address)
    }

    /// False if `address` is not the start of an allocation.
    pub fn free(&mut self, address: u64) -> bool {
        let Some(allocation) = self.allocations.remove(&address) else { return false };
        self.used -= allocation.bytes.len();
        true
    }

    fn find(&mut self, address: u64, bytes: usize) -> Option<(&mut Allocation, usize)> {
        let (start, allocation) = self.allocations.range_mut(..=address).next_back()?;
        let offset = usize::try_from(address - start).ok()?;
        let end = offset.checked_add(bytes)?;
        (end <= allocation.bytes.len()).then_some((allocation, offset))
    }

    /// A copy from the host.
    pub fn put(&mut self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        let (allocation, offset) = self
            .find(address, bytes.len())
            .ok_or_else(|| Fault::illegal("a copy to the device is out of bounds"))?;
        allocation.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
        allocation.written[offset / WORD..(offset + bytes.len()).div_ceil(WORD)].fill(1);
        Ok(())
    }

    /// A copy to the host, which must not see what nobody wrote.
    pub fn get(&mut self, address: u64, bytes: usize) -> Result<&[u8], Fault> {
        let (allocation, offset) = self
            .find(address, bytes)
            .ok_or_else(|| Fault::illegal("a copy from the device is out of bounds"))?;
        if allocation.written[offset / WORD..(offset + bytes).div_ceil(WORD)].contains(&0) {
            return Err(Fault::illegal("a copy from the device reads what was never written"));
        }
        Ok(&allocation.bytes[offset..offset + bytes])
    }

    /// A launch begins: what earlier ones touched is in order.
    pub fn begin_launch(&mut self) {
        self.launch += 1;
    }

    /// A load by `thread` of the launch.
    pub fn load(&mut self, address: u64, bytes: usize, thread: u32) -> Result<u64, Fault> {
        let launch = self.launch;
        let (allocation, offset) =
            self.find(address, bytes).ok_or_else(|| Fault::illegal("global read out of bounds"))?;
        for word in offset / WORD..(offset + bytes).div_ceil(WORD) {
            if allocation.written[word] == 0 {
                return Err(Fault::illegal("global read of what was never written"));
            }
            let (by_launch, by_thread) = allocation.writer[word];
            if by_launch == launch && by_thread != thread {
                return Err(Fault::race("global memory read that another thread writes"));
            }
            let reader = &mut allocation.reader[word];
            let several = reader.0 == launch && reader.1 != thread;
            *reader = (launch, if several { SEVERAL } else { thread });
        }
        Ok(little_endian(&allocation.bytes[offset..offset + bytes]))
    }

    /// A store by `thread` of the launch.
    pub fn store(&mut self, address: u64, bytes: usize, value: u64, thread: u32) -> Result<(), Fault> {
        let launch = self.launch;
        let (allocation, offset) =
            self.find(address, bytes).ok_or_else(|| Fault::illegal("global write out of bounds"))?;
        if bytes < WORD {
            return Err(Fault::illegal("global write of less than a word, which is not checked here"));
        }
        for word in offset / WORD..(offset + bytes).div_ceil(WORD) {
            let touched = |(by_launch, by_thread): Touch| by_launch == launch && by_thread != thread;
            if touched(allocation.writer[word]) || touched(allocation.reader[word]) {
                return Err(Fault::race("global memory written that another thread touches"));
            }
            allocation.writer[word] = (launch, thread);
            allocation.written[word] = 1;
        }
        allocation.bytes[offset..offset + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
        Ok(())
    }
}

/// Up to eight bytes as a number.
pub fn little_endian(bytes: &[u8]) -> u64 {
    let mut value = [0; 8];
    value[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(value)
}
