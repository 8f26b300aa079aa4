//! The tree of places, and who holds each.

use std::mem;

use ahash::AHashMap;

use crate::{event::Tier, hash::BlockHash, slot::Slot};

/// A place in the tree. Ids are reused: one is good for as long as its place is held or leads to a held one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::index) struct PlaceId(usize);

impl PlaceId {
    /// Where every prompt starts; no block lies here.
    pub(super) const ROOT: Self = Self(0);
}

/// All places of a shard. A place exists while a slot holds it or a place below it.
#[derive(Debug)]
pub(super) struct Tree {
    places: Vec<Place>,
    free: Vec<PlaceId>,
    children: AHashMap<(PlaceId, BlockHash), PlaceId>,
}

#[derive(Debug)]
struct Place {
    parent: PlaceId,
    content: BlockHash,
    children: usize,
    /// One list a tier, each in order of slot.
    holders: [Vec<Holder>; 4],
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Holder {
    pub(super) slot: Slot,
    /// Names that the slot has for this place and holds in this tier. More than one is rare: the engine tells
    /// two blocks apart by something that the content hash does not cover.
    names: u32,
}

impl Tree {
    pub(super) fn new() -> Self {
        let root = Place::new(PlaceId::ROOT, BlockHash(0));
        Self { places: vec![root], free: Vec::new(), children: AHashMap::new() }
    }

    /// Places other than the root.
    pub(super) fn len(&self) -> usize {
        self.children.len()
    }

    pub(super) fn child(&self, parent: PlaceId, content: BlockHash) -> Option<PlaceId> {
        self.children.get(&(parent, content)).copied()
    }

    /// The place of `content` below `parent`, made if there is none yet. A made place must be held before
    /// anything is released, or it would stay for ever.
    pub(super) fn grow(&mut self, parent: PlaceId, content: BlockHash) -> PlaceId {
        if let Some(place) = self.child(parent, content) {
            return place;
        }
        let place = self.free.pop().unwrap_or(PlaceId(self.places.len()));
        if place.0 == self.places.len() {
            self.places.push(Place::new(parent, content));
        } else {
            self.places[place.0] = Place::new(parent, content);
        }
        self.places[parent.0].children += 1;
        self.children.insert((parent, content), place);
        place
    }

    pub(super) fn content(&self, place: PlaceId) -> BlockHash {
        self.places[place.0].content
    }

    /// The slots that hold `place` in `tier`, in order.
    pub(super) fn holders(&self, place: PlaceId, tier: Tier) -> &[Holder] {
        &self.places[place.0].holders[tier.index()]
    }

    pub(super) fn holds(&self, slot: Slot, place: PlaceId, tier: Tier) -> bool {
        self.holders(place, tier).binary_search_by_key(&slot, |holder| holder.slot).is_ok()
    }

    /// `slot` holds `place` in `tier` under one more name.
    pub(super) fn hold(&mut self, slot: Slot, place: PlaceId, tier: Tier) {
        let holders = &mut self.places[place.0].holders[tier.index()];
        match holders.binary_search_by_key(&slot, |holder| holder.slot) {
            Ok(at) => holders[at].names += 1,
            Err(at) => holders.insert(at, Holder { slot, names: 1 }),
        }
    }

    /// Undoes one [`Self::hold`], and frees what nobody holds or needs any more.
    pub(super) fn release(&mut self, slot: Slot, place: PlaceId, tier: Tier) {
        let holders = &mut self.places[place.0].holders[tier.index()];
        let Ok(at) = holders.binary_search_by_key(&slot, |holder| holder.slot) else { return };
        holders[at].names -= 1;
        if holders[at].names == 0 {
            holders.remove(at);
            self.prune(place);
        }
    }

    fn prune(&mut self, mut place: PlaceId) {
        while place != PlaceId::ROOT && self.places[place.0].is_needless() {
            let freed = mem::replace(&mut self.places[place.0], Place::new(PlaceId::ROOT, BlockHash(0)));
            self.children.remove(&(freed.parent, freed.content));
            self.places[freed.parent.0].children -= 1;
            self.free.push(place);
            place = freed.parent;
        }
    }
}

impl Place {
    fn new(parent: PlaceId, content: BlockHash) -> Self {
        Self { parent, content, children: 0, holders: [const { Vec::new() }; 4] }
    }

    fn is_needless(&self) -> bool {
        self.children == 0 && self.holders.iter().all(Vec::is_empty)
    }
}
