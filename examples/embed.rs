//! A frontend with the selector inside: no server, no async runtime.
//!
//! Two workers report what they cached, a prompt is looked up, and the worker that holds its beginning gets it.

use kvroute::{
    event::{EngineHash, Event, Stored, StoredBlock, Tier},
    hash::{BlockHasher, BlockSize, Identity, Prompt, chain},
    index::{self, PrefixIndex},
    select::{self, Demand, Member, Mode, Selector, Tuning},
    slot::{Rank, SlotAllocator, WorkerId},
};
use std::{error::Error, num::NonZeroUsize, time::Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let block_size = BlockSize::new(16)?;
    let mut slots = SlotAllocator::new();
    let members = [1, 2].map(|worker| Member::new(slots.allocate(), WorkerId(worker), Rank(0)));

    // Hash the prompt: 100 tokens make 6 complete blocks.
    let tokens: Vec<u32> = (0..100).collect();
    let (mut blocks, mut sequence) = (Vec::new(), Vec::new());
    BlockHasher::new(block_size, Identity::plain()).hash(&Prompt::text(&tokens), &mut blocks);
    chain(&blocks, &mut sequence);

    // Worker 1 has cached one block of it, worker 2 four. Engines name blocks as they like.
    let (index, mut writers) = PrefixIndex::new(NonZeroUsize::MIN);
    for (member, held) in members.iter().zip([1, 4]) {
        let stored = (0..).zip(&blocks[..held]);
        let stored =
            stored.map(|(name, &hash)| StoredBlock { engine: EngineHash(name), content: Some(hash) });
        let event = Event::Stored(Stored { tier: Tier::Gpu, parent: None, blocks: stored.collect() });
        writers[0].apply(member.slot, &event);
    }

    // Look up, decide, book. The core has no clock: it is told what time it is.
    let started = Instant::now();
    let selector = Selector::new(Mode::Kv, Tuning::default());
    let (mut found, mut scratch) = (index::Scratch::new(), select::Scratch::new());
    let demand = Demand::new(tokens.len(), block_size, &sequence);
    let overlaps = index.overlap(&blocks, &mut found);
    let now = started.elapsed();
    let (choice, booking) =
        selector.admit(&members, overlaps, &demand, &mut scratch, now, &mut fastrand::Rng::new())?;

    println!("worker {} holds {} of {} blocks", choice.worker, choice.overlap.total(), blocks.len());
    for row in scratch.rows() {
        println!("  worker {}: {:?}", row.worker, row.cost);
    }
    println!("booked: {:?}", selector.loads().get(choice.slot));
    booking.first_token(started.elapsed()); // from which the worker's speed is learned
    drop(booking); // at the end of the response, however it ends
    println!("idle again: {:?}", selector.loads().get(choice.slot));
    Ok(())
}
