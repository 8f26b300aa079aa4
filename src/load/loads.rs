//! The counters of all slots of one worker set.

use super::{
    active::{ActiveBlocks, ActiveReader},
    backlog::{Backlog, Queue, Ticket},
    booking::{Booking, Claim},
    busy::{Capacity, Thresholds},
    slot_load::SlotLoad,
    tenure::Tenure,
};
use crate::{
    device::{MeanSpeed, Speed},
    slot::Slot,
};
use parking_lot::{Mutex, MutexGuard};
use std::{
    sync::{Arc, OnceLock},
    task::Waker,
    time::Duration,
};

/// What every slot of one worker set is doing. Shared in an [`Arc`]; every [`Booking`] holds one.
#[derive(Debug, Default)]
pub struct Loads {
    ledger: Mutex<Ledger>,
    /// The prompt blocks in use that count as load.
    active: ActiveBlocks,
    /// Those that do not, apart: what a request takes off the ledger is what it put there.
    uncounted: ActiveBlocks,
    /// Whoever waits for a slot to have less to do.
    relief: OnceLock<Waker>,
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
        self.ledger().peek(slot).map_or_else(SlotLoad::default, |state| state.load)
    }

    /// What all slots together are doing.
    #[must_use]
    pub fn total(&self) -> SlotLoad {
        let ledger = self.ledger();
        let mut total = SlotLoad::default();
        for tenure in &ledger.slots {
            total.add(tenure.current().load);
        }
        total
    }

    /// The prefill work that `slot` has before it.
    #[must_use]
    pub fn backlog(&self, slot: Slot) -> Backlog {
        self.ledger().peek(slot).map_or_else(Backlog::default, |state| state.queue.backlog())
    }

    /// Seconds that a token of prefill work takes on `slot` now: as learned so far, on devices as the last decision found them.
    #[must_use]
    pub fn seconds_per_token(&self, slot: Slot) -> f64 {
        let ledger = self.ledger();
        let mean = ledger.mean_speed;
        ledger
            .peek(slot)
            .map_or_else(|| Speed::default().seconds_per_token(mean), |state| state.seconds_per_token(mean))
    }

    /// The busy thresholds that were set at run time, if any were; they go before those of the tuning.
    #[must_use]
    pub fn thresholds(&self) -> Option<Thresholds> {
        self.ledger().thresholds
    }

    /// Sets busy thresholds at run time; `None` goes back to those of the tuning.
    pub fn set_thresholds(&self, thresholds: Option<Thresholds>) {
        self.ledger().thresholds = thresholds;
        self.relieved();
    }

    /// Whether `slot` is over the thresholds that hold, where the tuning has `tuned`.
    #[must_use]
    pub fn is_busy(&self, slot: Slot, tuned: Thresholds, capacity: &Capacity) -> bool {
        let mut ledger = self.ledger();
        let thresholds = ledger.thresholds(tuned);
        ledger.is_busy(slot, &thresholds, capacity)
    }

    /// Has `waker` woken whenever a slot has less to do: a prefill is over, a request ended, a worker is gone, other
    /// thresholds hold. The first one that is set stays; false for any other.
    pub fn wake_on_relief(&self, waker: Waker) -> bool {
        self.relief.set(waker).is_ok()
    }

    /// A slot has less to do than before. Not under the ledger's lock: whoever is woken may look at once.
    pub(super) fn relieved(&self) {
        if let Some(waker) = self.relief.get() {
            waker.wake_by_ref();
        }
    }

    /// Drops what is known of `slot` because its worker is gone. Bookings of this or an older
    /// generation return nothing from now on; a successor at the same index starts at zero.
    pub fn forget(&self, slot: Slot) {
        self.ledger().tenure(slot).end(slot.generation);
        self.active.forget(slot);
        self.uncounted.forget(slot);
        self.relieved();
    }

    /// Books `claim` on `slot` without deciding anything. The selector's
    /// [`admit`](crate::select::Selector::admit) decides and books in one step. `now` is the time since any moment that
    /// is the same for all calls.
    #[must_use]
    pub fn book(self: &Arc<Self>, slot: Slot, claim: &Claim<'_>, now: Duration) -> Booking {
        let new_blocks = claim.blocks();
        let booking = Booking::open(self, &mut self.ledger(), slot, claim, new_blocks, now);
        booking.settle(claim.sequence, new_blocks)
    }

    /// The admission mutex. Hold it for O(candidates) work and take no other lock under it.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock()
    }

    /// Which prompt blocks are in use, those that count as load or those that do not, to be read before the ledger is locked.
    pub(crate) fn active_reader(&self, uncounted: bool) -> ActiveReader<'_> {
        self.active(uncounted).read()
    }

    pub(super) const fn active(&self, uncounted: bool) -> &ActiveBlocks {
        if uncounted { &self.uncounted } else { &self.active }
    }
}

