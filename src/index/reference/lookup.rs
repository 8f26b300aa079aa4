//! From a prompt to the slots that hold its beginning.

use std::mem;

use super::tree::{PlaceId, Tree};
use crate::{
    event::Tier,
    hash::BlockHash,
    index::{Extension, Scratch},
    slot::Slot,
};

const SLOWER: [Tier; 3] = [Tier::Host, Tier::Disk, Tier::External];

/// Adds to `scratch` the overlaps of all slots in `tree`. `has_slower` is false if nothing at all is held
/// outside GPU memory.
pub(super) fn overlap(tree: &Tree, prompt: &[BlockHash], has_slower: bool, scratch: &mut Scratch) {
    walk(tree, prompt, &mut scratch.path);
    let earlier = scratch.levels.len();
    gpu_levels(tree, scratch);
    if has_slower {
        extend_levels(tree, earlier, scratch);
        extend_from_the_start(tree, scratch);
    }
}

fn walk(tree: &Tree, prompt: &[BlockHash], path: &mut Vec<PlaceId>) {
    path.clear();
    let mut place = PlaceId::ROOT;
    for &content in prompt {
        let Some(child) = tree.child(place, content) else { break };
        path.push(child);
        place = child;
    }
}

/// Slots match from the first block on and leave at the first one they do not hold.
fn gpu_levels(tree: &Tree, scratch: &mut Scratch) {
    let Some(&first) = scratch.path.first() else { return };
    // Taken out of the scratch while its levels are written; the memory goes back below.
    let mut alive = mem::take(&mut scratch.alive);
    alive.extend(tree.holders(first, Tier::Gpu).iter().map(|holder| holder.slot));
    for depth in 1..scratch.path.len() {
        if alive.is_empty() {
            break;
        }
        // Both lists are in order of slot, so one pass over the holders serves all.
        let mut holders = tree.holders(scratch.path[depth], Tier::Gpu).iter().map(|h| h.slot).peekable();
        let mut leaves = |slot: Slot| {
            while holders.next_if(|&holder| holder < slot).is_some() {}
            holders.peek() != Some(&slot)
        };
        scratch.push_level(blocks(depth), alive.extract_if(.., |slot| leaves(*slot)));
    }
    scratch.push_level(blocks(scratch.path.len()), alive.drain(..));
    scratch.alive = alive;
}

/// Slots with a GPU overlap go on in slower tiers. The levels from `earlier` on are those of this tree.
fn extend_levels(tree: &Tree, earlier: usize, scratch: &mut Scratch) {
    let Scratch { levels, slots, extensions, path, .. } = scratch;
    for level in &levels[earlier..] {
        for &slot in &slots[level.start..level.end] {
            extend(tree, path, slot, level.depth as usize, extensions);
        }
    }
}

/// Slots without one may hold the first block in a slower tier. Each is taken up at the fastest such tier, so
/// that it is taken up once.
fn extend_from_the_start(tree: &Tree, scratch: &mut Scratch) {
    let Scratch { extensions, path, .. } = scratch;
    let Some(&first) = path.first() else { return };
    for tier in SLOWER {
        for holder in tree.holders(first, tier) {
            let faster = &Tier::ALL[..tier.index()];
            if !faster.iter().any(|&faster| tree.holds(holder.slot, first, faster)) {
                extend(tree, path, holder.slot, 0, extensions);
            }
        }
    }
}

fn extend(tree: &Tree, path: &[PlaceId], slot: Slot, from: usize, extensions: &mut Vec<Extension>) {
    let mut depth = from;
    for tier in SLOWER {
        let more = path[depth..].iter().take_while(|&&place| tree.holds(slot, place, tier)).count();
        if more > 0 {
            extensions.push(Extension { slot, tier, blocks: blocks(more) });
            depth += more;
        }
    }
}

/// A prompt of more than `u32::MAX` blocks does not fit in memory.
fn blocks(depth: usize) -> u32 {
    u32::try_from(depth).unwrap_or(u32::MAX)
}
