//! The queue.

use super::{
    QueuePolicy, Waiting,
    entry::{Place, Ticket},
    hold::{self, LOOKED_AT},
    limits::{Limits, Overflow, Volume},
    shares::{Shares, Turn},
};
use crate::hash::SequenceHash;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// How a queue works.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct QueueSettings {
    /// Who goes first. With a hold its own order takes the place of this one.
    pub policy: QueuePolicy,
    /// For how long a request is held at most; `None`: the queue is that of the threshold alone.
    pub hold: Option<Duration>,
    /// How much may wait.
    pub limits: Limits,
    /// Whether tenants take turns.
    pub tenants_share: bool,
}

/// What came of looking at a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look<R> {
    /// It leaves the queue with this.
    Leaves(R),
    /// It waits on.
    Waits,
    /// It waits on, and so does every request of its lane.
    LaneWaits,
}

/// What a queue has to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Polled<T, R> {
    /// A request leaves with what looking at it made. Ask again.
    Ready(T, R),
    /// A request is turned away. Ask again.
    Rejected(T, Expired),
    /// Nobody leaves before this moment, unless something changes; `None`: nobody leaves unless it does.
    WaitUntil(Option<Duration>),
}

/// A request's deadline passed while it waited.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the request's deadline passed after {waited:?} in the router's queue")]
pub struct Expired {
    /// How long it had waited.
    pub waited: Duration,
}

/// Requests of one worker set that wait, each with something of the caller's.
#[derive(Debug)]
pub struct Queue<T> {
    settings: QueueSettings,
    /// In order of coming.
    entries: BTreeMap<Ticket, Entry<T>>,
    shares: Shares,
    volume: Volume,
    /// By time, of those that have one.
    deadlines: BTreeSet<(Duration, Ticket)>,
    /// When each hold is over, if there is one.
    ends: BTreeSet<(Duration, Ticket)>,
    /// Who may go though no rank is free: those that may go to some only, and of those that are held the ones that something happened to of which
    /// only they may profit. They have just come, or another request with their first block was booked.
    apart: BTreeSet<Ticket>,
    next: u64,
    /// Memory of a poll: the candidates of each tenant, the first one last.
    candidates: Vec<Vec<Place>>,
}

#[derive(Debug)]
struct Entry<T> {
    waiting: Waiting,
    place: Place,
    payload: T,
}

impl<T> Queue<T> {
    /// An empty queue.
    #[must_use]
    pub const fn new(settings: QueueSettings) -> Self {
        Self {
            settings,
            entries: BTreeMap::new(),
            shares: Shares::new(),
            volume: Volume { requests: 0, isl_tokens: 0 },
            deadlines: BTreeSet::new(),
            ends: BTreeSet::new(),
            apart: BTreeSet::new(),
            next: 0,
            candidates: Vec::new(),
        }
    }

    /// How it works.
    #[must_use]
    pub const fn settings(&self) -> &QueueSettings {
        &self.settings
    }

    /// How many requests wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Prompt tokens of the requests that wait.
    #[must_use]
    pub const fn isl_tokens(&self) -> u64 {
        self.volume.isl_tokens
    }

    /// When the one came that has waited longest.
    #[must_use]
    pub fn oldest(&self) -> Option<Duration> {
        self.entries.first_key_value().map(|(_, entry)| entry.waiting.arrived)
    }

    /// Takes a request in, where a set has so many `workers`. It is looked at with the next poll.
    ///
    /// # Errors
    /// The queue is full, and the request and its payload are dropped.
    pub fn push(&mut self, waiting: Waiting, workers: u64, payload: T) -> Result<Ticket, Overflow> {
        let tenant = self.tenant(&waiting);
        let own = self.shares.get(&tenant).map_or_else(Volume::default, |tenant| tenant.volume);
        self.settings.limits.check(own, self.volume, workers)?;
        let ticket = Ticket(self.next);
        self.next += 1;
        self.enter(ticket, waiting, payload);
        Ok(ticket)
    }

    /// Goes on by other settings, with everybody who waits.
    pub fn reconfigure(&mut self, settings: QueueSettings) {
        let next = self.next;
        let entries = std::mem::take(&mut self.entries);
        *self = Self { next, ..Self::new(settings) };
        for (ticket, Entry { waiting, payload, .. }) in entries {
            self.enter(ticket, waiting, payload);
        }
    }

