//! Where a name leads: engine hash -> (run, offset). The writer's own.
//!
//! Extendible hashing in segments, so that growth moves a few thousand entries at a time. A bucket is one cache line
//! of nine entries, without their names: those lie with the blocks, and an entry that looks right is verified there.
//! Sixteen bits of each hash are kept, so that hardly any looks right and is not. They are the bits that splits ask for, so
//! that a split reads no name but those of entries that lie behind their home bucket.

use super::prefetch;

const BUCKETS: usize = 256;
const WAYS: usize = 9;
/// Entries at which a segment is split. Above three quarters too many do not fit in their home bucket.
const FULL: u32 = (BUCKETS * WAYS * 3 / 4) as u32;
/// Leading bits of a hash that an empty table's segments are told by. A table of one would split often while it is small.
const FIRST_BITS: u32 = 1;
/// Names whose buckets are asked for ahead.
const AHEAD: usize = 24;

#[repr(C, align(64))]
struct Bucket {
    /// A byte of the hash, never 0; 0 is a free way.
    tags: [u8; WAYS],
    /// Entries that did not fit here or before and lie further on; a search that meets 0 is at its end.
    /// Sticks at 255.
    passed: u8,
    /// The highest bit says that the entry lies behind its home bucket.
    offsets: [u16; WAYS],
    /// Another byte of the hash << 24 | the run.
    runs: [u32; WAYS],
}

const DISPLACED: u16 = 1 << 15;
const _: () = assert!(super::run::MAX_RUN <= DISPLACED as u32, "an offset leaves the highest bit free");
/// Bits of a run's number; the rest of the word is the hash's.
const RUN_BITS: u32 = 24;
/// Of the leading bits of a hash, those before this one lie in its entry, from [`FIRST_BITS`] on: a byte with the run, and all
/// of the tag but its last bit, which may be another so that the tag is not 0.
const KEPT_END: u32 = FIRST_BITS + 15;

type Buckets = Box<[Bucket; BUCKETS]>;

struct Segment {
    buckets: Buckets,
    /// Leading bits that the hashes here have in common.
    bits: u32,
    entries: u32,
}

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

fn empty_buckets() -> Buckets {
    // SAFETY: zeroes are empty buckets.
    unsafe { Box::new_zeroed().assume_init() }
}

/// Puts an entry into the first free way from its home on.
fn put(buckets: &mut [Bucket; BUCKETS], hash: u64, run: u32, offset: u32) {
    let mut at = home(hash);
    let mut displaced = 0;
    loop {
        let bucket = &mut buckets[at];
        let free = bucket.matching(0);
        if free != 0 {
            bucket.set(free.trailing_zeros() as usize, hash, run, offset as u16 | displaced);
            return;
        }
        bucket.passed = bucket.passed.saturating_add(1);
        displaced = DISPLACED;
        at = (at + 1) % BUCKETS;
    }
}

/// Frees a way, which the entry of `hash` has.
#[inline(always)]
fn clear_way(buckets: &mut [Bucket; BUCKETS], hash: u64, (bucket, way): (usize, usize)) {
    buckets[bucket].tags[way] = 0;
    let mut at = home(hash);
    while at != bucket {
        let passed = &mut buckets[at].passed;
        if *passed < u8::MAX {
            *passed -= 1;
        }
        at = (at + 1) % BUCKETS;
    }
}

impl Bucket {
    /// The ways with this tag, as bits.
    #[inline(always)]
    fn matching(&self, tag: u8) -> u32 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: SSE2 is part of x86-64, and a bucket begins with 16 readable bytes.
        unsafe {
            use core::arch::x86_64::{_mm_cmpeq_epi8, _mm_load_si128, _mm_movemask_epi8, _mm_set1_epi8};
            let bytes = _mm_load_si128(std::ptr::from_ref(self).cast());
            let equal = _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(tag.cast_signed())));
            equal.cast_unsigned() & ((1 << WAYS) - 1)
        }
        #[cfg(not(target_arch = "x86_64"))]
        self.tags.iter().rev().fold(0, |bits, &own| bits << 1 | u32::from(own == tag))
    }

    #[inline(always)]
    fn place(&self, way: usize) -> (u32, u32) {
        (self.runs[way] & ((1 << RUN_BITS) - 1), u32::from(self.offsets[way] & !DISPLACED))
    }

    #[inline(always)]
    fn kept(&self, way: usize) -> u32 {
        self.runs[way] >> RUN_BITS
    }

    #[inline(always)]
    fn set(&mut self, way: usize, hash: u64, run: u32, offset: u16) {
        self.tags[way] = tag(hash);
        self.offsets[way] = offset;
        self.runs[way] = kept(hash) << RUN_BITS | run;
    }

    /// The ways that have an entry, as bits.
    #[inline(always)]
    fn taken(&self) -> u32 {
        !self.matching(0) & ((1 << WAYS) - 1)
    }

    /// Those of which the entry lies behind its home bucket.
    #[inline(always)]
    fn displaced(&self) -> u32 {
        let marked = |way: usize| u32::from(self.offsets[way] >> DISPLACED.ilog2()) << way;
        (0..WAYS).fold(0, |bits, way| bits | marked(way)) & self.taken()
    }

    /// Moves those entries to the front of an empty bucket whose hash has a one at `bit`, counted from its beginning; how
    /// many.
    #[inline(always)]
    fn move_ones(&mut self, to: &mut Self, bit: u32) -> u32 {
        let shift = KEPT_END - bit;
        let mut free = 0;
        // Which half an entry goes to is a coin's toss: no jump depends on it. What stays is copied too and has no tag.
        for way in 0..WAYS {
            let bits = self.kept(way) << 8 | u32::from(self.tags[way]);
            let goes = (bits >> shift & 1) as u8 & u8::from(self.tags[way] != 0);
            let mask = 0_u8.wrapping_sub(goes);
            to.tags[free] = self.tags[way] & mask;
            to.offsets[free] = self.offsets[way];
            to.runs[free] = self.runs[way];
            self.tags[way] &= !mask;
            free += goes as usize;
        }
        free as u32
    }
}

