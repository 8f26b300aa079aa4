//! Measures a device against the CPU, for whoever has one: `benches/gpu.rs` writes what comes of it.

use std::{
    num::NonZeroUsize,
    time::{Duration, Instant},
};

use super::{
    AcceleratorSettings,
    calibrate::{self, fastest},
    driver::{Device, Failure, contained, devices},
    gpu::{Gpu, NotOpened, Run},
    presence,
    stage::{measure_lines, words},
};
use crate::hash::{
    BatchHasher as _, BatchPrompt, BlockHash, BlockHasher, BlockSize, CpuBatchHasher, HashedBatch, Identity,
    Prompt,
};

/// A device that is measured. Nobody asks whether it is busy: whoever measures has made sure that it is not.
#[derive(Debug)]
pub struct MeasuredDevice {
    gpu: Gpu,
    threads: NonZeroUsize,
}

/// The steps of one chunk on the device, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ChunkSteps {
    /// Blocks in the chunk.
    pub blocks: usize,
    /// The copy of their tokens to the device.
    pub upload: f64,
    /// The kernel.
    pub kernel: f64,
    /// The copy of their hashes back.
    pub download: f64,
}

/// One batch by each way, from tokens in ordinary memory to hashes in ordinary memory.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BatchTimes {
    /// Blocks in the batch.
    pub blocks: usize,
    /// One thread of the CPU.
    pub one_thread: Duration,
    /// As many threads as the settings say.
    pub threads: Duration,
    /// The device.
    pub gpu: Duration,
}

