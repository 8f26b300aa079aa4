//! The tree of one shard, as its writer changes it.
//!
//! A *run* is a stretch of consecutive blocks of one chain. Runs never split: a chain that leaves a run at an offset
//! goes on in a child, found by (run, offset, next content). So a block keeps its place, which is (run,
//! offset), for as long as it exists. Two rules hold between changes:
//!
//! * A block exists as long as a seat is marked on it or a child hangs behind it. Every existing block's whole path
//!   therefore exists, and a chain can be made in one piece once its first block is found missing.
//! * After each place a content follows either as the run's own next block or as the first block of one child.
//!
//! A run may have a tail that nobody holds only while a seat that was left is being swept out ([`sweep`]).

mod families;
mod grow;
mod held;
mod hold;
mod marking;
mod shrink;
mod sweep;

use std::sync::{Arc, atomic::Ordering::Relaxed};

use self::{
    families::{Families, Family},
    marking::Marking,
};
pub(super) use self::{grow::Stopped, shrink::AHEAD, sweep::Sweep};
use super::{
    raw::{CONTENT, ChildTableWriter, NAME, NameTable, Names, Shared, Space, prefetch},
    split_map::SplitMap,
};

/// Where a block is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Place {
    pub(super) run: u32,
    pub(super) offset: u32,
}

/// A point between blocks: the end of what comes before, where something may follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Point {
    pub(super) run: u32,
    pub(super) offset: u32,
}

impl Point {
    /// Where every prompt starts.
    pub(super) const START: Self = Self { run: 0, offset: 0 };
}

impl Place {
    /// Behind this block.
    pub(super) fn next(self) -> Point {
        Point { run: self.run, offset: self.offset + 1 }
    }
}

/// Bytes of a shard.
#[derive(Clone, Copy, Default)]
pub(super) struct Memory {
    /// Taken by what is there.
    pub(super) used: u64,
    /// Set aside and free: it is never given back, and is what the index grows into first.
    pub(super) free: u64,
}

/// The writer's side of a shard's tree. All accesses to shared words are Relaxed unless said otherwise: nobody else
/// writes them.
pub(super) struct Tree {
    pub(super) shared: Arc<Shared>,
    blocks: Space<2>,
    marks: Space<1>,
    children: ChildTableWriter,
    names: NameTable,
    families: Families,
    next_run: u32,
    /// Blocks whose name the name table does not lead to, because it leads to another block.
    unmapped: SplitMap<Place, ()>,
    places: u64,
}

impl Tree {
    pub(super) fn new(shared: Arc<Shared>, key: u64) -> Self {
        Self {
            blocks: Space::new(&shared.blocks),
            marks: Space::new(&shared.marks),
            children: ChildTableWriter::default(),
            names: NameTable::new(key),
            families: Families::new(),
            next_run: 1,
            unmapped: SplitMap::default(),
            places: 0,
            shared,
        }
    }

    /// Blocks that exist.
    pub(super) fn places(&self) -> u64 {
        self.places
    }

    /// Bytes of the tables and arenas.
    pub(super) fn memory(&self) -> Memory {
        // A run's header and family, and its entry in the child table, which is a third to two thirds full.
        const RUN: u64 = 64 + size_of::<Family>() as u64 + 16;
        let (blocks, marks) = (self.blocks.usage(), self.marks.usage());
        let free = (blocks.1 + marks.1) * 8 + u64::from(self.families.free()) * RUN;
        let tables = (self.names.bytes() + self.unmapped.bytes()) as u64;
        let used = (blocks.0 + marks.0) * 8 + u64::from(self.next_run - self.families.free()) * RUN + tables;
        Memory { used, free }
    }

    fn length(&self, run: u32) -> u32 {
        self.shared.runs.get(run).extent().1
    }

    pub(super) fn content(&self, place: Place) -> u64 {
        let start = self.shared.runs.get(place.run).extent().0;
        self.shared.blocks.word(CONTENT, start + place.offset).load(Relaxed)
    }

    /// The name that a block carries.
    pub(super) fn name(&self, place: Place) -> u64 {
        self.shared.name(place.run, place.offset)
    }

    /// The block that carries `name`; which slots call it so is another matter.
    #[inline(always)]
    pub(super) fn named(&self, name: u64) -> Option<Place> {
        self.names.get(name, &*self.shared).map(|(run, offset)| Place { run, offset })
    }

