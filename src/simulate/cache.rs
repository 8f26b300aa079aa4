//! A paged prefix cache.

use std::collections::BTreeMap;

use ahash::AHashMap;

use crate::hash::SequenceHash;

/// Pages of one engine. Named ones can be found again; private ones are a partial prompt's or an output's. What nobody
/// uses is kept until its room is needed, the least recently used first.
#[derive(Debug)]
pub(super) struct Cache {
    capacity: usize,
    named: AHashMap<SequenceHash, Page>,
    /// Named pages that nobody uses, by when they were last.
    idle: BTreeMap<u64, SequenceHash>,
    private: usize,
    clock: u64,
    /// Pages dropped since the last step.
    dropped: Vec<SequenceHash>,
}

#[derive(Clone, Copy, Debug)]
struct Page {
    users: u32,
    /// Its place in `idle` while it has none.
    idle_since: u64,
}

impl Cache {
    pub(super) fn new(capacity: usize) -> Self {
        let (named, idle) = (AHashMap::new(), BTreeMap::new());
        Self { capacity, named, idle, private: 0, clock: 0, dropped: Vec::new() }
    }

    /// How many leading pages of `sequence` are there.
    pub(super) fn matched(&self, sequence: &[SequenceHash]) -> usize {
        sequence.iter().take_while(|hash| self.named.contains_key(hash)).count()
    }

    /// One more sequence uses a page that is there.
    pub(super) fn pin(&mut self, hash: SequenceHash) {
        let Some(page) = self.named.get_mut(&hash) else { return };
        if page.users == 0 {
            self.idle.remove(&page.idle_since);
        }
        page.users += 1;
    }

    /// One sequence fewer does.
    fn unpin(&mut self, hash: SequenceHash) {
        let Some(page) = self.named.get_mut(&hash) else { return };
        page.users = page.users.saturating_sub(1);
        if page.users == 0 {
            self.clock += 1;
            page.idle_since = self.clock;
            self.idle.insert(self.clock, hash);
        }
    }

    /// Makes room for `pages` private ones; all of them or none.
    pub(super) fn reserve(&mut self, pages: usize) -> bool {
        let free = self.capacity.saturating_sub(self.named.len() + self.private);
        if free + self.idle.len() < pages {
            return false;
        }
        for _ in free..pages {
            if let Some((_, hash)) = self.idle.pop_first() {
                self.named.remove(&hash);
                self.dropped.push(hash);
            }
        }
        self.private += pages;
        true
    }

    /// A private page gets its name, so that others find it; whether it is the first of that name. Of two the second is
    /// given up, and its owner uses the first.
    pub(super) fn name(&mut self, hash: SequenceHash) -> bool {
        self.private = self.private.saturating_sub(1);
        if self.named.contains_key(&hash) {
            self.pin(hash);
            return false;
        }
        self.named.insert(hash, Page { users: 1, idle_since: 0 });
        true
    }

    /// A sequence gives its pages back. The end of it is the first to be dropped later.
    pub(super) fn release(&mut self, named: &[SequenceHash], private: usize) {
        named.iter().rev().for_each(|&hash| self.unpin(hash));
        self.private = self.private.saturating_sub(private);
    }

    /// The share of its pages that sequences use.
    pub(super) fn usage(&self) -> f64 {
        let used = self.named.len() - self.idle.len() + self.private;
        if self.capacity == 0 { 1.0 } else { used as f64 / self.capacity as f64 }
    }

    pub(super) fn take_dropped(&mut self) -> Vec<SequenceHash> {
        std::mem::take(&mut self.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(from: u64, count: u64) -> Vec<SequenceHash> {
        (from..from + count).map(SequenceHash).collect()
    }

    fn fill(cache: &mut Cache, pages: &[SequenceHash]) {
        assert!(cache.reserve(pages.len()));
        assert!(pages.iter().all(|&page| cache.name(page)));
    }

    #[test]
    fn a_sequence_s_end_is_dropped_first() {
        let mut cache = Cache::new(4);
        let first = hashes(0, 3);
        fill(&mut cache, &first);
        assert!(!cache.reserve(2), "pages in use stay");
        cache.release(&first, 0);
        assert_eq!(cache.matched(&first), 3);
        assert!(cache.reserve(2));
        assert_eq!((cache.matched(&first), cache.take_dropped()), (2, vec![SequenceHash(2)]));
    }

    #[test]
    fn two_that_compute_the_same_page_share_it() {
        let mut cache = Cache::new(4);
        let page = hashes(7, 1);
        fill(&mut cache, &page);
        assert!(cache.reserve(1));
        assert!(!cache.name(page[0]));
        cache.release(&page, 0);
        assert!(cache.reserve(3) && !cache.reserve(1), "one page, still used by the other");
        cache.release(&page, 3);
        assert!(cache.reserve(4));
    }
}