#[inline(always)]
fn home(hash: u64) -> usize {
    hash as usize % BUCKETS
}

/// The bits of the hash that lie with the run's number.
#[inline(always)]
fn kept(hash: u64) -> u32 {
    (hash >> (56 - FIRST_BITS)) as u32 & 0xff
}

/// The eight bits of the hash after those.
#[inline(always)]
fn tag(hash: u64) -> u8 {
    ((hash >> (48 - FIRST_BITS)) as u8).max(1)
}

#[inline(always)]
fn leading(hash: u64, bits: u32) -> usize {
    (hash >> (64 - bits)) as usize
}

fn ways(mut bits: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let way = (bits != 0).then(|| bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        way
    })
}

impl NameTable {
    /// An empty table. `key` makes which names collide unpredictable.
    pub(in crate::index) fn new(key: u64) -> Self {
        let empty = |_| Segment { buckets: empty_buckets(), bits: FIRST_BITS, entries: 0 };
        Self {
            bits: FIRST_BITS,
            directory: (0..1 << FIRST_BITS).collect(),
            segments: (0..1 << FIRST_BITS).map(empty).collect(),
            // The model checker repeats itself exactly or not at all.
            key: if cfg!(loom) { 0 } else { key },
        }
    }

    pub(in crate::index) fn bytes(&self) -> usize {
        self.segments.len() * BUCKETS * size_of::<Bucket>() + self.directory.len() * size_of::<u32>()
    }

    #[inline(always)]
    pub(in crate::index) fn hash(&self, name: u64) -> u64 {
        super::shared::fold(name ^ self.key, 0x9e37_79b9_7f4a_7c15)
    }

    #[inline(always)]
    fn segment(&self, hash: u64) -> usize {
        self.directory[leading(hash, self.bits)] as usize
    }

    /// The bucket and the way of the entry that `is_it` says is the one.
    #[inline(always)]
    fn spot(
        buckets: &[Bucket; BUCKETS],
        hash: u64,
        is_it: impl Fn(u32, u32) -> bool,
    ) -> Option<(usize, usize)> {
        let (tag, kept) = (tag(hash), kept(hash));
        let mut at = home(hash);
        for _ in 0..BUCKETS {
            let bucket = &buckets[at];
            for way in ways(bucket.matching(tag)) {
                let (run, offset) = bucket.place(way);
                if bucket.kept(way) == kept && is_it(run, offset) {
                    return Some((at, way));
                }
            }
            if bucket.passed == 0 {
                return None;
            }
            at = (at + 1) % BUCKETS;
        }
        None
    }