impl MeasuredDevice {
    /// Opens the device at `ordinal` in CUDA's order.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub fn open(ordinal: usize, settings: &AcceleratorSettings) -> Result<Self, String> {
        presence::look().map_err(|absence| absence.to_string())?;
        let listed = contained(devices).map_err(|failure| failure.to_string())?;
        let device = listed.get(ordinal).ok_or_else(|| format!("CUDA lists {} devices", listed.len()))?;
        let gpu = Gpu::open(device).map_err(|problem| match problem {
            NotOpened::Full => "it has too little free memory".to_owned(),
            NotOpened::Unloadable(failure) | NotOpened::Failed(failure) => failure.to_string(),
        })?;
        Ok(Self { gpu, threads: settings.threads })
    }

    /// Name, UUID, and compute capability.
    #[must_use]
    pub fn name(&self) -> String {
        let Device { name, uuid, capability: (major, minor), .. } = self.gpu.device();
        format!("{name}, {uuid}, compute capability {major}.{minor}")
    }

    /// Compares digests with the CPU's: of every length from 1 to 320 tokens, and of `blocks` blocks of `block_sizes`.
    /// Returns how many were compared.
    ///
    /// # Errors
    /// The first that differs, or what failed on the device.
    pub fn verify(&mut self, block_sizes: &[u32], blocks: usize) -> Result<usize, String> {
        let small = (1..=320).map(|words| (words, 300));
        let large = block_sizes.iter().map(|words| (*words, blocks));
        let mut compared = 0;
        for (words, blocks) in small.chain(large) {
            compared += self.verify_length(words, blocks)?;
        }
        Ok(compared)
    }

    fn verify_length(&mut self, words: u32, blocks: usize) -> Result<usize, String> {
        let block_size = BlockSize::new(words).map_err(|error| error.to_string())?;
        let identity = Identity::new(None, Some(&words.to_string()));
        let tokens = tokens(words as usize * blocks, words);
        let prompts = [BatchPrompt { identity, prompt: Prompt::text(&tokens) }];
        let hasher = BlockHasher::new(block_size, identity);
        let mut ours = vec![BlockHash(0); blocks];
        let run = Run { hasher: &hasher, prompts: &prompts, words };
        self.gpu.hash(run, &mut ours).map_err(|failure| format!("{words} tokens: {failure}"))?;
        let mut theirs = Vec::new();
        hasher.hash(&Prompt::text(&tokens), &mut theirs);
        match ours.iter().zip(&theirs).position(|(ours, theirs)| ours != theirs) {
            Some(block) => Err(format!("the hash of block {block} of {words} tokens differs from the CPU's")),
            None => Ok(blocks),
        }
    }

    /// The steps of the largest chunk of blocks of `block_size` tokens: the medians of `runs` runs.
    ///
    /// # Errors
    /// What failed on the device.
    pub fn chunk(&mut self, block_size: BlockSize, runs: usize) -> Result<ChunkSteps, String> {
        let tokens = tokens(super::buffers::SLOT_TOKENS, 7);
        let prompts = [BatchPrompt { identity: Identity::plain(), prompt: Prompt::text(&tokens) }];
        let hasher = BlockHasher::new(block_size, Identity::plain());
        let words = words(block_size, false).ok_or("blocks of that size do not fit")?;
        let run = Run { hasher: &hasher, prompts: &prompts, words };
        let mut times = [const { Vec::new() }; 3];
        let mut blocks = 0;
        for _ in 0..runs {
            let (count, steps) = self.gpu.time_steps(run).map_err(|failure| failure.to_string())?;
            blocks = count;
            for (times, time) in times.iter_mut().zip([steps.upload, steps.kernel, steps.download]) {
                times.push(time);
            }
        }
        let [upload, kernel, download] = times.map(median);
        Ok(ChunkSteps { blocks, upload, kernel, download })
    }

    /// One batch of `blocks` blocks by each way: the fastest of three runs, after one to warm up.
    ///
    /// # Errors
    /// What failed on the device.
    pub fn batch(&mut self, block_size: BlockSize, blocks: usize) -> Result<BatchTimes, String> {
        let tokens = tokens(blocks * block_size.get() as usize, 7);
        let prompts = [BatchPrompt { identity: Identity::plain(), prompt: Prompt::text(&tokens) }];
        let words = words(block_size, false).ok_or("blocks of that size do not fit")?;
        let hasher = BlockHasher::new(block_size, Identity::plain());
        let mut out = vec![BlockHash(0); blocks];
        let mut on_gpu = || -> Result<Duration, Failure> {
            let start = Instant::now();
            self.gpu.hash(Run { hasher: &hasher, prompts: &prompts, words }, &mut out)?;
            Ok(start.elapsed())
        };
        let gpu = on_gpu().and_then(|_| fastest(on_gpu)).map_err(|failure| failure.to_string())?;
        let on_cpu = |threads| {
            let mut cpu = CpuBatchHasher::with_threads(block_size, threads);
            let mut out = HashedBatch::new();
            let mut run = || {
                let start = Instant::now();
                cpu.hash(&prompts, &mut out).map(|()| start.elapsed())
            };
            run().and_then(|_| fastest(run)).map_err(|error| error.to_string())
        };
        Ok(BatchTimes { blocks, one_thread: on_cpu(NonZeroUsize::MIN)?, threads: on_cpu(self.threads)?, gpu })
    }

    /// From how many blocks on the device is faster than one thread, and than all of them; `None` is never. By the rule that
    /// decides in operation.
    ///
    /// # Errors
    /// What failed on the device.
    pub fn break_even(&mut self, block_size: BlockSize) -> Result<[Option<usize>; 2], String> {
        let words = words(block_size, false).ok_or("blocks of that size do not fit")?;
        let mut against = |threads| {
            let (cpu, gpu) = measure_lines(&mut self.gpu, block_size, words, threads)
                .map_err(|failure| failure.to_string())?;
            Ok::<_, String>(calibrate::break_even(cpu, gpu))
        };
        Ok([against(NonZeroUsize::MIN)?, against(self.threads)?])
    }
}

fn tokens(count: usize, seed: u32) -> Vec<u32> {
    (0..count as u32).map(|i| (i ^ seed).wrapping_mul(0x9E37_79B1).rotate_left(13)).collect()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or_default()
}
