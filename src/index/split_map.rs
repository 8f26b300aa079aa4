//! A hash map that grows a little at a time.
//!
//! A usual one moves all of its entries when it gets too small, and whoever waits for the writer waits for that. This one is a
//! directory of small maps by the leading bits of the hash, of which only the one that is full is split.

use std::{collections::hash_map::Entry, hash::Hash, iter::FlatMap, vec};

use ahash::{AHashMap, RandomState};

/// Entries of a part: at the next one it is split.
const FULL: usize = 512;

/// Maps keys to values. Empty, it has nothing allocated.
#[derive(Debug)]
pub(in crate::index) struct SplitMap<K, V> {
    /// Random, so that nobody can make keys that all belong to one part.
    hasher: RandomState,
    bits: u32,
    /// By the leading bits of the hash.
    directory: Vec<u32>,
    #[allow(clippy::vec_box, reason = "apart, so that one more of many moves eight bytes of each")]
    parts: Vec<Box<Part<K, V>>>,
    entries: usize,
}

/// The entries whose hashes begin with the same `bits` bits.
#[derive(Debug)]
pub(in crate::index) struct Part<K, V> {
    bits: u32,
    map: AHashMap<K, V>,
}

impl<K, V> Default for SplitMap<K, V> {
    fn default() -> Self {
        Self { hasher: RandomState::new(), bits: 0, directory: Vec::new(), parts: Vec::new(), entries: 0 }
    }
}

impl<K: Hash + Eq, V> SplitMap<K, V> {
    pub(in crate::index) fn len(&self) -> usize {
        self.entries
    }

    pub(in crate::index) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// About how much memory it takes, beside what the values themselves point to: parts are a quarter to nearly full.
    pub(in crate::index) fn bytes(&self) -> usize {
        self.entries * 2 * (size_of::<(K, V)>() + 1)
    }

    pub(in crate::index) fn get(&self, key: &K) -> Option<&V> {
        self.parts.get(self.part(key)?)?.map.get(key)
    }

    pub(in crate::index) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let part = self.part(key)?;
        self.parts.get_mut(part)?.map.get_mut(key)
    }

    pub(in crate::index) fn contains_key(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    /// Adds or replaces; what was there before.
    pub(in crate::index) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let part = self.part_with_room(&key);
        let before = self.parts[part].map.insert(key, value);
        self.entries += usize::from(before.is_none());
        before
    }

    pub(in crate::index) fn remove(&mut self, key: &K) -> Option<V> {
        let part = self.part(key)?;
        let gone = self.parts[part].map.remove(key);
        self.entries -= usize::from(gone.is_some());
        gone
    }

    /// The value of a key, which is a default one if there was none.
    pub(in crate::index) fn get_or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        let part = self.part_with_room(&key);
        match self.parts[part].map.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                self.entries += 1;
                entry.insert(V::default())
            }
        }
    }

    pub(in crate::index) fn retain(&mut self, mut stays: impl FnMut(&K, &mut V) -> bool) {
        for part in &mut self.parts {
            let before = part.map.len();
            part.map.retain(&mut stays);
            self.entries -= before - part.map.len();
        }
    }

    pub(in crate::index) fn keys(&self) -> impl Iterator<Item = &K> {
        self.parts.iter().flat_map(|part| part.map.keys())
    }

    pub(in crate::index) fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.parts.iter_mut().flat_map(|part| &mut part.map)
    }

    fn part(&self, key: &K) -> Option<usize> {
        // Empty maps are common, and most are small.
        match self.parts.len() {
            0 => None,
            1 => Some(0),
            _ => Some(self.directory[leading(self.hasher.hash_one(key), self.bits)] as usize),
        }
    }

    /// The part of a key, after splits if it was full.
    fn part_with_room(&mut self, key: &K) -> usize {
        if self.parts.is_empty() {
            self.parts.push(Box::new(Part { bits: 0, map: AHashMap::new() }));
            self.directory.push(0);
        }
        let hash = self.hasher.hash_one(key);
        loop {
            let part = self.directory[leading(hash, self.bits)] as usize;
            // A part whose entries have equal hashes, which nobody can arrange, would never get smaller.
            if self.parts[part].map.len() < FULL || self.parts[part].bits == 32 {
                return part;
            }
            self.split(part, hash);
        }
    }

    /// Splits the part that `hash` belongs to.
    fn split(&mut self, part: usize, hash: u64) {
        let bits = self.parts[part].bits;
        if bits == self.bits {
            self.directory = self.directory.iter().flat_map(|&part| [part, part]).collect();
            self.bits += 1;
        }
        let hasher = &self.hasher;
        let upper = |key: &K| hasher.hash_one(key) >> (63 - bits) & 1 == 1;
        // Room at once: from nothing, each half would grow six times.
        let half = || AHashMap::with_capacity(FULL / 2 + FULL / 8);
        let (mut above, mut below) = (half(), half());
        for (key, value) in std::mem::take(&mut self.parts[part].map) {
            if upper(&key) { &mut above } else { &mut below }.insert(key, value);
        }
        let added = self.parts.len();
        *self.parts[part] = Part { bits: bits + 1, map: below };
        self.parts.push(Box::new(Part { bits: bits + 1, map: above }));
        let width = 1 << (self.bits - bits - 1);
        let first = leading(hash, bits) << (self.bits - bits);
        self.directory[first + width..first + 2 * width].fill(added as u32);
    }
}

fn leading(hash: u64, bits: u32) -> usize {
    if bits == 0 { 0 } else { (hash >> (64 - bits)) as usize }
}

type IntoPart<K, V> = std::collections::hash_map::IntoIter<K, V>;

/// The entries of a map that is no more.
pub(in crate::index) type IntoIter<K, V> =
    FlatMap<vec::IntoIter<Box<Part<K, V>>>, IntoPart<K, V>, fn(Box<Part<K, V>>) -> IntoPart<K, V>>;

impl<K, V> IntoIterator for SplitMap<K, V> {
    type Item = (K, V);
    type IntoIter = IntoIter<K, V>;

    fn into_iter(self) -> IntoIter<K, V> {
        self.parts.into_iter().flat_map(|part| part.map.into_iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaves_like_a_map() {
        let mut map: SplitMap<u64, u64> = SplitMap::default();
        let mut model: AHashMap<u64, u64> = AHashMap::new();
        let mut rng = fastrand::Rng::with_seed(2);
        for step in 0..200_000 {
            let key = rng.u64(..60_000);
            match rng.u8(..5) {
                0 => assert_eq!(map.remove(&key), model.remove(&key)),
                1 => {
                    *map.get_or_default(key) += step;
                    *model.entry(key).or_default() += step;
                }
                2 => assert_eq!(map.get_mut(&key), model.get_mut(&key)),
                _ => assert_eq!(map.insert(key, step), model.insert(key, step)),
            }
            assert_eq!(map.get(&key), model.get(&key));
            assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()));
        }
        assert!(map.parts.len() > 64 && map.parts.iter().all(|part| part.map.len() <= FULL));
        map.retain(|key, _| key % 3 == 0);
        model.retain(|key, _| key % 3 == 0);
        assert!(map.iter_mut().all(|(key, value)| model.get(key) == Some(value)));
        assert_eq!(map.keys().count(), model.len());
        let entries: AHashMap<u64, u64> = map.into_iter().collect();
        assert_eq!(entries, model);
    }
}
