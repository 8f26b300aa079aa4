//! Who holds and who serves: workers, ranks, and the dense slots that stand for them.
//!
//! Everything on the request path names a rank by its [`Slot`], a small number that indexes arrays.
//! A slot carries a generation, so nothing that was said of a worker that is gone (a cached block, a
//! booked request) is ever credited to the worker that got its number next.

use std::fmt;

/// One engine process group, as the fleet knows it. Chosen by whoever registers the worker, or
/// assigned; shown in `explain`, in metrics and in `nvext.worker_id`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WorkerId(pub u64);

/// A data-parallel rank inside a worker. Every rank has a KV cache, a KV event stream and a load of
/// its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Rank(pub u32);

/// A dense number for one (worker, rank) in one incarnation of the worker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot {
    /// Position in per-slot arrays; reused after the worker is gone.
    pub index: u32,
    /// Goes up each time `index` is given out again.
    pub generation: u32,
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// Gives out slots, lowest free index first, so that per-slot arrays stay as short as the fleet.
#[derive(Debug, Default)]
pub struct SlotAllocator {
    /// Generation that the next holder of each index gets.
    next_generation: Vec<u32>,
    /// Free indices, largest first, so that `pop` yields the lowest.
    free: Vec<u32>,
}

impl SlotAllocator {
    /// An allocator with nothing given out.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A slot that nobody holds.
    pub fn allocate(&mut self) -> Slot {
        let index = self.free.pop().unwrap_or_else(|| {
            self.next_generation.push(0);
            // A fleet has far fewer ranks than u32 can count.
            u32::try_from(self.next_generation.len() - 1).unwrap_or(u32::MAX)
        });
        Slot { index, generation: self.next_generation[index as usize] }
    }

    /// Takes `slot` back. Its index will return under a new generation; releasing a slot twice, or one
    /// of an older generation, changes nothing.
    pub fn release(&mut self, slot: Slot) {
        let Some(next) = self.next_generation.get_mut(slot.index as usize) else { return };
        if *next != slot.generation {
            return;
        }
        *next = next.wrapping_add(1);
        let at = self.free.partition_point(|&index| index > slot.index);
        self.free.insert(at, slot.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_index_has_a_new_generation() {
        let mut slots = SlotAllocator::new();
        let (a, b) = (slots.allocate(), slots.allocate());
        assert_eq!((a.index, b.index), (0, 1));
        slots.release(a);
        let again = slots.allocate();
        assert_eq!(again.index, a.index);
        assert_ne!(again.generation, a.generation);
    }

    #[test]
    fn releasing_twice_does_not_give_an_index_out_twice() {
        let mut slots = SlotAllocator::new();
        let a = slots.allocate();
        slots.release(a);
        slots.release(a);
        assert_ne!(slots.allocate(), slots.allocate());
    }

    #[test]
    fn the_lowest_free_index_is_given_out_first() {
        let mut slots = SlotAllocator::new();
        let all: Vec<_> = (0..4).map(|_| slots.allocate()).collect();
        slots.release(all[2]);
        slots.release(all[1]);
        slots.release(all[3]);
        assert_eq!(slots.allocate().index, 1);
    }
}
