//! The order in which unreferenced blocks are reused.

/// A doubly linked list threaded through block numbers: O(1) at both ends and in the middle, because a prefix
/// hit takes blocks out of the middle.
#[derive(Debug)]
pub(super) struct FreeQueue {
    links: Vec<Link>,
    head: u32,
    tail: u32,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
}

const NONE: u32 = u32::MAX;

impl FreeQueue {
    /// All of `0..count`, lowest number first.
    pub(super) fn full(count: u32) -> Self {
        let links = vec![Link { previous: NONE, next: NONE }; count as usize];
        let mut queue = Self { links, head: NONE, tail: NONE, len: 0 };
        for block in 0..count {
            queue.push_back(block);
        }
        queue
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push_back(&mut self, block: u32) {
        self.links[block as usize] = Link { previous: self.tail, next: NONE };
        match self.tail {
            NONE => self.head = block,
            tail => self.links[tail as usize].next = block,
        }
        self.tail = block;
        self.len += 1;
    }

    pub(super) fn push_front(&mut self, block: u32) {
        self.links[block as usize] = Link { previous: NONE, next: self.head };
        match self.head {
            NONE => self.tail = block,
            head => self.links[head as usize].previous = block,
        }
        self.head = block;
        self.len += 1;
    }

    pub(super) fn pop_front(&mut self) -> Option<u32> {
        let block = self.head;
        if block == NONE {
            return None;
        }
        self.remove(block);
        Some(block)
    }

    /// Takes out a block that must be queued: removing one that is not would corrupt the links.
    pub(super) fn remove(&mut self, block: u32) {
        let Link { previous, next } = self.links[block as usize];
        match previous {
            NONE => self.head = next,
            previous => self.links[previous as usize].next = next,
        }
        match next {
            NONE => self.tail = previous,
            next => self.links[next as usize].previous = previous,
        }
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::FreeQueue;

    #[test]
    fn keeps_order_through_both_ends_and_the_middle() {
        let mut queue = FreeQueue::full(4);
        queue.remove(2);
        assert_eq!(queue.pop_front(), Some(0));
        queue.push_front(2);
        queue.push_back(0);
        assert_eq!(queue.len(), 4);
        let drained: Vec<_> = std::iter::from_fn(|| queue.pop_front()).collect();
        assert_eq!(drained, [2, 1, 3, 0]);
        assert_eq!(queue.len(), 0);
    }
}