    fn enter(&mut self, ticket: Ticket, waiting: Waiting, payload: T) {
        let tenant = self.tenant(&waiting);
        let place = Place::new(&waiting.urgency, self.settings.policy.score(&waiting), ticket);
        self.shares.enter(&tenant, place, waiting.isl_tokens);
        self.volume.enter(waiting.isl_tokens);
        if let Some(deadline) = waiting.urgency.deadline {
            self.deadlines.insert((deadline, ticket));
        }
        if let Some(hold) = self.settings.hold {
            self.ends.insert((waiting.arrived.saturating_add(hold), ticket));
        }
        if self.settings.hold.is_some() || waiting.lane != 0 {
            self.apart.insert(ticket);
        }
        self.entries.insert(ticket, Entry { waiting, place, payload });
    }

    /// Takes a request out, because nobody waits for its answer any more. `None` if it has left already.
    pub fn withdraw(&mut self, ticket: Ticket) -> Option<T> {
        let Entry { waiting, place, payload, .. } = self.entries.remove(&ticket)?;
        self.shares.leave(&self.tenant(&waiting), place, waiting.isl_tokens);
        self.volume.leave(waiting.isl_tokens);
        if let Some(deadline) = waiting.urgency.deadline {
            self.deadlines.remove(&(deadline, ticket));
        }
        if let Some(hold) = self.settings.hold {
            self.ends.remove(&(waiting.arrived.saturating_add(hold), ticket));
        }
        self.apart.remove(&ticket);
        Some(payload)
    }

