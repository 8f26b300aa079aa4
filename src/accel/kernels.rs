//! The kernels: their PTX, and which one is for which length.

#![allow(unsafe_code, reason = "a launch is what the driver cannot check")]

use std::{ffi::CStr, ptr};

use super::{
    buffers::DeviceMemory,
    driver::{Failure, Function, Module, Stream},
};

/// What `ci/ptx.sh` made of `kernels/block_hash.cu`, with the zero byte that the driver wants at the end.
const PTX: &str = concat!(include_str!("../../kernels/block_hash.ptx"), "\0");

/// Threads in a CUDA block: what the kernels are compiled for, see `THREADS` in their source.
const THREADS: u32 = 256;

/// A kernel for blocks of some lengths.
struct Class {
    /// The most words that it is for; the least are one more than the class before.
    most_words: u32,
    name: &'static CStr,
}

const CLASSES: [Class; 4] = [
    Class { most_words: 4, name: c"hash_1_to_4_words" },
    Class { most_words: 32, name: c"hash_5_to_32_words" },
    Class { most_words: 60, name: c"hash_33_to_60_words" },
    Class { most_words: u32::MAX, name: c"hash_61_words_and_more" },
];

/// The kernels of one context.
#[derive(Debug)]
pub(super) struct Kernels {
    functions: [Function; CLASSES.len()],
    /// Behind the functions, which are of it.
    _module: Module,
}

/// Blocks to be hashed, all of one length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    pub(super) count: u32,
    /// Tokens that each digest covers.
    pub(super) words: u32,
    pub(super) seed: u64,
}

impl Kernels {
    /// Has the driver compile them for the current context's device.
    pub(super) fn load() -> Result<Self, Failure> {
        // The text has no zero byte but its last.
        let ptx = CStr::from_bytes_until_nul(PTX.as_bytes()).unwrap_or_default();
        let module = Module::load(ptx)?;
        let [a, b, c, d] = CLASSES.map(|class| module.function(class.name));
        Ok(Self { functions: [a?, b?, c?, d?], _module: module })
    }

    /// Queues the hashing of the blocks at the start of `tokens` into the start of `hashes`. The two belong to `stream`: nobody
    /// else touches them before it has been waited for.
    pub(super) fn hash(
        &self,
        stream: &Stream,
        tokens: &DeviceMemory<u32>,
        hashes: &mut DeviceMemory<u64>,
        blocks: Blocks,
    ) -> Result<(), Failure> {
        let Blocks { mut count, mut words, mut seed } = blocks;
        // A kernel asked for more would read or write elsewhere.
        let fits = count as usize * words as usize <= tokens.len() && count as usize <= hashes.len();
        // The driver takes no empty grid. Nobody hashes blocks of no words.
        if count == 0 || words == 0 || !fits {
            debug_assert!(count == 0, "{blocks:?} in {} words and {} hashes", tokens.len(), hashes.len());
            return Ok(());
        }
        let class = CLASSES.iter().position(|class| words <= class.most_words).unwrap_or(CLASSES.len() - 1);
        let (mut from, mut to) = (tokens.address(), hashes.address());
        let mut arguments = [
            ptr::from_mut(&mut from).cast(),
            ptr::from_mut(&mut to).cast(),
            ptr::from_mut(&mut count).cast(),
            ptr::from_mut(&mut words).cast(),
            ptr::from_mut(&mut seed).cast(),
        ];
        // SAFETY: the five parameters that each kernel has, in their order and of their types: two addresses, two 32-bit numbers and
        // one of 64 bits. It reads `count * words` words and writes `count` hashes, which are there, as was checked; the caller
        // keeps others away from them.
        unsafe { self.functions[class].launch(stream, [count.div_ceil(THREADS), THREADS], &mut arguments) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_each_kernel_for_as_many_threads_as_are_launched() {
        assert_eq!(PTX.matches('\0').count(), 1);
        assert!(
            PTX.contains(".version 6.0") && PTX.contains(".target sm_70"),
            "what the oldest driver takes"
        );
        for class in CLASSES {
            let entry = format!(".visible .entry {}(", class.name.to_str().unwrap());
            let (_, kernel) = PTX.split_once(&entry).unwrap();
            let (head, _) = kernel.split_once("\n{").unwrap();
            assert!(head.contains(&format!(".maxntid {THREADS}, 1, 1")), "{head}");
            assert_eq!(head.matches(".param").count(), 5);
        }
    }
}
