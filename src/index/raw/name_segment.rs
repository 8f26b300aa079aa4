//! A part of the name table: a few thousand entries, found by hashes.
//!
//! A bucket is one cache line of nine entries, without their names: those lie with the blocks, and an entry that looks right is
//! verified there. Sixteen bits of each hash are kept, so that hardly any looks right and is not. They are the bits that splits ask
//! for, so that a split needs no name but those of entries that lie behind their home bucket. A bit that a split has asked for is
//! the same in a whole segment and tells nothing apart any more, so now and then a split reads all names for later bits.

use super::prefetch;

const BUCKETS: usize = 256;
const WAYS: usize = 9;
/// Entries at which a segment is split. Above three quarters too many do not fit in their home bucket.
pub(super) const FULL: u32 = (BUCKETS * WAYS * 3 / 4) as u32;
/// Leading bits of a hash that all segments are told by, at least; so they need not be kept.
pub(super) const FIRST_BITS: u32 = 1;

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
/// Numbers of bits that hashes have in common at which a split reads names. The first time comes while the table is small and
/// its names are in the cache; without it, a table of a million entries would tell them by half of their bits. Between two times
/// lie at most eight splits: the tag, which is looked at first, stays whole.
const READ_ANEW: [u32; 4] = [5, 13, 21, 29];

/// The first bit of the hash, counted from its beginning, that the entries of a segment keep: a byte with the run, and a byte as
/// the tag.
#[derive(Clone, Copy)]
struct Kept(u8);

pub(super) struct Segment {
    buckets: Box<[Bucket; BUCKETS]>,
    entries: u32,
    /// Leading bits that the hashes here have in common.
    bits: u8,
    kept: Kept,
}

impl Segment {
    pub(super) const BYTES: usize = BUCKETS * size_of::<Bucket>();

    pub(super) fn new(bits: u32) -> Self {
        // SAFETY: zeroes are empty buckets.
        let buckets = unsafe { Box::new_zeroed().assume_init() };
        Self { buckets, entries: 0, bits: bits as u8, kept: Kept::with(bits) }
    }

    #[inline(always)]
    pub(super) fn bits(&self) -> u32 {
        u32::from(self.bits)
    }

    #[inline(always)]
    pub(super) fn is_full(&self) -> bool {
        self.entries >= FULL
    }

