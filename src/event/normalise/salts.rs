//! The salt that each block is cached under, for the blocks that follow it.

use std::sync::Arc;

use ahash::AHashMap;

use super::Learned;
use crate::event::{EngineHash, Rejection, Tier};

/// Bytes that one rank's salts may take, as counted by [`ENTRY_BYTES`] and the texts: a million blocks or so.
const LIMIT_BYTES: usize = 64 << 20;

/// What one remembered block is counted as: its entry, and the map's slack.
const ENTRY_BYTES: usize = 64;

/// Engine names of resident blocks that have a salt, with the salt. Blocks without one are not in it.
///
/// An engine names the salt at the head of a chain only, so a block that continues one gets its parent's. An entry
/// goes when the last copy of its block is removed, in whichever tier it lies; forgetting it with the first of two
/// copies would make the continuations of the other pass for unsalted. Copies reported twice make an entry stay
/// longer than its block, which costs memory and nothing else.
///
/// At the limit further blocks are not remembered, and those that are stay: a chain already stored is correct, its
/// later continuations are hashed without a salt and sit below blocks that no unsalted prompt reaches, so they are
/// missed and never wrongly credited.
#[derive(Debug, Default)]
pub(super) struct SaltMemory {
    blocks: AHashMap<EngineHash, Entry>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    /// `None` once the block was stored under two: what follows it could be either's.
    salt: Option<Arc<str>>,
    /// Copies by tier.
    copies: [u16; Tier::ALL.len()],
}

/// A salt, on its way from an event or a parent to the blocks of a store.
#[derive(Clone, Debug)]
pub(super) struct Salt {
    text: Arc<str>,
    /// Not yet counted in [`SaltMemory::bytes`].
    fresh: bool,
}

impl Salt {
    pub(super) fn new(text: &str) -> Self {
        Self { text: Arc::from(text), fresh: true }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }
}

impl SaltMemory {
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// The salt of a block, for its continuation.
    pub(super) fn of(&self, block: EngineHash) -> Result<Option<Salt>, Rejection> {
        match self.blocks.get(&block) {
            None => Ok(None),
            Some(Entry { salt: Some(text), .. }) => Ok(Some(Salt { text: Arc::clone(text), fresh: false })),
            Some(Entry { salt: None, .. }) => Err(Rejection::AmbiguousCacheNamespace),
        }
    }

    /// Another copy of each of `blocks`, cached under `salt` or under none. Whether all that have one were remembered.
    pub(super) fn store(&mut self, blocks: &[EngineHash], salt: Option<Salt>, tier: Tier) -> bool {
        let mut all = true;
        if salt.is_none() && self.blocks.is_empty() {
            return all;
        }
        let salt = salt.map(|salt| self.count(salt));
        for &block in blocks {
            if let Some(entry) = self.blocks.get_mut(&block) {
                entry.add(tier);
                if entry.salt != salt {
                    let contradicted = entry.salt.take();
                    self.release(contradicted);
                }
            } else if let Some(text) = &salt {
                all &= self.remember(block, text, tier);
            }
        }
        self.release(salt);
        all
    }

    /// Another copy of each of `blocks`, from a store that names them only and so says nothing of salts.
    pub(super) fn copy(&mut self, blocks: &[EngineHash], tier: Tier) {
        if !self.blocks.is_empty() {
            for block in blocks {
                if let Some(entry) = self.blocks.get_mut(block) {
                    entry.add(tier);
                }
            }
        }
    }

    /// A copy of each of `blocks` is gone, or all copies but `remaining` of each are.
    pub(super) fn remove(&mut self, blocks: &[EngineHash], remaining: Option<&[u32]>, tier: Tier) {
        if self.blocks.is_empty() {
            return;
        }
        for (at, block) in blocks.iter().enumerate() {
            let Some(entry) = self.blocks.get_mut(block) else { continue };
            let copies = &mut entry.copies[tier.index()];
            *copies = match remaining.and_then(|remaining| remaining.get(at)) {
                Some(&left) => u16::try_from(left).unwrap_or(u16::MAX),
                None => copies.saturating_sub(1),
            };
            if entry.copies == NO_COPIES {
                self.forget(*block);
            }
        }
    }

    /// Writes down every block.
    pub(super) fn write(&self, learned: &mut Learned) {
        let mut numbers: AHashMap<&str, u32> = AHashMap::new();
        for (&block, entry) in &self.blocks {
            let salt = entry.salt.as_ref().map(|text| {
                *numbers.entry(text).or_insert_with(|| {
                    learned.salts.push(Arc::clone(text));
                    learned.salts.len() as u32 - 1
                })
            });
            learned.blocks.push((block, salt, entry.copies));
        }
    }

    /// Remembers what was written down, as far as there is room.
    pub(super) fn resume(&mut self, learned: &Learned) {
        let mut counted = vec![false; learned.salts.len()];
        for &(block, salt, copies) in &learned.blocks {
            let text = salt.and_then(|salt| learned.salts.get(salt as usize));
            let fresh = salt.and_then(|salt| counted.get_mut(salt as usize));
            let is_fresh = fresh.is_some_and(|counted| !std::mem::replace(counted, true));
            let more = ENTRY_BYTES + text.filter(|_| is_fresh).map_or(0, |text| text.len());
            if self.bytes + more > LIMIT_BYTES {
                return;
            }
            self.bytes += more;
            self.blocks.insert(block, Entry { salt: text.map(Arc::clone), copies });
        }
    }

