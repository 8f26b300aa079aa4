//! Which run goes on where another is left: (parent run, offset, next content) -> run.
//!
//! Extendible hashing in segments of one page. Readers probe without locks. A hit is verified in the run's header, so
//! it needs no care here; a miss is believed only if the segment's version did not change and the segment still
//! serves that part of the hash space.

use std::{
    ptr::NonNull,
    sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use parking_lot::Mutex;

use super::{
    prefetch,
    space::GRAIN,
    sync::{AtomicPtr, AtomicU64, Zeroes, fence, free, zeroed},
};

const SLOTS: usize = if cfg!(loom) { 4 } else { 512 };
/// Entries at which a segment is split: linear probing stays short.
const FULL: u64 = if cfg!(loom) { 3 } else { 340 };

#[repr(C, align(64))]
struct Segment {
    /// Odd while entries are shifted, and from the segment's retirement until it serves again.
    version: AtomicU64,
    /// Which hashes it serves: the number of leading bits << 58 | those bits. A reader with an old directory may land in a
    /// segment that serves others by now.
    range: AtomicU64,
    /// The writer's.
    entries: AtomicU64,
    _rest_of_line: [u64; 5],
    /// See [`entry`]; 0 is empty.
    slots: [AtomicU64; SLOTS],
}

// SAFETY: atomics are made of any bytes.
unsafe impl Zeroes for Segment {
    #[cfg(loom)]
    fn zero() -> Self {
        Self {
            version: AtomicU64::new(0),
            range: AtomicU64::new(0),
            entries: AtomicU64::new(0),
            _rest_of_line: [0; 5],
            slots: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

struct Directory {
    bits: u32,
    /// By the leading bits of the hash.
    segments: Box<[AtomicPtr<Segment>]>,
}

/// The readers' side.
pub(in crate::index) struct ChildTable {
    directory: AtomicPtr<Directory>,
    /// Everything ever published: a reader may still look at it. Taken at a split and at the end, never by readers.
    owned: Mutex<Owned>,
}

#[derive(Default)]
struct Owned {
    segments: Vec<NonNull<Segment>>,
    directories: Vec<NonNull<Directory>>,
}

// SAFETY: the pointers own what they point to, of which everything that is shared is atomic.
unsafe impl Send for Owned {}

/// What a probe came to.
pub(in crate::index) enum Found {
    Run(u32),
    Absent,
    /// The table changed meanwhile: whether the run is there cannot be told.
    Unsure,
}

fn leading(hash: u64, bits: u32) -> usize {
    if bits == 0 { 0 } else { (hash >> (64 - bits)) as usize }
}

fn home(hash: u64) -> usize {
    hash as usize & (SLOTS - 1)
}

const fn range(bits: u32, leading: u64) -> u64 {
    (bits as u64) << 58 | leading
}

fn serves(range: u64, hash: u64) -> bool {
    range & ((1 << 58) - 1) == leading(hash, (range >> 58) as u32) as u64
}

impl ChildTable {
    pub(in crate::index) fn new() -> Self {
        let mut owned = Owned::default();
        let first = owned.segment();
        let directory = owned.directory(0, Box::new([AtomicPtr::new(first.as_ptr())]));
        Self { directory: AtomicPtr::new(directory.as_ptr()), owned: Mutex::new(owned) }
    }

    #[inline(always)]
    fn segment(&self, hash: u64) -> &Segment {
        // SAFETY: directories and segments are freed with the table only. Acquire, twice: pairs with the Release of
        // whoever published them, so that their content is seen.
        unsafe {
            let directory = &*self.directory.load(Acquire);
            &*directory.segments[leading(hash, directory.bits)].load(Acquire)
        }
    }

    #[inline(always)]
    pub(in crate::index) fn prefetch(&self, hash: u64) {
        prefetch(&raw const self.segment(hash).slots[home(hash)]);
    }

    /// The run that probably has this hash, and where its contents probably lie: for asking the memory ahead, and to be
    /// believed by nobody.
    #[inline(always)]
    pub(in crate::index) fn guess(&self, hash: u64) -> Option<(u32, u32)> {
        let segment = self.segment(hash);
        let mut at = home(hash);
        // Nearly all entries lie in their home line or in the next one.
        for _ in 0..SLOTS.min(8) {
            // Acquire: pairs with the Release in `put`; the run's memory was there before its entry.
            let slot = segment.slots[at].load(Acquire);
            if slot == 0 {
                return None;
            }
            if tag(slot) == hash & TAG {
                return Some((run_of(slot), start_of(slot)));
            }
            at = (at + 1) & (SLOTS - 1);
        }
        None
    }

    /// The run with this hash of which `verify` says that it is the one.
    #[inline(always)]
    pub(in crate::index) fn find(&self, hash: u64, mut verify: impl FnMut(u32) -> bool) -> Found {
        let segment = self.segment(hash);
        // A run that is found needs no version, which lies in another line.
        if let Some(run) = segment.probe(hash, &mut verify) {
            return Found::Run(run);
        }
        // Acquire: pairs with the Release at the end of a shift, and of a split.
        let version = segment.version.load(Acquire);
        if let Some(run) = segment.probe(hash, &mut verify) {
            return Found::Run(run);
        }
        // Pairs with the Release fences of `remove` and `split`: a slot that was seen moved shows its version.
        fence(Acquire);
        let believable = version & 1 == 0
            && segment.version.load(Relaxed) == version
            && serves(segment.range.load(Relaxed), hash);
        if believable { Found::Absent } else { Found::Unsure }
    }
}

impl Owned {
    fn segment(&mut self) -> NonNull<Segment> {
        let segment = zeroed(1);
        self.segments.push(segment);
        segment
    }

    fn directory(&mut self, bits: u32, segments: Box<[AtomicPtr<Segment>]>) -> NonNull<Directory> {
        let directory = NonNull::from(Box::leak(Box::new(Directory { bits, segments })));
        self.directories.push(directory);
        directory
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        for segment in &self.segments {
            // SAFETY: made by `segment`, and nobody has the table any more.
            unsafe { free(*segment, 1) };
        }
        for directory in &self.directories {
            // SAFETY: leaked by `directory`, and nobody has the table any more.
            drop(unsafe { Box::from_raw(directory.as_ptr()) });
        }
    }
}

/// The writer's side.
#[derive(Default)]
pub(in crate::index) struct ChildTableWriter {
    /// Retired segments, odd, to be used again.
    spare: Vec<NonNull<Segment>>,
}

// SAFETY: the pointers are into the table's own segments, which are atomics.
unsafe impl Send for ChildTableWriter {}

impl ChildTableWriter {
    /// Adds a run whose header is complete and whose contents begin at `start`. `hash_of` yields the hash of any run in the
    /// table.
    pub(in crate::index) fn insert(
        &mut self,
        table: &ChildTable,
        hash: u64,
        (run, start): (u32, u32),
        hash_of: impl Fn(u32) -> u64,
    ) {
        let mut segment = table.segment(hash);
        while segment.entries.load(Relaxed) >= FULL {
            self.split(table, segment, hash, &hash_of);
            segment = table.segment(hash);
        }
        segment.put(entry(hash, run, start));
        segment.entries.store(segment.entries.load(Relaxed) + 1, Relaxed);
    }

    /// The contents of a run in the table have moved to `start`.
    pub(in crate::index) fn moved(&mut self, table: &ChildTable, hash: u64, run: u32, start: u32) {
        let segment = table.segment(hash);
        if let Some(at) = segment.find(hash, run) {
            // Release, as in `put`: a reader that finds the run by this finds its header too.
            segment.slots[at].store(entry(hash, run, start), Release);
        }
    }

    /// Takes a run out. Readers that look for another run of the segment meanwhile look again.
    pub(in crate::index) fn remove(&mut self, table: &ChildTable, hash: u64, run: u32) {
        let segment = table.segment(hash);
        let Some(mut gap) = segment.find(hash, run) else {
            debug_assert!(false, "run {run} is not among the children");
            return;
        };
        let version = segment.version.load(Relaxed);
        segment.version.store(version + 1, Relaxed);
        // A reader that sees a slot below also sees the odd version; pairs with the fence in `find`.
        fence(Release);
        for at in segment.from(gap).skip(1) {
            let slot = segment.slots[at].load(Relaxed);
            if slot == 0 {
                break;
            }
            // An entry may move into the gap unless its home lies behind the gap.
            let distance = |to: usize| at.wrapping_sub(to) & (SLOTS - 1);
            if distance(home(tag(slot))) >= distance(gap) {
                segment.slots[gap].store(slot, Relaxed);
                gap = at;
            }
        }
        segment.slots[gap].store(0, Relaxed);
        // Release: pairs with the Acquire at the beginning of `find`.
        segment.version.store(version + 2, Release);
        segment.entries.store(segment.entries.load(Relaxed) - 1, Relaxed);
    }

    fn split(&mut self, table: &ChildTable, segment: &Segment, hash: u64, hash_of: &impl Fn(u32) -> u64) {
        let mut owned = table.owned.lock();
        let bits = (segment.range.load(Relaxed) >> 58) as u32;
        // SAFETY: as in `ChildTable::segment`; only this writer replaces directories.
        let mut directory = unsafe { &*table.directory.load(Relaxed) };
        if bits == directory.bits {
            let twice = directory.segments.iter().flat_map(|segment| {
                let segment = segment.load(Relaxed);
                [AtomicPtr::new(segment), AtomicPtr::new(segment)]
            });
            let doubled = owned.directory(directory.bits + 1, twice.collect());
            // AcqRel: Release pairs with the Acquire in `ChildTable::segment`.
            table.directory.swap(doubled.as_ptr(), AcqRel);
            // SAFETY: just made, and freed with the table only.
            directory = unsafe { doubled.as_ref() };
        }
        let shared = leading(hash, bits) as u64;
        let halves = [0, 1].map(|half| {
            let fresh = self.spare.pop().unwrap_or_else(|| owned.segment());
            // SAFETY: freed with the table only.
            let fresh = unsafe { &*fresh.as_ptr() };
            fresh.range.store(range(bits + 1, shared << 1 | half), Relaxed);
            fresh.entries.store(0, Relaxed);
            fresh.slots.iter().for_each(|slot| slot.store(0, Relaxed));
            fresh
        });
        for slot in &segment.slots {
            let slot = slot.load(Relaxed);
            if slot != 0 {
                let hash = hash_of(run_of(slot));
                let half = halves[(hash >> (63 - bits) & 1) as usize];
                half.put(slot);
                half.entries.store(half.entries.load(Relaxed) + 1, Relaxed);
            }
        }
        let width = directory.bits - bits - 1;
        for (half, fresh) in halves.into_iter().enumerate() {
            // Even, and never a version it had before. Release: pairs with the Acquire in `find`.
            fresh.version.store((fresh.version.load(Relaxed) | 1) + 1, Release);
            let first = (shared as usize) << 1 << width | half << width;
            for place in &directory.segments[first..first + (1 << width)] {
                // Release: pairs with the Acquire in `ChildTable::segment`.
                place.store(std::ptr::from_ref(fresh).cast_mut(), Release);
            }
        }
        segment.version.store(segment.version.load(Relaxed) | 1, Relaxed);
        // The segment's next life begins after this; pairs with the fence in `find`.
        fence(Release);
        self.spare.push(NonNull::from(segment));
    }
}

const RUN_BITS: u32 = 24;
const START_BITS: u32 = 27;
/// The bits of a hash that an entry keeps. They include the home slot, so an entry tells its own.
const TAG: u64 = u64::MAX >> (RUN_BITS + START_BITS);
const _: () = assert!(SLOTS as u64 <= TAG + 1, "a tag tells the home slot");

/// What a slot says of a run: tag << 51 | where its contents begin, in grains of the arena << 24 | the run.
fn entry(hash: u64, run: u32, start: u32) -> u64 {
    hash << (RUN_BITS + START_BITS) | u64::from(start / GRAIN) << RUN_BITS | u64::from(run)
}

fn tag(entry: u64) -> u64 {
    entry >> (RUN_BITS + START_BITS)
}

fn run_of(entry: u64) -> u32 {
    entry as u32 & ((1 << RUN_BITS) - 1)
}

fn start_of(entry: u64) -> u32 {
    ((entry >> RUN_BITS) as u32 & ((1 << START_BITS) - 1)) * GRAIN
}

impl Segment {
    #[inline(always)]
    fn probe(&self, hash: u64, verify: &mut impl FnMut(u32) -> bool) -> Option<u32> {
        let mut at = home(hash);
        for _ in 0..SLOTS {
            // Acquire: pairs with the Release in `put`; the run's header was written before its entry.
            let slot = self.slots[at].load(Acquire);
            if slot == 0 {
                return None;
            }
            if tag(slot) == hash & TAG && verify(run_of(slot)) {
                return Some(run_of(slot));
            }
            at = (at + 1) & (SLOTS - 1);
        }
        None
    }

    /// Release: the run's header comes before; pairs with the Acquire in `probe`. One store: a reader sees the run
    /// or does not.
    fn put(&self, entry: u64) {
        if let Some(free) = self.from(home(tag(entry))).find(|&at| self.slots[at].load(Relaxed) == 0) {
            self.slots[free].store(entry, Release);
        }
    }

    /// The slot of a run; the writer's.
    fn find(&self, hash: u64, run: u32) -> Option<usize> {
        self.from(home(hash)).find(|&at| run_of(self.slots[at].load(Relaxed)) == run)
    }

    /// All slots, beginning at `at`.
    fn from(&self, at: usize) -> impl Iterator<Item = usize> + use<> {
        (0..SLOTS).map(move |step| (at + step) & (SLOTS - 1))
    }
}

#[cfg(test)]
mod tests {
    use ahash::AHashMap;

    use super::*;

    fn hash(run: u32) -> u64 {
        super::super::shared::fold(u64::from(run) ^ 0x5ced_c835, 0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn holds_what_was_put_in_and_not_taken_out() {
        let table = ChildTable::new();
        let mut writer = ChildTableWriter::default();
        let mut rng = fastrand::Rng::with_seed(3);
        let mut present: AHashMap<u32, ()> = AHashMap::new();
        for _ in 0..40_000 {
            let run = rng.u32(1..9_000);
            if present.remove(&run).is_some() {
                writer.remove(&table, hash(run), run);
            } else {
                present.insert(run, ());
                writer.insert(&table, hash(run), (run, 4 * run), hash);
                writer.moved(&table, hash(run), run, 8 * run);
            }
        }
        for run in 1..9_000 {
            let found = matches!(table.find(hash(run), |found| found == run), Found::Run(_));
            assert_eq!(found, present.contains_key(&run), "run {run}");
            // A guess may be another run's, but hardly ever is, and then the run itself is behind it.
            if let Some((guessed, start)) = table.guess(hash(run)) {
                assert_eq!(start, 8 * guessed);
            }
        }
    }
}
