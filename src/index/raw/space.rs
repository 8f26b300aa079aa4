//! Who has which words of an arena: the writer's allocator.
//!
//! Good fit with splitting and coalescing. Free pieces are threaded through the arena's own words of one plane, so
//! that bookkeeping costs two bits for every four words. Readers may still look at freed words: they find out by
//! the version of the run that led them there.

use std::sync::atomic::Ordering::Relaxed;

use super::arena::{Arena, CHUNK};

/// All sizes are multiples of this, which is also the least size that has room for a free piece's links.
pub(super) const GRAIN: u32 = 4;
const GRAINS: usize = (CHUNK / GRAIN) as usize;
/// Eight classes for each power of two of grains.
const CLASSES: usize = 8 * 14;
const NONE: u32 = u32::MAX;

/// The free words of an arena with `PLANES` planes. Links lie in the last plane.
pub(in crate::index) struct Space<const PLANES: usize> {
    /// First free piece of each class.
    heads: [u32; CLASSES],
    /// Which classes have one.
    full: [u64; CLASSES.div_ceil(64)],
    /// By chunk.
    #[allow(clippy::vec_box, reason = "apart, so that a new chunk moves nobody's")]
    bounds: Vec<Box<Bounds>>,
    limit: usize,
    free: u64,
}

/// Which grains of a chunk begin a free piece, and which end one.
struct Bounds {
    begins: Grains,
    ends: Grains,
}

/// A bit for each grain of a chunk.
type Grains = [u64; GRAINS.div_ceil(64)];

// A free piece: its length in the first and in the last word; next and previous piece of the class in between.
const NEXT: u32 = 1;
const PREVIOUS: u32 = 2;

impl<const PLANES: usize> Space<PLANES> {
    const LINKS: usize = PLANES - 1;

    pub(in crate::index) fn new(arena: &Arena<PLANES>) -> Self {
        Self {
            heads: [NONE; CLASSES],
            full: [0; CLASSES.div_ceil(64)],
            bounds: Vec::new(),
            limit: arena.limit(),
            free: 0,
        }
    }

    /// Words of all planes in use, and those that lie free in between.
    pub(in crate::index) fn usage(&self) -> (u64, u64) {
        let planes = PLANES as u64;
        ((self.bounds.len() as u64 * u64::from(CHUNK) - self.free) * planes, self.free * planes)
    }

    /// Whether `count` words, at most a chunk, can be set aside, be it by growing as far as `spare` chunks before the limit. Not by how
    /// many words are free: they may lie in pieces that are too short.
    pub(in crate::index) fn has_room(&self, arena: &Arena<PLANES>, count: u32, spare: usize) -> bool {
        self.bounds.len() + spare < self.limit || self.fitting(arena, count.next_multiple_of(GRAIN)).is_some()
    }

    /// Sets aside `count` words, at most a chunk; returns their index and their real number, or `None` if the
    /// arena is full.
    pub(in crate::index) fn take(&mut self, arena: &Arena<PLANES>, count: u32) -> Option<(u32, u32)> {
        let count = count.next_multiple_of(GRAIN).max(GRAIN);
        debug_assert!(count <= CHUNK);
        let piece = match self.fitting(arena, count) {
            Some(piece) => piece,
            None => self.grow(arena)?,
        };
        let length = self.unlink(arena, piece);
        if length > count {
            self.link(arena, piece + count, length - count);
        }
        Some((piece, count))
    }

    /// Gives back what [`Self::take`] gave.
    pub(in crate::index) fn give(&mut self, arena: &Arena<PLANES>, mut piece: u32, mut length: u32) {
        debug_assert!(length >= GRAIN && length.is_multiple_of(GRAIN));
        let within = piece & (CHUNK - 1);
        if within > 0 && is_set(&self.bounds(piece).ends, piece - 1) {
            let before = self.word(arena, piece - 1);
            self.unlink(arena, piece - before);
            piece -= before;
            length += before;
        }
        let after = piece + length;
        if after & (CHUNK - 1) != 0 && is_set(&self.bounds(piece).begins, after) {
            length += self.unlink(arena, after);
        }
        self.link(arena, piece, length);
    }

    fn grow(&mut self, arena: &Arena<PLANES>) -> Option<u32> {
        let chunk = self.bounds.len();
        if chunk == self.limit {
            return None;
        }
        arena.grow(chunk);
        self.bounds
            .push(Box::new(Bounds { begins: [0; GRAINS.div_ceil(64)], ends: [0; GRAINS.div_ceil(64)] }));
        let piece = chunk as u32 * CHUNK;
        self.link(arena, piece, CHUNK);
        Some(piece)
    }

    /// A free piece of at least `count` words: of the first class whose pieces are all long enough, or the head of
    /// the class before, if it happens to be.
    fn fitting(&self, arena: &Arena<PLANES>, count: u32) -> Option<u32> {
        let own = class(count);
        let head = self.heads[own];
        if head != NONE && self.word(arena, head) >= count {
            return Some(head);
        }
        let mut word = (own + 1) / 64;
        let mut bits = self.full.get(word)? & (u64::MAX << ((own + 1) % 64));
        while bits == 0 {
            word += 1;
            bits = *self.full.get(word)?;
        }
        Some(self.heads[word * 64 + bits.trailing_zeros() as usize])
    }

