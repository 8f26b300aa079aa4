//! Where a name leads: engine hash -> (run, offset). The writer's own.
//!
//! Extendible hashing in segments, so that growth moves a few thousand entries at a time. A bucket is one cache line
//! of nine entries, without their names: those lie with the blocks, and an entry that looks right is verified there.
//! Sixteen bits of each hash are kept, so that hardly any looks right and is not; eight of them also tell which half of a
//! split an entry goes to, so that most splits read no name.

use std::cell::Cell;

use super::prefetch;

const BUCKETS: usize = 256;
const WAYS: usize = 9;
/// Entries at which a segment is split. Above three quarters too many do not fit in their home bucket.
const FULL: usize = BUCKETS * WAYS * 3 / 4;
/// Entries whose names are asked for ahead while a segment is split.
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
/// Which leading bits of the hash are kept in that byte: those that the splits from 64 to 16,384 segments ask for.
const KEPT: std::ops::Range<u32> = 6..14;

/// What is counted for each segment.
#[derive(Clone, Copy)]
struct Segment {
    bits: u32,
    entries: u32,
}

type Buckets = Box<[Bucket; BUCKETS]>;

/// Where the names of blocks are kept.
pub(in crate::index) trait Names {
    fn name(&self, run: u32, offset: u32) -> u64;
    fn prefetch_name(&self, run: u32, offset: u32);
}

/// Names and the blocks that carry them: each name once.
pub(in crate::index) struct NameTable {
    bits: u32,
    directory: Vec<u32>,
    segments: Vec<Segment>,
    /// By segment.
    buckets: Vec<Buckets>,
    entries: usize,
    key: u64,
    /// What was found last: it is often what is removed next.
    last: Cell<Spot>,
}

#[derive(Clone, Copy, Default)]
struct Spot {
    segment: u32,
    bucket: u16,
    way: u16,
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
            let way = free.trailing_zeros() as usize;
            bucket.tags[way] = tag(hash);
            bucket.offsets[way] = offset as u16 | displaced;
            bucket.runs[way] = kept(hash) << RUN_BITS | run;
            return;
        }
        bucket.passed = bucket.passed.saturating_add(1);
        displaced = DISPLACED;
        at = (at + 1) % BUCKETS;
    }
}

/// Frees a way, which the entry of `hash` has.
fn clear_way(buckets: &mut [Bucket; BUCKETS], hash: u64, bucket: usize, way: usize) {
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
}

fn home(hash: u64) -> usize {
    (hash >> 8) as usize % BUCKETS
}

/// The bits of the hash that lie with the run's number.
#[inline(always)]
fn kept(hash: u64) -> u32 {
    (hash >> (64 - KEPT.end)) as u32 & 0xff
}

