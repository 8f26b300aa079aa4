//! Where a name leads: engine hash -> (run, offset). The writer's own.
//!
//! Extendible hashing in segments, so that growth moves a few thousand entries at a time.

use super::name_segment::{FIRST_BITS, FULL, Segment};

/// Names whose buckets are asked for ahead.
const AHEAD: usize = 24;

/// Where the names of blocks are kept.
pub(in crate::index) trait Names {
    fn name(&self, run: u32, offset: u32) -> u64;
    fn prefetch_name(&self, run: u32, offset: u32);
}

/// Names and the blocks that carry them: each name once.
pub(in crate::index) struct NameTable {
    /// The number of leading bits that tell places in the directory.
    bits: u32,
    directory: Vec<u32>,
    segments: Vec<Segment>,
    key: u64,
}

#[inline(always)]
fn leading(hash: u64, bits: u32) -> usize {
    (hash >> (64 - bits)) as usize
}

impl NameTable {
    /// An empty table. `key` makes which names collide unpredictable.
    pub(in crate::index) fn new(key: u64) -> Self {
        Self {
            // A table of one segment would split often while it is small.
            bits: FIRST_BITS,
            directory: (0..1 << FIRST_BITS).collect(),
            segments: (0..1 << FIRST_BITS).map(|_| Segment::new(FIRST_BITS)).collect(),
            // The model checker repeats itself exactly or not at all.
            key: if cfg!(loom) { 0 } else { key },
        }
    }

    pub(in crate::index) fn bytes(&self) -> usize {
        self.segments.len() * Segment::BYTES + self.directory.len() * size_of::<u32>()
    }

    #[inline(always)]
    pub(in crate::index) fn hash(&self, name: u64) -> u64 {
        super::shared::fold(name ^ self.key, 0x9e37_79b9_7f4a_7c15)
    }

    /// Which segment the entry of a hash is in.
    #[inline(always)]
    fn number(&self, hash: u64) -> usize {
        self.directory[leading(hash, self.bits)] as usize
    }

    #[inline(always)]
    fn segment(&self, hash: u64) -> &Segment {
        &self.segments[self.number(hash)]
    }

    #[inline(always)]
    fn segment_mut(&mut self, hash: u64) -> &mut Segment {
        let number = self.number(hash);
        &mut self.segments[number]
    }

    /// The block that carries `name`.
    #[inline(always)]
    pub(in crate::index) fn get(&self, name: u64, names: &impl Names) -> Option<(u32, u32)> {
        let hash = self.hash(name);
        self.segment(hash).find(hash, |run, offset| names.name(run, offset) == name)
    }

    /// Adds a name, or returns where it leads.
    #[inline(always)]
    pub(in crate::index) fn insert(
        &mut self,
        name: u64,
        run: u32,
        offset: u32,
        names: &impl Names,
    ) -> Result<(), (u32, u32)> {
        let (hash, place) = (self.hash(name), (run, offset));
        if self.segment_mut(hash).put_at_home(hash, place) {
            return Ok(());
        }
        self.insert_with_care(hash, name, place, names)
    }

    /// Adds the names of consecutive blocks, of which the first one is at `offset`, until one leads elsewhere; how many.
    #[inline(always)]
    pub(in crate::index) fn insert_chain(
        &mut self,
        chain: impl ExactSizeIterator<Item = u64> + Clone,
        run: u32,
        offset: u32,
        names: &impl Names,
    ) -> usize {
        const RING: usize = AHEAD.next_power_of_two();
        let mut hashes = [0; RING];
        let mut ahead = chain.clone();
        for (place, name) in hashes.iter_mut().zip(ahead.by_ref().take(AHEAD)) {
            *place = self.ask(name);
        }
        let count = chain.len();
        for (at, name) in chain.enumerate() {
            let hash = hashes[at % RING];
            if let Some(name) = ahead.next() {
                hashes[(at + AHEAD) % RING] = self.ask(name);
            }
            let place = (run, offset + at as u32);
            if !self.segment_mut(hash).put_at_home(hash, place)
                && self.insert_with_care(hash, name, place, names).is_err()
            {
                return at;
            }
        }
        count
    }

    /// As [`Self::insert`], for a name whose home bucket does not show that it is new.
    #[inline(never)]
    fn insert_with_care(
        &mut self,
        hash: u64,
        name: u64,
        place: (u32, u32),
        names: &impl Names,
    ) -> Result<(), (u32, u32)> {
        if let Some(place) = self.get(name, names) {
            return Err(place);
        }
        while self.segment(hash).is_full() {
            self.split(leading(hash, self.bits), names);
        }
        self.segment_mut(hash).put(hash, place);
        Ok(())
    }

    /// Takes out the entry of `name` for this block; there is one.
    #[inline(always)]
    pub(in crate::index) fn remove(&mut self, name: u64, run: u32, offset: u32) {
        let hash = self.hash(name);
        let was_there = self.segment_mut(hash).remove(hash, (run, offset));
        debug_assert!(was_there, "no entry for block {offset} of run {run}");
    }