    fn link(&mut self, arena: &Arena<PLANES>, piece: u32, length: u32) {
        let class = class(length);
        let head = self.heads[class];
        self.set_word(arena, piece, length);
        self.set_word(arena, piece + length - 1, length);
        self.set_word(arena, piece + NEXT, head);
        self.set_word(arena, piece + PREVIOUS, NONE);
        if head != NONE {
            self.set_word(arena, head + PREVIOUS, piece);
        }
        self.heads[class] = piece;
        self.full[class / 64] |= 1 << (class % 64);
        let bounds = self.bounds_mut(piece);
        set(&mut bounds.begins, piece);
        set(&mut bounds.ends, piece + length - 1);
        self.free += u64::from(length);
    }

    fn unlink(&mut self, arena: &Arena<PLANES>, piece: u32) -> u32 {
        let length = self.word(arena, piece);
        let (next, previous) = (self.word(arena, piece + NEXT), self.word(arena, piece + PREVIOUS));
        if next != NONE {
            self.set_word(arena, next + PREVIOUS, previous);
        }
        if previous != NONE {
            self.set_word(arena, previous + NEXT, next);
        } else {
            let class = class(length);
            self.heads[class] = next;
            if next == NONE {
                self.full[class / 64] &= !(1 << (class % 64));
            }
        }
        let bounds = self.bounds_mut(piece);
        unset(&mut bounds.begins, piece);
        unset(&mut bounds.ends, piece + length - 1);
        self.free -= u64::from(length);
        length
    }

    /// Of the chunk in which `index` lies.
    fn bounds(&self, index: u32) -> &Bounds {
        &self.bounds[(index / CHUNK) as usize]
    }

    fn bounds_mut(&mut self, index: u32) -> &mut Bounds {
        &mut self.bounds[(index / CHUNK) as usize]
    }

    fn word(&self, arena: &Arena<PLANES>, index: u32) -> u32 {
        // Relaxed: links are the writer's alone.
        arena.word(Self::LINKS, index).load(Relaxed) as u32
    }

    fn set_word(&self, arena: &Arena<PLANES>, index: u32, value: u32) {
        // Relaxed: a reader that still looks here is told by a version that it must not believe what it sees.
        arena.word(Self::LINKS, index).store(u64::from(value), Relaxed);
    }
}

/// The grain of `index` within its chunk.
fn grain(index: u32) -> usize {
    (index % CHUNK / GRAIN) as usize
}

fn is_set(grains: &Grains, index: u32) -> bool {
    let at = grain(index);
    grains[at / 64] >> (at % 64) & 1 == 1
}

fn set(grains: &mut Grains, index: u32) {
    let at = grain(index);
    grains[at / 64] |= 1 << (at % 64);
}

fn unset(grains: &mut Grains, index: u32) {
    let at = grain(index);
    grains[at / 64] &= !(1 << (at % 64));
}

/// The class of pieces of `length` words: sizes from it up to the next class's.
fn class(length: u32) -> usize {
    let grains = length / GRAIN;
    if grains < 8 {
        return grains as usize;
    }
    let power = grains.ilog2();
    (8 * (power - 2) + (grains >> (power - 3) & 7)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_grow_with_sizes() {
        let classes: Vec<usize> = (GRAIN..=CHUNK).step_by(GRAIN as usize).map(class).collect();
        assert!(classes.is_sorted());
        assert!(classes.iter().all(|&class| class < CLASSES));
    }

    #[test]
    fn pieces_never_overlap_and_all_comes_back() {
        let arena = Arena::<2>::new(8);
        let mut space = Space::new(&arena);
        let mut rng = fastrand::Rng::with_seed(7);
        let mut taken: Vec<(u32, u32)> = Vec::new();
        for _ in 0..20_000 {
            if taken.len() < 60 || rng.bool() {
                let most = if rng.u8(..10) == 0 { 8_000 } else { 300 };
                let wanted = rng.u32(1..=most);
                if let Some((piece, length)) = space.take(&arena, wanted) {
                    assert!(length >= wanted && piece / CHUNK == (piece + length - 1) / CHUNK);
                    let apart =
                        |&(other, size): &(u32, u32)| piece + length <= other || other + size <= piece;
                    assert!(taken.iter().all(apart));
                    taken.push((piece, length));
                }
            }
            if taken.len() > 100 || (rng.bool() && !taken.is_empty()) {
                let (piece, length) = taken.swap_remove(rng.usize(..taken.len()));
                space.give(&arena, piece, length);
            }
        }
        for (piece, length) in taken.drain(..) {
            space.give(&arena, piece, length);
        }
        assert_eq!(space.usage().0, 0);
        // Everything grew together again: whole chunks can be had.
        let chunks = space.bounds.len();
        for _ in 0..chunks {
            assert!(space.take(&arena, CHUNK).is_some());
        }
        assert_eq!(space.bounds.len(), chunks);
    }

    #[test]
    fn an_arena_has_room_for_what_it_can_set_aside() {
        let arena = Arena::<1>::new(4);
        let mut space = Space::new(&arena);
        for left in (0..4).rev() {
            let spares: Vec<usize> = (0..4).filter(|&spare| space.has_room(&arena, CHUNK, spare)).collect();
            assert_eq!(spares.len(), left + 1, "chunks that it may yet grow by");
            assert!(space.take(&arena, CHUNK).is_some());
        }
        // As many words as two pieces of 100 have, and none so long.
        for piece in [0, 104] {
            space.give(&arena, piece, 100);
        }
        assert!(space.usage().1 == 200 && space.has_room(&arena, 97, 0) && !space.has_room(&arena, 101, 0));
        assert_eq!(space.take(&arena, 101), None);
    }

    #[test]
    fn a_full_arena_says_so() {
        let arena = Arena::<1>::new(1);
        let mut space = Space::new(&arena);
        assert!(space.take(&arena, CHUNK).is_some());
        assert_eq!(space.take(&arena, 1), None);
    }
}
