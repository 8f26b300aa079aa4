//! A device with all it needs to hash: its context, the kernels, and slots that take turns.

use std::{mem, ops::Range};

use super::{
    buffers::{SLOT_HASHES, SLOT_TOKENS, Slot, Steps},
    driver::{Context, Device, Failure, contained},
    kernels::{Blocks, Kernels},
};
use crate::hash::{BatchPrompt, BlockHash, BlockHasher};

/// Chunks at once: one is being filled, one copied in, one hashed and copied out.
const SLOTS: usize = 3;

/// The device memory that slots, kernels and what the driver adds must find free in a new context.
const MEMORY: usize = 64 << 20;

/// An open device.
#[derive(Debug)]
pub(super) struct Gpu {
    // In this order they are dropped: what was made in the context goes before it.
    slots: Vec<Slot>,
    kernels: Kernels,
    context: Context,
    device: Device,
}

/// A device that could not be opened.
#[derive(Debug)]
pub(super) enum NotOpened {
    /// It has too little memory now.
    Full,
    /// It does not take the kernels.
    Unloadable(Failure),
    Failed(Failure),
}

impl From<Failure> for NotOpened {
    fn from(failure: Failure) -> Self {
        if failure.is_out_of_memory() { Self::Full } else { Self::Failed(failure) }
    }
}

/// Prompts of a batch that are hashed alike: they follow each other, under one identity, with EAGLE or without.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run<'a> {
    /// For their identity.
    pub(super) hasher: &'a BlockHasher,
    pub(super) prompts: &'a [BatchPrompt<'a>],
    /// Tokens that each digest covers.
    pub(super) words: u32,
}

impl Gpu {
    /// Makes a context on `device`, loads the kernels, and takes memory for the slots.
    pub(super) fn open(device: &Device) -> Result<Self, NotOpened> {
        let context = contained(|| Context::new(device))?;
        if contained(|| context.free_bytes())? < MEMORY {
            return Err(NotOpened::Full);
        }
        let kernels = contained(Kernels::load).map_err(|failure| {
            if failure.is_out_of_memory() { NotOpened::Full } else { NotOpened::Unloadable(failure) }
        })?;
        let slots = contained(|| (0..SLOTS).map(|_| Slot::new()).collect())?;
        Ok(Self { slots, kernels, context, device: device.clone() })
    }

    pub(super) const fn device(&self) -> &Device {
        &self.device
    }

    /// Whether blocks of so many tokens fit into a slot at all.
    pub(super) const fn takes(words: u32) -> bool {
        words > 0 && words as usize <= SLOT_TOKENS
    }

    /// Hashes a run into `out`, which has a place for each of its blocks.
    pub(super) fn hash(&mut self, run: Run<'_>, out: &mut [BlockHash]) -> Result<(), Failure> {
        contained(|| self.hash_chunks(run, out))?;
        let mut rest = out;
        for BatchPrompt { prompt, .. } in run.prompts {
            let of_prompt;
            (of_prompt, rest) = mem::take(&mut rest).split_at_mut(run.hasher.count(prompt));
            if !prompt.multimodal.is_empty() {
                run.hasher.add_objects(prompt, 0, of_prompt);
            }
        }
        Ok(())
    }

    fn hash_chunks(&mut self, run: Run<'_>, out: &mut [BlockHash]) -> Result<(), Failure> {
        self.context.enter()?;
        let mut packer = Packer { run, prompt: 0, block: 0 };
        // What each slot is hashing.
        let mut places: [Range<usize>; SLOTS] = Default::default();
        let mut done = 0;
        for turn in (0..SLOTS).cycle() {
            // The oldest chunk first, so that there is always another on its way.
            let (slot, place) = (&mut self.slots[turn], &mut places[turn]);
            take(slot, mem::take(place), out)?;
            let count = packer.pack(slot.tokens()?);
            if count == 0 {
                break;
            }
            let blocks = Blocks { count: count as u32, words: run.words, seed: run.hasher.identity().seed() };
            slot.submit(&self.kernels, blocks)?;
            *place = done..done + count;
            done += count;
        }
        for (slot, place) in self.slots.iter_mut().zip(places) {
            take(slot, place, out)?;
        }
        Ok(())
    }

    /// One chunk of as many blocks of the run as fit, with the time of each step; the hashes are not looked at.
    pub(super) fn time_steps(&mut self, run: Run<'_>) -> Result<(usize, Steps), Failure> {
        contained(|| {
            self.context.enter()?;
            let slot = &mut self.slots[0];
            let count = Packer { run, prompt: 0, block: 0 }.pack(slot.tokens()?);
            let blocks = Blocks { count: count as u32, words: run.words, seed: run.hasher.identity().seed() };
            Ok((count, slot.submit_timed(&self.kernels, blocks)?))
        })
    }

    /// Waits for all that was queued when a batch failed, so that the slots can be used again.
    pub(super) fn settle(&mut self) -> Result<(), Failure> {
        contained(|| {
            self.context.enter()?;
            self.slots.iter_mut().try_for_each(|slot| slot.finish().map(drop))
        })
    }
}

impl Drop for Gpu {
    /// What the fields give back they give back in the context.
    fn drop(&mut self) {
        let _ = contained(|| self.context.enter());
    }
}

/// Copies the hashes of a slot's chunk to their place.
fn take(slot: &mut Slot, place: Range<usize>, out: &mut [BlockHash]) -> Result<(), Failure> {
    if place.is_empty() {
        return Ok(());
    }
    for (to, from) in out[place].iter_mut().zip(slot.finish()?) {
        *to = BlockHash(*from);
    }
    Ok(())
}

/// Puts the tokens of a run's blocks one behind another, chunk by chunk.
struct Packer<'a> {
    run: Run<'a>,
    prompt: usize,
    /// The next block of that prompt.
    block: usize,
}

impl Packer<'_> {
    /// Fills `tokens` with as many blocks as fit and are left, and returns how many that is.
    fn pack(&mut self, tokens: &mut [u32]) -> usize {
        let words = self.run.words as usize;
        let room = (tokens.len() / words).min(SLOT_HASHES);
        let mut packed = 0;
        while packed < room
            && let Some(BatchPrompt { prompt, .. }) = self.run.prompts.get(self.prompt)
        {
            let left = self.run.hasher.count(prompt) - self.block;
            let blocks = left.min(room - packed);
            let to = &mut tokens[packed * words..][..blocks * words];
            if prompt.eagle {
                // Each block overlaps the next by a token, and kernels know of blocks side by side only.
                for (i, to) in to.chunks_exact_mut(words).enumerate() {
                    to.copy_from_slice(self.run.hasher.window(prompt, self.block + i));
                }
            } else {
                to.copy_from_slice(&prompt.tokens[self.block * words..][..blocks * words]);
            }
            packed += blocks;
            self.block += blocks;
            if blocks == left {
                self.prompt += 1;
                self.block = 0;
            }
        }
        packed
    }
}