    /// Everything in a tier is gone, or everything.
    pub(super) fn clear(&mut self, tier: Option<Tier>) {
        let Some(tier) = tier else {
            *self = Self::default();
            return;
        };
        let mut gone = Vec::new();
        for (&block, entry) in &mut self.blocks {
            entry.copies[tier.index()] = 0;
            if entry.copies == NO_COPIES {
                gone.push(block);
            }
        }
        for block in gone {
            self.forget(block);
        }
    }

    fn remember(&mut self, block: EngineHash, salt: &Arc<str>, tier: Tier) -> bool {
        if self.bytes + ENTRY_BYTES > LIMIT_BYTES {
            return false;
        }
        self.bytes += ENTRY_BYTES;
        let mut entry = Entry { salt: Some(Arc::clone(salt)), copies: NO_COPIES };
        entry.add(tier);
        self.blocks.insert(block, entry);
        true
    }

    fn forget(&mut self, block: EngineHash) {
        if let Some(entry) = self.blocks.remove(&block) {
            self.bytes = self.bytes.saturating_sub(ENTRY_BYTES);
            self.release(entry.salt);
        }
    }

    fn count(&mut self, salt: Salt) -> Arc<str> {
        if salt.fresh {
            self.bytes = self.bytes.saturating_add(salt.text.len());
        }
        salt.text
    }

    /// Lets go of one hold on a text; the last one takes its bytes off the account.
    fn release(&mut self, text: Option<Arc<str>>) {
        if let Some(text) = text
            && Arc::strong_count(&text) == 1
        {
            self.bytes = self.bytes.saturating_sub(text.len());
        }
    }
}

const NO_COPIES: [u16; Tier::ALL.len()] = [0; Tier::ALL.len()];

impl Entry {
    const fn add(&mut self, tier: Tier) {
        let copies = &mut self.copies[tier.index()];
        *copies = copies.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: EngineHash = EngineHash(1);
    const B: EngineHash = EngineHash(2);

    fn salt_of(memory: &SaltMemory, block: EngineHash) -> Option<String> {
        memory.of(block).unwrap().map(|salt| salt.text().to_owned())
    }

    #[test]
    fn a_salt_lives_as_long_as_a_copy_of_its_block() {
        let mut memory = SaltMemory::default();
        assert!(memory.store(&[A, B], Some(Salt::new("s")), Tier::Gpu));
        memory.store(&[A], Some(Salt::new("s")), Tier::Gpu);
        memory.copy(&[A, EngineHash(9)], Tier::Host);
        memory.remove(&[A, B], None, Tier::Gpu);
        assert_eq!((salt_of(&memory, A), salt_of(&memory, B)), (Some("s".to_owned()), None));
        memory.remove(&[A], None, Tier::Gpu);
        assert_eq!(salt_of(&memory, A).as_deref(), Some("s"));
        memory.remove(&[A], None, Tier::Host);
        assert_eq!((memory.len(), memory.bytes), (0, 0));
    }

    #[test]
    fn what_the_engine_says_remains_overrides_the_count() {
        let mut memory = SaltMemory::default();
        memory.store(&[A, B], Some(Salt::new("s")), Tier::Gpu);
        memory.store(&[B], Some(Salt::new("s")), Tier::Gpu);
        memory.remove(&[A, B], Some(&[1, 0]), Tier::Gpu);
        assert_eq!((salt_of(&memory, A).as_deref(), memory.len()), (Some("s"), 1));
    }

    #[test]
    fn a_block_under_two_salts_is_ambiguous_until_it_goes() {
        for second in [Some(Salt::new("t")), None] {
            let mut memory = SaltMemory::default();
            memory.store(&[A], Some(Salt::new("s")), Tier::Gpu);
            memory.store(&[A], second, Tier::Gpu);
            assert_eq!(memory.of(A).unwrap_err(), Rejection::AmbiguousCacheNamespace);
            memory.remove(&[A], Some(&[0]), Tier::Gpu);
            assert_eq!((salt_of(&memory, A), memory.bytes), (None, 0));
        }
    }

    #[test]
    fn clearing_a_tier_leaves_the_others() {
        let mut memory = SaltMemory::default();
        memory.store(&[A, B], Some(Salt::new("s")), Tier::Gpu);
        memory.copy(&[B], Tier::Host);
        memory.clear(Some(Tier::Gpu));
        assert_eq!((salt_of(&memory, A), salt_of(&memory, B)), (None, Some("s".to_owned())));
        memory.clear(None);
        assert_eq!((memory.len(), memory.bytes), (0, 0));
    }

    #[test]
    fn at_the_limit_new_blocks_are_not_remembered_and_old_ones_stay() {
        let mut memory = SaltMemory::default();
        let long = "x".repeat(LIMIT_BYTES / 2);
        assert!(memory.store(&[A], Some(Salt::new(&long)), Tier::Gpu));
        assert!(!memory.store(&[B], Some(Salt::new(&long)), Tier::Gpu));
        assert_eq!((memory.len(), memory.bytes), (1, long.len() + ENTRY_BYTES));
        assert!(salt_of(&memory, A).is_some());
        memory.remove(&[A], None, Tier::Gpu);
        assert!(memory.store(&[B], Some(Salt::new(&long)), Tier::Gpu));
    }
}
