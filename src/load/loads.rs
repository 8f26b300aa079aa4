//! The counters of all slots of one worker set.

use super::{
    active::{ActiveBlocks, ActiveReader},
    booking::{Booking, Claim},
    slot_load::SlotLoad,
    tenure::Tenure,
};
use crate::slot::Slot;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

/// What every slot of one worker set is doing. Shared in an [`Arc`]; every [`Booking`] holds one.
#[derive(Debug, Default)]
pub struct Loads {
    ledger: Mutex<Ledger>,
    active: ActiveBlocks,
}

impl Loads {
    /// No slot is doing anything.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// What `slot` is doing; nothing, once its generation was forgotten.
    #[must_use]
    pub fn get(&self, slot: Slot) -> SlotLoad {
        self.ledger().read(slot).unwrap_or_default()
    }

    /// What all slots together are doing.
    #[must_use]
    pub fn total(&self) -> SlotLoad {
        let ledger = self.ledger();
        let mut total = SlotLoad::default();
        for tenure in &ledger.slots {
            total.add(tenure.current());
        }
        total
    }

    /// Drops what is known of `slot` because its worker is gone. Bookings of this or an older
    /// generation return nothing from now on; a successor at the same index starts at zero.
    pub fn forget(&self, slot: Slot) {
        self.ledger().tenure(slot).end(slot.generation);
        self.active.forget(slot);
    }

    /// Books `claim` on `slot` without deciding anything. The selector's
    /// [`admit`](crate::select::Selector::admit) decides and books in one step.
    #[must_use]
    pub fn book(self: &Arc<Self>, slot: Slot, claim: &Claim<'_>) -> Booking {
        let new_blocks = claim.blocks();
        let booking = Booking::open(self, &mut self.ledger(), slot, claim, new_blocks);
        booking.settle(claim.sequence, new_blocks)
    }

    /// The admission mutex. Hold it for O(candidates) work and take no other lock under it.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock()
    }

    /// Which prompt blocks are in use, to be read before the ledger is locked.
    pub(crate) fn active_reader(&self) -> ActiveReader<'_> {
        self.active.read()
    }

    pub(super) const fn active(&self) -> &ActiveBlocks {
        &self.active
    }
}

/// The counters behind the admission mutex.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    slots: Vec<Tenure<SlotLoad>>,
}

impl Ledger {
    /// The load of `slot`, or `None` when its generation is over.
    pub(crate) fn read(&self, slot: Slot) -> Option<SlotLoad> {
        self.slots
            .get(slot.index as usize)
            .map_or(Some(SlotLoad::default()), |tenure| tenure.read(slot.generation))
    }

    pub(super) fn add(&mut self, slot: Slot, more: SlotLoad) {
        if let Some(load) = self.tenure(slot).of(slot.generation) {
            load.add(more);
        }
    }

    pub(super) fn sub(&mut self, slot: Slot, less: SlotLoad) {
        if let Some(load) = self.tenure(slot).of(slot.generation) {
            load.sub(less);
        }
    }

    fn tenure(&mut self, slot: Slot) -> &mut Tenure<SlotLoad> {
        let index = slot.index as usize;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, Tenure::default);
        }
        &mut self.slots[index]
    }
}