    /// Whether a block carries `name` and the name leads to it.
    pub(super) fn carries(&self, place: Place, name: u64) -> bool {
        self.shared.name(place.run, place.offset) == name && !self.is_unmapped(place)
    }

    /// Whether the block's name leads elsewhere, or nowhere.
    #[inline(always)]
    pub(super) fn is_unmapped(&self, place: Place) -> bool {
        self.has_unmapped() && self.unmapped.contains_key(&place)
    }

    /// Whether there are such blocks.
    #[inline(always)]
    pub(super) fn has_unmapped(&self) -> bool {
        !self.unmapped.is_empty()
    }

    /// Gives a block another name, if that leads to no other block; whether it does now. Nobody may call the block by
    /// the old name any more.
    pub(super) fn rename(&mut self, place: Place, name: u64) -> bool {
        if let Some(taken) = self.named(name) {
            return taken == place;
        }
        self.unmap(place);
        let start = self.shared.runs.get(place.run).extent().0;
        self.shared.blocks.word(NAME, start + place.offset).store(name, Relaxed);
        if self.names.insert(name, place.run, place.offset, &*self.shared).is_ok() {
            self.unmapped.remove(&place);
        }
        true
    }

    /// Lets a block's name lead to it no more.
    pub(super) fn unmap(&mut self, place: Place) {
        if self.unmapped.insert(place, ()).is_none() {
            self.names.remove(self.shared.name(place.run, place.offset), place.run, place.offset);
        }
    }

    /// The block of `content` at a point, if it exists.
    pub(super) fn at(&self, point: Point, content: u64) -> Option<Place> {
        let Point { run, offset } = point;
        if run != 0 && offset < self.length(run) && self.content(Place { run, offset }) == content {
            return Some(Place { run, offset });
        }
        self.child(point, content).map(|run| Place { run, offset: 0 })
    }

    /// The child that goes on at a point with `content`.
    pub(super) fn child(&self, point: Point, content: u64) -> Option<u32> {
        let family = &self.families[point.run as usize];
        if point.run != 0 && (family.first_child == 0 || family.floor() < point.offset) {
            return None;
        }
        self.shared.child(point.run, point.offset, content)
    }

    /// Blocks and names of a run from `offset` on.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(super) fn rest(&self, point: Point) -> (&[u64], &[u64]) {
        if point.run == 0 {
            return (&[], &[]);
        }
        let (start, length) = self.shared.runs.get(point.run).extent();
        let (index, count) = (start + point.offset, length - point.offset);
        // SAFETY: this is the arena's one writer, and it writes nothing while it is borrowed.
        unsafe {
            (self.shared.blocks.slice(CONTENT, index, count), self.shared.blocks.slice(NAME, index, count))
        }
    }

    /// Grows the name table by one step towards `entries`; whether there is more to do.
    pub(super) fn grow_names_towards(&mut self, entries: usize) -> bool {
        self.names.grow_towards(entries, &*self.shared)
    }

    // Looking ahead over a queue of events: each step asks for what the one before has found.

    /// Asks for the table entry of a name; the name's hash.
    #[inline(always)]
    pub(super) fn ask_for_entry(&self, name: u64) -> u64 {
        self.names.ask(name)
    }

    /// Asks for the run that the entry of this hash probably names; the block.
    #[inline(always)]
    pub(super) fn ask_for_run(&self, hash: u64) -> Option<Place> {
        let (run, offset) = self.names.guess(hash)?;
        prefetch(self.shared.runs.get(run));
        prefetch(&raw const self.families[run as usize]);
        Some(Place { run, offset })
    }

    /// Asks for the words of a block: its name, and, where another is to follow it, its content.
    #[inline(always)]
    pub(super) fn ask_for_block(&self, place: Place, with_content: bool) {
        let start = self.shared.runs.get(place.run).extent().0;
        prefetch(self.shared.blocks.words(NAME, start + place.offset));
        if with_content {
            prefetch(self.shared.blocks.words(CONTENT, start + place.offset));
        }
    }

    /// As [`Self::ask_for_run`] and [`Self::ask_for_block`], for a name that is to be removed.
    #[inline(always)]
    pub(super) fn ask_for_run_of(&self, name: u64) {
        self.ask_for_run(self.names.hash(name));
    }

    #[inline(always)]
    pub(super) fn ask_for_block_of(&self, name: u64) {
        if let Some((run, offset)) = self.names.guess(self.names.hash(name)) {
            self.ask_for_block(Place { run, offset }, false);
        }
    }
}