    /// Takes everybody out, in order of coming.
    pub fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        (self.shares, self.volume) = (Shares::new(), Volume::default());
        self.deadlines.clear();
        self.ends.clear();
        self.apart.clear();
        std::mem::take(&mut self.entries).into_values().map(|entry| entry.payload)
    }

    /// How many would go before a request that comes now.
    #[must_use]
    pub fn ahead_of(&self, waiting: &Waiting) -> usize {
        let place = Place::new(&waiting.urgency, self.settings.policy.score(waiting), Ticket(self.next));
        let tenant = self.tenant(waiting);
        self.shares.get(&tenant).map_or(0, |tenant| tenant.order.range(..place).count())
    }

    /// Tells that a request with this first block was booked: who shares it may be better off beside it.
    pub fn booked(&mut self, prefix: Option<SequenceHash>) {
        if self.settings.hold.is_none() || prefix.is_none() {
            return;
        }
        let shares = self.entries.iter().filter(|(_, entry)| entry.waiting.prefix == prefix);
        self.apart.extend(shares.map(|(ticket, _)| *ticket));
    }

    /// Says who leaves at `now`; at most one, so ask until it says when to ask again.
    ///
    /// `look` tries a request, and is told whether its hold is over. `free` says that some rank can take a request, as
    /// [`Selector::outlook`](crate::select::Selector::outlook) finds. While none can, only those are looked at who may go all the
    /// same, which makes a poll cheap where nothing has changed for most: those that may go to some ranks only, and of those that are held the ones whose time
    /// is over, that have just come, or that may join another one.
    pub fn poll<R>(
        &mut self,
        now: Duration,
        free: bool,
        mut look: impl FnMut(&Waiting, &mut T, bool) -> Look<R>,
    ) -> Polled<T, R> {
        if let Some(&(deadline, ticket)) = self.deadlines.first()
            && deadline <= now
        {
            let arrived = self.entries.get(&ticket).map_or(now, |entry| entry.waiting.arrived);
            if let Some(payload) = self.withdraw(ticket) {
                return Polled::Rejected(payload, Expired { waited: now.saturating_sub(arrived) });
            }
        }
        let mut candidates = std::mem::take(&mut self.candidates);
        self.gather(now, free, &mut candidates);
        let left = self.first_to_leave(now, &mut candidates, &mut look);
        self.candidates = candidates;
        if let Some((ticket, outcome, prefix)) = left
            && let Some(payload) = self.withdraw(ticket)
        {
            self.booked(prefix);
            return Polled::Ready(payload, outcome);
        }
        Polled::WaitUntil(self.next_moment(now))
    }

    /// Tries the candidates, by turns, until one leaves.
    fn first_to_leave<R>(
        &mut self,
        now: Duration,
        candidates: &mut [Vec<Place>],
        look: &mut impl FnMut(&Waiting, &mut T, bool) -> Look<R>,
    ) -> Option<(Ticket, R, Option<SequenceHash>)> {
        let mut shut = Vec::new();
        loop {
            for list in &mut *candidates {
                let waits = |place: &Place| {
                    self.entries.get(&place.ticket).is_none_or(|entry| shut.contains(&entry.waiting.lane))
                };
                while list.pop_if(|place| waits(place)).is_some() {}
            }
            let cost = |at: usize| {
                let place = candidates.get(at)?.last()?;
                self.entries.get(&place.ticket).map(|entry| entry.waiting.work())
            };
            let turn @ Turn { tenant, .. } = self.shares.next(cost)?;
            let cost = cost(tenant)?;
            let ticket = candidates.get_mut(tenant)?.pop()?.ticket;
            let over = self.ends_of(ticket).is_some_and(|end| end <= now);
            let entry = self.entries.get_mut(&ticket)?;
            if entry.waiting.lane == 0 {
                self.apart.remove(&ticket);
            }
            match look(&entry.waiting, &mut entry.payload, over) {
                Look::Leaves(outcome) => {
                    let prefix = entry.waiting.prefix;
                    let waits = |at| candidates.get(at).is_some_and(|list: &Vec<Place>| !list.is_empty());
                    self.shares.spend(turn, cost, |at| at == tenant || waits(at));
                    return Some((ticket, outcome, prefix));
                }
                Look::Waits => {}
                Look::LaneWaits => shut.push(entry.waiting.lane),
            }
        }
    }

    /// Who might leave.
    fn gather(&self, now: Duration, free: bool, candidates: &mut Vec<Vec<Place>>) {
        candidates.resize_with(self.shares.tenants().len(), Vec::new);
        candidates.iter_mut().for_each(Vec::clear);
        let over = self.ends.range(..=(now, Ticket::LAST)).map(|(_, ticket)| ticket).take(LOOKED_AT);
        if free {
            let most = if self.settings.hold.is_some() { LOOKED_AT } else { usize::MAX };
            for (list, tenant) in candidates.iter_mut().zip(self.shares.tenants()) {
                list.extend(tenant.order.iter().take(most).map(|place| self.place_at(*place, now)));
            }
        }
        for ticket in self.apart.iter().chain(over) {
            let Some(entry) = self.entries.get(ticket) else { continue };
            if let Some(list) = self
                .shares
                .position(&self.tenant(&entry.waiting))
                .and_then(|position| candidates.get_mut(position))
            {
                list.push(self.place_at(entry.place, now));
            }
        }
        for list in candidates {
            list.sort_unstable_by(|one, other| other.cmp(one));
            list.dedup();
        }
    }

    /// A place as it is at `now`: how long a request was held changes it.
    fn place_at(&self, place: Place, now: Duration) -> Place {
        if self.settings.hold.is_none() {
            return place;
        }
        let held = |Entry { waiting, .. }: &Entry<T>| {
            Place::new(&waiting.urgency, hold::score(waiting, now), place.ticket)
        };
        self.entries.get(&place.ticket).map_or(place, held)
    }

    fn ends_of(&self, ticket: Ticket) -> Option<Duration> {
        let arrived = self.entries.get(&ticket)?.waiting.arrived;
        Some(arrived.saturating_add(self.settings.hold?))
    }

    /// When somebody leaves because time passes. Whose hold is over waits for something else by now.
    fn next_moment(&self, now: Duration) -> Option<Duration> {
        let deadline = self.deadlines.first();
        let end = self.ends.range((now, Ticket::LAST)..).next();
        deadline.into_iter().chain(end).map(|(moment, _)| *moment).min()
    }

    fn tenant(&self, waiting: &Waiting) -> Arc<str> {
        if self.settings.tenants_share { Arc::clone(&waiting.tenant) } else { Arc::default() }
    }
}