    /// Asks for the bucket of a name; the name's hash.
    #[inline(always)]
    pub(in crate::index) fn ask(&self, name: u64) -> u64 {
        let hash = self.hash(name);
        self.segment(hash).ask(hash);
        hash
    }

    /// The block that probably carries the name of this hash, by what its home bucket says.
    #[inline(always)]
    pub(in crate::index) fn guess(&self, hash: u64) -> Option<(u32, u32)> {
        self.segment(hash).guess(hash)
    }

    /// Grows by one segment if the table is smaller than `entries` need; whether more calls would help.
    /// Splitting early is cheap: there is little to move.
    pub(in crate::index) fn grow_towards(&mut self, entries: usize, names: &impl Names) -> bool {
        // A table grown by splitting is level: all its segments fill up at about the same time.
        let wanted = entries.div_ceil(FULL as usize).next_power_of_two().ilog2();
        let is_shallow = |&segment: &u32| self.segments[segment as usize].bits() < wanted;
        let Some(shallow) = self.directory.iter().position(is_shallow) else {
            return false;
        };
        self.split(shallow, names);
        true
    }

    /// Splits the segment that has place `at` of the directory.
    fn split(&mut self, at: usize, names: &impl Names) {
        let old = self.directory[at] as usize;
        let bits = self.segments[old].bits();
        // Its places in the directory are next to each other; the upper half of them will lead to the new segment.
        let mut first = at >> (self.bits - bits) << (self.bits - bits);
        if bits == self.bits {
            self.directory = self.directory.iter().flat_map(|&segment| [segment, segment]).collect();
            self.bits += 1;
            first *= 2;
        }
        let added = self.segments.len();
        let width = 1 << (self.bits - bits - 1);
        self.directory[first + width..first + 2 * width].fill(added as u32);

        let mut unclear: Vec<(u32, u32)> = Vec::new();
        let upper = self.segments[old].split(&mut unclear);
        self.segments.push(upper);
        for (at, &(run, offset)) in unclear.iter().enumerate() {
            if let Some(&(run, offset)) = unclear.get(at + AHEAD) {
                names.prefetch_name(run, offset);
            }
            let hash = self.hash(names.name(run, offset));
            self.segment_mut(hash).put(hash, (run, offset));
        }
    }
}

#[cfg(test)]
mod tests {
    use ahash::AHashMap;

    use super::*;

    /// Names by place.
    #[derive(Default)]
    struct Blocks(AHashMap<(u32, u32), u64>);

    impl Names for Blocks {
        fn name(&self, run: u32, offset: u32) -> u64 {
            self.0[&(run, offset)]
        }
        fn prefetch_name(&self, _run: u32, _offset: u32) {}
    }

    #[test]
    fn behaves_like_a_map_through_growth_and_churn() {
        let mut table = NameTable::new(5);
        let mut blocks = Blocks::default();
        let mut places: AHashMap<u64, (u32, u32)> = AHashMap::new();
        let mut rng = fastrand::Rng::with_seed(11);
        for step in 0..60_000 {
            let name = rng.u64(..12_000).wrapping_mul(0xff51_afd7_ed55_8ccd);
            assert_eq!(table.get(name, &blocks), places.get(&name).copied());
            if let Some((run, offset)) = places.remove(&name) {
                table.remove(name, run, offset);
                blocks.0.remove(&(run, offset));
            } else {
                let place = (step, rng.u32(..32_000));
                blocks.0.insert(place, name);
                places.insert(name, place);
                assert_eq!(table.insert(name, place.0, place.1, &blocks), Ok(()));
                assert_eq!(table.insert(name, 0, 0, &blocks), Err(place));
            }
            if step % 200 == 0 {
                table.grow_towards(400_000, &blocks);
            }
        }
        let entries: u32 = table.segments.iter().map(Segment::entries).sum();
        assert_eq!(entries as usize, places.len());
        assert!(places.iter().all(|(&name, &place)| table.get(name, &blocks) == Some(place)));
    }

    #[test]
    fn searches_stay_short_when_a_full_table_churns() {
        let mut table = NameTable::new(5);
        let mut blocks = Blocks::default();
        let mut names: std::collections::VecDeque<u64> = std::collections::VecDeque::new();
        for name in 0..200_000_u64 {
            let place = (name as u32, 0);
            blocks.0.insert(place, name);
            assert_eq!(table.insert(name, place.0, 0, &blocks), Ok(()));
            names.push_back(name);
            if names.len() > (FULL as usize - 200) << FIRST_BITS {
                let old = names.pop_front().unwrap();
                table.remove(old, old as u32, 0);
                blocks.0.remove(&(old as u32, 0));
            }
        }
        // Exactly those entries are counted as passed that lie behind a bucket.
        assert_eq!(table.segments.len(), 1 << FIRST_BITS);
        let (mut passed, mut displaced) = (0, 0);
        let hash = |run, offset| table.hash(blocks.name(run, offset));
        for segment in &table.segments {
            let (own_passed, own_displaced) = segment.passed_and_displaced(hash);
            passed += own_passed;
            displaced += own_displaced;
        }
        assert_eq!(passed, displaced);
    }
}