fn tag(hash: u64) -> u8 {
    (hash as u8).max(1)
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
        Self {
            bits: 0,
            directory: vec![0],
            segments: vec![Segment { bits: 0, entries: 0 }],
            buckets: vec![empty_buckets()],
            entries: 0,
            // The model checker repeats itself exactly or not at all.
            key: if cfg!(loom) { 0 } else { key },
            last: Cell::default(),
        }
    }

    pub(in crate::index) fn bytes(&self) -> usize {
        self.segments.len() * BUCKETS * size_of::<Bucket>() + self.directory.len() * size_of::<u32>()
    }

    #[inline(always)]
    fn hash(&self, name: u64) -> u64 {
        super::shared::fold(name ^ self.key, 0x9e37_79b9_7f4a_7c15)
    }

    #[inline(always)]
    fn segment(&self, hash: u64) -> usize {
        let at = if self.bits == 0 { 0 } else { (hash >> (64 - self.bits)) as usize };
        self.directory[at] as usize
    }

    #[inline(always)]
    fn spot(&self, hash: u64, is_it: impl Fn(u32, u32) -> bool) -> Option<Spot> {
        let segment = self.segment(hash);
        let (buckets, tag, kept) = (&self.buckets[segment], tag(hash), kept(hash));
        let mut at = home(hash);
        for _ in 0..BUCKETS {
            let bucket = &buckets[at];
            for way in ways(bucket.matching(tag)) {
                let (run, offset) = bucket.place(way);
                if bucket.kept(way) == kept && is_it(run, offset) {
                    return Some(Spot { segment: segment as u32, bucket: at as u16, way: way as u16 });
                }
            }
            if bucket.passed == 0 {
                return None;
            }
            at = (at + 1) % BUCKETS;
        }
        None
    }

    fn at(&self, spot: Spot) -> (u32, u32) {
        self.buckets[spot.segment as usize][spot.bucket as usize].place(spot.way as usize)
    }

    /// The block that carries `name`.
    #[inline(always)]
    pub(in crate::index) fn get(&self, name: u64, names: &impl Names) -> Option<(u32, u32)> {
        let spot = self.spot(self.hash(name), |run, offset| names.name(run, offset) == name)?;
        self.last.set(spot);
        Some(self.at(spot))
    }

    /// Adds a name that [`Self::get`] does not find, or returns where it leads.
    #[inline(always)]
    pub(in crate::index) fn insert(
        &mut self,
        name: u64,
        run: u32,
        offset: u32,
        names: &impl Names,
    ) -> Result<(), (u32, u32)> {
        if let Some(place) = self.get(name, names) {
            return Err(place);
        }
        let hash = self.hash(name);
        let mut segment = self.segment(hash);
        while self.segments[segment].entries >= FULL as u32 {
            self.split(segment, names);
            segment = self.segment(hash);
        }
        put(&mut self.buckets[segment], hash, run, offset);
        self.segments[segment].entries += 1;
        self.entries += 1;
        Ok(())
    }

    /// Takes out the entry of `name` for this block; there is one.
    #[inline(always)]
    pub(in crate::index) fn remove(&mut self, name: u64, run: u32, offset: u32) {
        let hash = self.hash(name);
        let last = self.last.get();
        let is_last = last.segment as usize == self.segment(hash)
            && self.at(last) == (run, offset)
            && self.buckets[last.segment as usize][last.bucket as usize].tags[last.way as usize] == tag(hash);
        let spot = if is_last { Some(last) } else { self.spot(hash, |r, o| (r, o) == (run, offset)) };
        let Some(spot) = spot else {
            debug_assert!(false, "no entry for block {offset} of run {run}");
            return;
        };
        let segment = spot.segment as usize;
        clear_way(&mut self.buckets[segment], hash, spot.bucket as usize, spot.way as usize);
        self.segments[segment].entries -= 1;
        self.entries -= 1;
    }

    /// Asks for the bucket of a name.
    #[inline(always)]
    pub(in crate::index) fn prefetch(&self, name: u64) {
        let hash = self.hash(name);
        prefetch(&raw const self.buckets[self.segment(hash)][home(hash)]);
    }

    /// The block that probably carries `name`, by what its home bucket says.
    #[inline(always)]
    pub(in crate::index) fn guess(&self, name: u64) -> Option<(u32, u32)> {
        let hash = self.hash(name);
        let (bucket, kept) = (&self.buckets[self.segment(hash)][home(hash)], kept(hash));
        let way = ways(bucket.matching(tag(hash))).find(|&way| bucket.kept(way) == kept);
        way.map(|way| bucket.place(way))
    }

    /// Grows by one segment if the table is smaller than `entries` need; whether more calls would help.
    /// Splitting early is cheap: there is little to move.
    pub(in crate::index) fn grow_towards(&mut self, entries: usize, names: &impl Names) -> bool {
        // A table grown by splitting is level: all its segments fill up at about the same time.
        let wanted = entries.div_ceil(FULL).next_power_of_two().ilog2();
        let Some(shallow) = self.segments.iter().position(|segment| segment.bits < wanted) else {
            return false;
        };
        self.split(shallow, names);
        true
    }

    fn split(&mut self, segment: usize, names: &impl Names) {
        let bits = self.segments[segment].bits;
        if bits == self.bits {
            self.directory = self.directory.iter().flat_map(|&segment| [segment, segment]).collect();
            self.bits += 1;
        }
        let added = self.segments.len();
        let mut upper = empty_buckets();
        // Entries whose home or half is not known without their names come last.
        let mut unclear: Vec<(u32, u32)> = Vec::new();
        let mut moved = 0;
        for (from, to) in self.buckets[segment].iter_mut().zip(upper.iter_mut()) {
            from.passed = 0;
            let mut free = 0;
            for way in ways(!from.matching(0) & ((1 << WAYS) - 1)) {
                if from.offsets[way] & DISPLACED != 0 || !KEPT.contains(&bits) {
                    unclear.push(from.place(way));
                    from.tags[way] = 0;
                } else if from.kept(way) >> (KEPT.end - 1 - bits) & 1 == 1 {
                    // It was in its home bucket, where there was room for all that come from there.
                    to.tags[free] = std::mem::take(&mut from.tags[way]);
                    to.offsets[free] = from.offsets[way];
                    to.runs[free] = from.runs[way];
                    free += 1;
                }
            }
            moved += free as u32;
        }
        let stayed = self.segments[segment].entries - moved - unclear.len() as u32;
        self.segments[segment] = Segment { bits: bits + 1, entries: stayed };
        self.segments.push(Segment { bits: bits + 1, entries: moved });
        self.buckets.push(upper);
        for (at, &(run, offset)) in unclear.iter().enumerate() {
            if let Some(&(run, offset)) = unclear.get(at + AHEAD) {
                names.prefetch_name(run, offset);
            }
            let hash = self.hash(names.name(run, offset));
            let half = if hash >> (63 - bits) & 1 == 1 { added } else { segment };
            put(&mut self.buckets[half], hash, run, offset);
            self.segments[half].entries += 1;
        }
        // The upper half of the directory's entries for the old segment now lead to the new one.
        let width = 1 << (self.bits - bits - 1);
        let first = self.directory.iter().position(|&at| at as usize == segment).unwrap_or(0);
        for entry in &mut self.directory[first + width..first + 2 * width] {
            *entry = added as u32;
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
        assert_eq!(table.entries, places.len());
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
            if names.len() > FULL - 10 {
                let old = names.pop_front().unwrap();
                table.remove(old, old as u32, 0);
                blocks.0.remove(&(old as u32, 0));
            }
        }
        // Exactly those entries are counted as passed that lie behind a bucket.
        assert_eq!(table.segments.len(), 1);
        let passed: u32 = table.buckets[0].iter().map(|bucket| u32::from(bucket.passed)).sum();
        let displaced: u32 = (0..BUCKETS)
            .flat_map(|at| (0..WAYS).map(move |way| (at, way)))
            .filter(|&(at, way)| table.buckets[0][at].tags[way] != 0)
            .map(|(at, way)| {
                let (run, offset) = table.buckets[0][at].place(way);
                (at + BUCKETS - home(table.hash(blocks.name(run, offset)))) as u32 % BUCKETS as u32
            })
            .sum();
        assert_eq!(passed, displaced);
    }
}