    /// The block that carries `name`.
    #[inline(always)]
    pub(in crate::index) fn get(&self, name: u64, names: &impl Names) -> Option<(u32, u32)> {
        let hash = self.hash(name);
        let buckets = &self.segments[self.segment(hash)].buckets;
        let (bucket, way) = Self::spot(buckets, hash, |run, offset| names.name(run, offset) == name)?;
        Some(buckets[bucket].place(way))
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
        self.insert_hashed(self.hash(name), name, (run, offset), names)
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
            if self.insert_hashed(hash, name, (run, offset + at as u32), names).is_err() {
                return at;
            }
        }
        count
    }

    #[inline(always)]
    fn insert_hashed(
        &mut self,
        hash: u64,
        name: u64,
        (run, offset): (u32, u32),
        names: &impl Names,
    ) -> Result<(), (u32, u32)> {
        let at = self.segment(hash);
        let segment = &mut self.segments[at];
        let bucket = &mut segment.buckets[home(hash)];
        let free = bucket.matching(0);
        // Nearly always nothing in the home bucket looks like it, nothing lies behind, and there is room.
        if bucket.matching(tag(hash)) == 0 && bucket.passed == 0 && free != 0 && segment.entries < FULL {
            bucket.set(free.trailing_zeros() as usize, hash, run, offset as u16);
            segment.entries += 1;
            return Ok(());
        }
        self.insert_with_care(hash, name, (run, offset), names)
    }

    #[inline(never)]
    fn insert_with_care(
        &mut self,
        hash: u64,
        name: u64,
        (run, offset): (u32, u32),
        names: &impl Names,
    ) -> Result<(), (u32, u32)> {
        if let Some(place) = self.get(name, names) {
            return Err(place);
        }
        while self.segments[self.segment(hash)].entries >= FULL {
            self.split(leading(hash, self.bits), names);
        }
        let at = self.segment(hash);
        let segment = &mut self.segments[at];
        put(&mut segment.buckets, hash, run, offset);
        segment.entries += 1;
        Ok(())
    }

    /// Takes out the entry of `name` for this block; there is one.
    #[inline(always)]
    pub(in crate::index) fn remove(&mut self, name: u64, run: u32, offset: u32) {
        let hash = self.hash(name);
        let at = self.segment(hash);
        let segment = &mut self.segments[at];
        let Some(spot) = Self::spot(&segment.buckets, hash, |r, o| (r, o) == (run, offset)) else {
            debug_assert!(false, "no entry for block {offset} of run {run}");
            return;
        };
        clear_way(&mut segment.buckets, hash, spot);
        segment.entries -= 1;
    }

    /// Asks for the bucket of a name; the name's hash.
    #[inline(always)]
    pub(in crate::index) fn ask(&self, name: u64) -> u64 {
        let hash = self.hash(name);
        prefetch(&raw const self.segments[self.segment(hash)].buckets[home(hash)]);
        hash
    }

    /// The block that probably carries the name of this hash, by what its home bucket says.
    #[inline(always)]
    pub(in crate::index) fn guess(&self, hash: u64) -> Option<(u32, u32)> {
        let (bucket, kept) = (&self.segments[self.segment(hash)].buckets[home(hash)], kept(hash));
        let way = ways(bucket.matching(tag(hash))).find(|&way| bucket.kept(way) == kept);
        way.map(|way| bucket.place(way))
    }

    /// Grows by one segment if the table is smaller than `entries` need; whether more calls would help.
    /// Splitting early is cheap: there is little to move.
    pub(in crate::index) fn grow_towards(&mut self, entries: usize, names: &impl Names) -> bool {
        // A table grown by splitting is level: all its segments fill up at about the same time.
        let wanted = entries.div_ceil(FULL as usize).next_power_of_two().ilog2();
        let is_shallow = |&segment: &u32| self.segments[segment as usize].bits < wanted;
        let Some(shallow) = self.directory.iter().position(is_shallow) else {
            return false;
        };
        self.split(shallow, names);
        true
    }

    /// Splits the segment that has place `at` of the directory.
    fn split(&mut self, at: usize, names: &impl Names) {
        let old = self.directory[at] as usize;
        let bits = self.segments[old].bits;
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

        let mut upper = empty_buckets();
        // Entries whose home or half is not known without their names come last.
        let mut unclear: Vec<(u32, u32)> = Vec::new();
        let mut moved = 0;
        let segment = &mut self.segments[old];
        for (from, to) in segment.buckets.iter_mut().zip(upper.iter_mut()) {
            from.passed = 0;
            for way in ways(if bits < KEPT_END { from.displaced() } else { from.taken() }) {
                unclear.push(from.place(way));
                from.tags[way] = 0;
            }
            // The others were in their home bucket, where there was room for all that come from there.
            moved += from.move_ones(to, bits);
        }
        segment.bits += 1;
        segment.entries -= moved + unclear.len() as u32;
        self.segments.push(Segment { buckets: upper, bits: bits + 1, entries: moved });
        for (at, &(run, offset)) in unclear.iter().enumerate() {
            if let Some(&(run, offset)) = unclear.get(at + AHEAD) {
                names.prefetch_name(run, offset);
            }
            let hash = self.hash(names.name(run, offset));
            let half = if hash >> (63 - bits) & 1 == 1 { added } else { old };
            let segment = &mut self.segments[half];
            put(&mut segment.buckets, hash, run, offset);
            segment.entries += 1;
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
        let entries: u32 = table.segments.iter().map(|segment| segment.entries).sum();
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
        for buckets in table.segments.iter().map(|segment| &segment.buckets) {
            passed += buckets.iter().map(|bucket| usize::from(bucket.passed)).sum::<usize>();
            let taken = (0..BUCKETS).flat_map(|at| ways(buckets[at].taken()).map(move |way| (at, way)));
            let far = |(at, way): (usize, usize)| {
                let (run, offset) = buckets[at].place(way);
                (at + BUCKETS - home(table.hash(blocks.name(run, offset)))) % BUCKETS
            };
            displaced += taken.map(far).sum::<usize>();
        }
        assert_eq!(passed, displaced);
    }
}