/// The counters behind the admission mutex.
#[derive(Debug)]
pub(crate) struct Ledger {
    slots: Vec<Tenure<State>>,
    /// Seconds a token of prefill work takes in this fleet, as the last decision found it.
    mean_speed: f64,
    /// Busy thresholds that were set at run time.
    thresholds: Option<Thresholds>,
}

impl Default for Ledger {
    fn default() -> Self {
        let mean_speed = MeanSpeed::default().seconds_per_token();
        Self { slots: Vec::new(), mean_speed, thresholds: None }
    }
}

/// What is known of one slot.
#[derive(Debug)]
struct State {
    load: SlotLoad,
    queue: Queue,
    speed: Speed,
    /// The share of their full speed that its devices have, as the last decision found it.
    pace: f64,
    /// Whether it is busy by its blocks.
    busy_latch: bool,
}

impl Default for State {
    fn default() -> Self {
        Self {
            load: SlotLoad::default(),
            queue: Queue::default(),
            speed: Speed::default(),
            pace: 1.0,
            busy_latch: false,
        }
    }
}

impl State {
    fn seconds_per_token(&self, mean: f64) -> f64 {
        self.speed.seconds_per_token(mean) / self.pace
    }
}

/// One slot as a decision sees it.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Sight {
    pub(crate) load: SlotLoad,
    pub(crate) backlog: Backlog,
    pub(crate) speed: Speed,
}

impl Ledger {
    /// What `slot` is doing at `now`, or `None` when its generation is over. Its devices have the share `pace` of their full
    /// speed, which is kept for what is learned until somebody looks again.
    pub(crate) fn look(&mut self, slot: Slot, pace: f64, now: Duration) -> Option<Sight> {
        let mean = self.mean_speed;
        let Some(tenure) = self.slots.get_mut(slot.index as usize) else { return Some(Sight::default()) };
        let state = tenure.of(slot.generation)?;
        state.pace = pace;
        let seconds = state.seconds_per_token(mean);
        state.queue.expire(now, seconds);
        Some(Sight { load: state.load, backlog: state.queue.backlog(), speed: state.speed })
    }

    /// The busy thresholds that hold, where the tuning has `tuned`.
    pub(crate) fn thresholds(&self, tuned: Thresholds) -> Thresholds {
        self.thresholds.unwrap_or(tuned)
    }

    /// Whether `slot` is over `thresholds`.
    pub(crate) fn is_busy(&mut self, slot: Slot, thresholds: &Thresholds, capacity: &Capacity) -> bool {
        let state = self.slots.get_mut(slot.index as usize).and_then(|tenure| tenure.of(slot.generation));
        state
            .is_some_and(|State { load, busy_latch, .. }| thresholds.are_exceeded(load, capacity, busy_latch))
    }

    /// Keeps what a decision found its slots to take on average, in seconds a token.
    pub(crate) const fn set_mean_speed(&mut self, seconds: f64) {
        self.mean_speed = seconds;
    }

    fn peek(&self, slot: Slot) -> Option<&State> {
        self.slots.get(slot.index as usize)?.peek(slot.generation)?
    }

    pub(super) fn add(&mut self, slot: Slot, more: SlotLoad) {
        if let Some(state) = self.tenure(slot).of(slot.generation) {
            state.load.add(more);
        }
    }

    pub(super) fn sub(&mut self, slot: Slot, less: SlotLoad) {
        if let Some(state) = self.tenure(slot).of(slot.generation) {
            state.load.sub(less);
        }
    }

    /// Puts prefill work behind what `slot` has before it; nothing where there is no work.
    pub(super) fn enter(&mut self, slot: Slot, work: u64, now: Duration, seen: bool) -> Option<Ticket> {
        if work == 0 {
            return None;
        }
        Some(self.tenure(slot).of(slot.generation)?.queue.enter(work, now, seen))
    }

    /// A prefill is over with its first token, from which the slot's speed is learned.
    pub(super) fn first_token(&mut self, slot: Slot, ticket: Ticket, now: Duration) {
        let mean = self.mean_speed;
        let Some(State { queue, speed, pace, .. }) = self.tenure(slot).of(slot.generation) else { return };
        if let Some((work, took)) = queue.first_token(ticket, now) {
            speed.observe(work, took, *pace, mean);
        }
    }

    /// A prefill is over without a first token that anybody saw.
    pub(super) fn leave(&mut self, slot: Slot, ticket: Ticket) {
        if let Some(state) = self.tenure(slot).of(slot.generation) {
            state.queue.leave(ticket);
        }
    }

    fn tenure(&mut self, slot: Slot) -> &mut Tenure<State> {
        let index = slot.index as usize;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, Tenure::default);
        }
        &mut self.slots[index]
    }
}