    /// The bucket and the way of the entry that `is_it` says is the one.
    #[inline(always)]
    fn spot(&self, hash: u64, is_it: impl Fn(u32, u32) -> bool) -> Option<(usize, usize)> {
        let (tag, beside_run) = (self.kept.tag(hash), self.kept.beside_run(hash));
        let mut at = home(hash);
        for _ in 0..BUCKETS {
            let bucket = &self.buckets[at];
            for way in ways(bucket.matching(tag)) {
                let (run, offset) = bucket.place(way);
                if bucket.beside_run(way) == beside_run && is_it(run, offset) {
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

    /// The block that `is_it` says is the one.
    #[inline(always)]
    pub(super) fn find(&self, hash: u64, is_it: impl Fn(u32, u32) -> bool) -> Option<(u32, u32)> {
        let (bucket, way) = self.spot(hash, is_it)?;
        Some(self.buckets[bucket].place(way))
    }

    /// Asks for the home bucket of a hash.
    #[inline(always)]
    pub(super) fn ask(&self, hash: u64) {
        prefetch(&raw const self.buckets[home(hash)]);
    }

    /// The block that probably has this hash, by what its home bucket says.
    #[inline(always)]
    pub(super) fn guess(&self, hash: u64) -> Option<(u32, u32)> {
        let (bucket, beside_run) = (&self.buckets[home(hash)], self.kept.beside_run(hash));
        let way =
            ways(bucket.matching(self.kept.tag(hash))).find(|&way| bucket.beside_run(way) == beside_run);
        way.map(|way| bucket.place(way))
    }

    /// Puts an entry into its home bucket, if nothing there looks like it, nothing lies behind, and there is room, which is nearly
    /// always so; whether it did.
    #[inline(always)]
    pub(super) fn put_at_home(&mut self, hash: u64, (run, offset): (u32, u32)) -> bool {
        let (kept, bucket) = (self.kept, &mut self.buckets[home(hash)]);
        let free = bucket.matching(0);
        if bucket.matching(kept.tag(hash)) == 0 && bucket.passed == 0 && free != 0 && self.entries < FULL {
            bucket.set(free.trailing_zeros() as usize, kept, hash, run, offset as u16);
            self.entries += 1;
            return true;
        }
        false
    }

    /// Puts an entry into the first free way from its home on.
    pub(super) fn put(&mut self, hash: u64, (run, offset): (u32, u32)) {
        self.entries += 1;
        let (kept, mut at) = (self.kept, home(hash));
        let mut displaced = 0;
        loop {
            let bucket = &mut self.buckets[at];
            let free = bucket.matching(0);
            if free != 0 {
                bucket.set(free.trailing_zeros() as usize, kept, hash, run, offset as u16 | displaced);
                return;
            }
            bucket.passed = bucket.passed.saturating_add(1);
            displaced = DISPLACED;
            at = (at + 1) % BUCKETS;
        }
    }

    /// Takes out the entry of a block; whether there was one.
    #[inline(always)]
    pub(super) fn remove(&mut self, hash: u64, place: (u32, u32)) -> bool {
        let Some((bucket, way)) = self.spot(hash, |run, offset| (run, offset) == place) else { return false };
        self.buckets[bucket].tags[way] = 0;
        let mut at = home(hash);
        while at != bucket {
            let passed = &mut self.buckets[at].passed;
            if *passed < u8::MAX {
                *passed -= 1;
            }
            at = (at + 1) % BUCKETS;
        }
        self.entries -= 1;
        true
    }

    /// Moves the entries whose hash has a one after the bits that all have in common to a new segment, and takes those out
    /// whose home or half is not known without their names.
    pub(super) fn split(&mut self, unclear: &mut Vec<(u32, u32)>) -> Self {
        let bits = self.bits();
        let mut upper = Self::new(bits + 1);
        let shift = (!READ_ANEW.contains(&(bits + 1))).then(|| self.kept.shift(bits));
        for (from, to) in self.buckets.iter_mut().zip(upper.buckets.iter_mut()) {
            from.passed = 0;
            for way in ways(if shift.is_some() { from.displaced() } else { from.taken() }) {
                unclear.push(from.place(way));
                from.tags[way] = 0;
            }
            if let Some(shift) = shift {
                // They were in their home bucket, where there was room for all that come from there.
                upper.entries += from.move_ones(to, shift);
            }
        }
        self.bits += 1;
        self.kept = upper.kept;
        self.entries -= upper.entries + unclear.len() as u32;
        upper
    }

    /// How many entries are counted as passed, over all buckets, and how many buckets entries lie behind their homes.
    #[cfg(test)]
    pub(super) fn passed_and_displaced(&self, hash: impl Fn(u32, u32) -> u64) -> (usize, usize) {
        let buckets = &self.buckets;
        let passed = buckets.iter().map(|bucket| usize::from(bucket.passed)).sum();
        let taken = (0..BUCKETS).flat_map(|at| ways(buckets[at].taken()).map(move |way| (at, way)));
        let far = |(at, way): (usize, usize)| {
            let (run, offset) = buckets[at].place(way);
            (at + BUCKETS - home(hash(run, offset))) % BUCKETS
        };
        (passed, taken.map(far).sum())
    }

    #[cfg(test)]
    pub(super) fn entries(&self) -> u32 {
        self.entries
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
    fn beside_run(&self, way: usize) -> u32 {
        self.runs[way] >> RUN_BITS
    }

    #[inline(always)]
    fn set(&mut self, way: usize, kept: Kept, hash: u64, run: u32, offset: u16) {
        self.tags[way] = kept.tag(hash);
        self.offsets[way] = offset;
        self.runs[way] = kept.beside_run(hash) << RUN_BITS | run;
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

    /// Moves those entries to the front of an empty bucket of whose bits beside the run the one at `shift` is set; how many.
    #[inline(always)]
    fn move_ones(&mut self, to: &mut Self, shift: u32) -> u32 {
        let mut free = 0;
        // Which half an entry goes to is a coin's toss: no jump depends on it. What stays is copied too and has no tag.
        for way in 0..WAYS {
            let goes = (self.beside_run(way) >> shift & 1) as u8 & u8::from(self.tags[way] != 0);
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

impl Kept {
    /// What a segment's entries keep whose hashes have `bits` bits in common.
    fn with(bits: u32) -> Self {
        Self(READ_ANEW.into_iter().rfind(|&anew| anew <= bits).unwrap_or(FIRST_BITS) as u8)
    }

    /// The bits of the hash that lie with the run's number.
    #[inline(always)]
    fn beside_run(self, hash: u64) -> u32 {
        (hash >> (56 - self.0)) as u32 & 0xff
    }

    /// The eight bits of the hash after those, the last one perhaps another, so that it is not 0.
    #[inline(always)]
    fn tag(self, hash: u64) -> u8 {
        ((hash >> (48 - self.0)) as u8).max(1)
    }

    /// Where in the bits beside the run a leading bit of the hash lies, which is one of them: [`READ_ANEW`] sees to it.
    fn shift(self, bit: u32) -> u32 {
        u32::from(self.0) + 7 - bit
    }
}

fn ways(mut bits: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let way = (bits != 0).then(|| bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        way
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_leads_every_entry_to_its_half_whatever_it_keeps() {
        let mut rng = fastrand::Rng::with_seed(3);
        for bits in FIRST_BITS..30 {
            let mut lower = Segment::new(bits);
            let hashes: Vec<u64> = (0..FULL).map(|_| rng.u64(..) >> bits).collect();
            let place = |at: usize| (at as u32, at as u32 % 7);
            for (at, &hash) in hashes.iter().enumerate() {
                lower.put(hash, place(at));
            }
            let mut unclear = Vec::new();
            let mut upper = lower.split(&mut unclear);
            assert_eq!(unclear.len() == hashes.len(), READ_ANEW.contains(&(bits + 1)), "at {bits} bits");
            let half = |hash: u64| hash >> (63 - bits) & 1;
            for &(at, offset) in &unclear {
                let hash = hashes[at as usize];
                [&mut lower, &mut upper][half(hash) as usize].put(hash, (at, offset));
            }
            assert_eq!(lower.entries() + upper.entries(), FULL);
            for (at, &hash) in hashes.iter().enumerate() {
                let is_it = |run, offset| (run, offset) == place(at);
                let found = [&lower, &upper].map(|segment| segment.find(hash, is_it).is_some());
                assert_eq!(found, [half(hash) == 0, half(hash) == 1], "entry {at} at {bits} bits");
            }
        }
    }
}
