//! Turns between tenants: deficit round robin (Shreedhar and Varghese, 1995).
//!
//! In its turn a tenant is granted [`QUANTUM`] tokens, and its requests go as long as what it was granted pays for their
//! uncached tokens. What is left is kept for its next turn, unless nothing of it waits then. Over time tenants get equal shares
//! of prefill, whatever the sizes and numbers of their requests.

use super::{entry::Place, limits::Volume};
use std::{collections::BTreeSet, sync::Arc};

/// Tokens granted with each turn. Smaller than many prompts, so that turns are short; any size shares equally in the long run.
pub(super) const QUANTUM: u64 = 4096;

/// The requests of one tenant.
#[derive(Debug)]
pub(super) struct Tenant {
    name: Arc<str>,
    /// Tokens granted and not spent.
    deficit: u64,
    /// In order of leaving.
    pub(super) order: BTreeSet<Place>,
    pub(super) volume: Volume,
}

/// Every tenant of whom something waits, in order of their turns.
#[derive(Debug)]
pub(super) struct Shares {
    tenants: Vec<Tenant>,
    /// Whose turn it is.
    turn: usize,
}

/// Whose turn it would be, and how many steps around the ring away.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Turn {
    steps: u64,
    pub(super) tenant: usize,
}

impl Shares {
    pub(super) const fn new() -> Self {
        Self { tenants: Vec::new(), turn: 0 }
    }

    pub(super) fn tenants(&self) -> &[Tenant] {
        &self.tenants
    }

    pub(super) fn position(&self, name: &str) -> Option<usize> {
        self.tenants.iter().position(|tenant| &*tenant.name == name)
    }

    pub(super) fn get(&self, name: &str) -> Option<&Tenant> {
        self.position(name).map(|at| &self.tenants[at])
    }

    pub(super) fn enter(&mut self, name: &Arc<str>, place: Place, isl_tokens: u64) {
        let at = self.position(name).unwrap_or_else(|| {
            let (name, order) = (Arc::clone(name), BTreeSet::new());
            // Who comes first has its turn.
            let deficit = if self.tenants.is_empty() { QUANTUM } else { 0 };
            self.tenants.push(Tenant { name, deficit, order, volume: Volume::default() });
            self.tenants.len() - 1
        });
        let tenant = &mut self.tenants[at];
        tenant.order.insert(place);
        tenant.volume.enter(isl_tokens);
    }

    /// Takes a request out. A tenant of whom nothing is left loses what it was granted.
    pub(super) fn leave(&mut self, name: &str, place: Place, isl_tokens: u64) {
        let Some(at) = self.position(name) else { return };
        let tenant = &mut self.tenants[at];
        tenant.order.remove(&place);
        tenant.volume.leave(isl_tokens);
        if !tenant.order.is_empty() {
            return;
        }
        self.tenants.remove(at);
        let len = self.tenants.len();
        if at < self.turn {
            self.turn -= 1;
        } else if at == self.turn && len > 0 {
            // Of the one before, who had its turn, so that the one behind is next.
            self.turn = (at + len - 1) % len;
        }
        if len == 0 {
            self.turn = 0;
        }
    }

    /// Whose turn comes first, of those who have a request that might go; `cost` is that request's.
    pub(super) fn next(&self, cost: impl Fn(usize) -> Option<u64>) -> Option<Turn> {
        let len = self.tenants.len() as u64;
        let turns = self.tenants.iter().enumerate().filter_map(|(at, tenant)| {
            let missing = cost(at)?.saturating_sub(tenant.deficit);
            let grants = missing.div_ceil(QUANTUM);
            let steps = match self.distance(at) {
                0 => grants.saturating_mul(len),
                distance => (grants.max(1) - 1).saturating_mul(len).saturating_add(distance),
            };
            Some(Turn { steps, tenant: at })
        });
        turns.min()
    }

    /// Goes on to `turn` and spends `cost` there. Whoever takes part, because a request of it might go, is granted what the
    /// way there grants.
    pub(super) fn spend(&mut self, turn: Turn, cost: u64, takes_part: impl Fn(usize) -> bool) {
        let len = self.tenants.len() as u64;
        for at in (0..self.tenants.len()).filter(|&at| takes_part(at)) {
            let grants = match self.distance(at) {
                0 => turn.steps / len,
                distance if turn.steps >= distance => (turn.steps - distance) / len + 1,
                _ => 0,
            };
            let tenant = &mut self.tenants[at];
            tenant.deficit = tenant.deficit.saturating_add(grants.saturating_mul(QUANTUM));
        }
        let tenant = &mut self.tenants[turn.tenant];
        tenant.deficit = tenant.deficit.saturating_sub(cost);
        self.turn = turn.tenant;
    }

    /// Steps from whose turn it is.
    fn distance(&self, at: usize) -> u64 {
        let len = self.tenants.len();
        ((at + len - self.turn) % len) as u64
    }
}
