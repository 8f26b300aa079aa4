//! From a prompt to the slots that hold its beginning.

use super::tree::{PlaceId, Tree};
use crate::{
    event::Tier,
    hash::BlockHash,
    index::{Extension, overlap::Answer},
    slot::Slot,
};

const SLOWER: [Tier; 3] = [Tier::Host, Tier::Disk, Tier::External];

/// Writes to `answer` the overlaps of all slots in `tree`. `has_slower` is false if nothing at all is held
/// outside GPU memory.
pub(super) fn overlap(tree: &Tree, prompt: &[BlockHash], has_slower: bool, answer: &mut Answer) {
    let path = walk(tree, prompt);
    gpu_levels(tree, &path, answer);
    if has_slower {
        extend_levels(tree, &path, answer);
        extend_from_the_start(tree, &path, answer);
    }
}

/// The places of the prompt's blocks, as far as they exist.
fn walk(tree: &Tree, prompt: &[BlockHash]) -> Vec<PlaceId> {
    let mut path = Vec::new();
    let mut place = PlaceId::ROOT;
    for &content in prompt {
        let Some(child) = tree.child(place, content) else { break };
        path.push(child);
        place = child;
    }
    path
}

/// Slots match from the first block on and leave at the first one they do not hold.
fn gpu_levels(tree: &Tree, path: &[PlaceId], answer: &mut Answer) {
    let Some(&first) = path.first() else { return };
    let mut alive: Vec<Slot> = tree.holders(first, Tier::Gpu).iter().map(|holder| holder.slot).collect();
    for (depth, &place) in path.iter().enumerate().skip(1) {
        if alive.is_empty() {
            break;
        }
        // Both lists are in order of slot, so one pass over the holders serves all.
        let mut holders = tree.holders(place, Tier::Gpu).iter().map(|h| h.slot).peekable();
        let mut leaves = |slot: Slot| {
            while holders.next_if(|&holder| holder < slot).is_some() {}
            holders.peek() != Some(&slot)
        };
        answer.push_level(blocks(depth), alive.extract_if(.., |slot| leaves(*slot)));
    }
    answer.push_level(blocks(path.len()), alive);
}

/// Slots with a GPU overlap go on in slower tiers.
fn extend_levels(tree: &Tree, path: &[PlaceId], answer: &mut Answer) {
    let Answer { levels, slots, extensions, .. } = answer;
    for level in &*levels {
        for &slot in &slots[level.slots()] {
            extend(tree, path, slot, level.depth as usize, extensions);
        }
    }
}

/// Slots without one may hold the first block in a slower tier. Each is taken up at the fastest such tier, so
/// that it is taken up once.
fn extend_from_the_start(tree: &Tree, path: &[PlaceId], answer: &mut Answer) {
    let extensions = &mut answer.extensions;
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
