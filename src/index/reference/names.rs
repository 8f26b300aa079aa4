//! What the slots of a shard call the places, all together.

use ahash::AHashMap;
use smallvec::SmallVec;

use super::tree::PlaceId;
use crate::event::EngineHash;

/// Every name in use with the places it leads to, for looking up names that a slot does not know itself.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Nearly always one place a name; none is never stored.
    places: AHashMap<EngineHash, SmallVec<[Naming; 1]>>,
}

#[derive(Clone, Copy, Debug)]
struct Naming {
    place: PlaceId,
    /// Slots that use the name for this place.
    slots: usize,
}

impl Names {
    /// One more slot uses `name` for `place`.
    pub(super) fn add(&mut self, name: EngineHash, place: PlaceId) {
        let namings = self.places.entry(name).or_default();
        match namings.iter_mut().find(|naming| naming.place == place) {
            Some(naming) => naming.slots += 1,
            None => namings.push(Naming { place, slots: 1 }),
        }
    }

    /// Undoes one [`Self::add`].
    pub(super) fn remove(&mut self, name: EngineHash, place: PlaceId) {
        let Some(namings) = self.places.get_mut(&name) else { return };
        let Some(at) = namings.iter().position(|naming| naming.place == place) else { return };
        namings[at].slots -= 1;
        if namings[at].slots == 0 {
            namings.swap_remove(at);
        }
        if namings.is_empty() {
            self.places.remove(&name);
        }
    }

    /// The place that `name` leads to; `None` if nobody uses it, or if slots disagree.
    pub(super) fn place(&self, name: EngineHash) -> Option<PlaceId> {
        match self.places.get(&name)?.as_slice() {
            [naming] => Some(naming.place),
            _ => None,
        }
    }
}
