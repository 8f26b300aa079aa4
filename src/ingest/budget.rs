//! Memory that all indexes of the process may use together, and which ranks stop growing when it is used.
//!
//! Three marks. Above the *high* one ranks stop growing one by one, the coldest first, spread over what is left below the
//! *limit*, so that the hottest grow longest; at the limit none grows. Below the *low* mark those that stopped are built anew,
//! one at a time, the one that stopped first first: whoever stopped cold can only become warm by growing.
//!
//! A rank is *cold* by the time since a request was last sent there for what it has cached. Ranks for which none ever was are the
//! coldest, and among them the one of which most batches were applied, since it grows most.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{gate::Gate, handle::Rebuild, settings::IngestSettings};
use crate::slot::{Rank, Slot, WorkerId};

/// Parts of the limit that lie above the high mark, and above the low one.
const ABOVE_HIGH: u64 = 16;
const ABOVE_LOW: u64 = 8;
/// Bytes of the limit for each entry that tables are made large enough for beforehand: about twice what one takes.
const BYTES_AN_EXPECTED: u64 = 64;

/// What the indexes use, as appliers report it, and who may grow.
///
/// The numbers are `Relaxed`: appliers act on them a batch late at most, and what they do about them they do under the lock.
#[derive(Debug)]
pub(super) struct Budget {
    limit: Option<u64>,
    pause: Duration,
    used: AtomicU64,
    /// Bytes at which the next rank stops.
    next_stop: AtomicU64,
    /// Ranks that have stopped and have not begun anew.
    stopped: AtomicU64,
    ranks: Mutex<Ranks>,
}

#[derive(Debug, Default)]
struct Ranks {
    growing: Vec<Member>,
    /// The one that stopped first comes first.
    stopped: VecDeque<Member>,
    /// Was told to begin anew, and has not yet.
    beginning: Option<Member>,
    begun: Option<Instant>,
    /// Whether it was said that memory is short.
    warned: bool,
}

/// A rank, and how it is told to begin anew.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) slot: Slot,
    pub(super) worker: WorkerId,
    pub(super) rank: Rank,
    pub(super) gate: Arc<Gate>,
    pub(super) rebuild: Rebuild,
}

/// The budget at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IndexMemory {
    /// Bytes that the indexes use.
    pub used: u64,
    /// Bytes that they may use.
    pub limit: Option<u64>,
    /// Ranks whose blocks the indexes hold no more of, because memory is short.
    pub stopped_ranks: u64,
}

impl Budget {
    pub(super) fn new(settings: &IngestSettings) -> Self {
        let budget = Self {
            limit: settings.memory_limit,
            pause: settings.growth_pause,
            used: AtomicU64::new(0),
            next_stop: AtomicU64::new(u64::MAX),
            stopped: AtomicU64::new(0),
            ranks: Mutex::default(),
        };
        budget.next_stop.store(budget.high(), Relaxed);
        budget
    }

    pub(super) fn memory(&self) -> IndexMemory {
        IndexMemory {
            used: self.used.load(Relaxed),
            limit: self.limit,
            stopped_ranks: self.stopped.load(Relaxed),
        }
    }

    /// For how many entries tables may be made large enough beforehand.
    pub(super) fn expected(&self, entries: u64) -> u64 {
        self.limit.map_or(entries, |limit| entries.min(limit / BYTES_AN_EXPECTED))
    }

    fn high(&self) -> u64 {
        self.limit.map_or(u64::MAX, |limit| limit - limit / ABOVE_HIGH)
    }

    /// Whether ranks stop growing, or soon will.
    pub(super) fn is_tight(&self) -> bool {
        self.limit.is_some() && self.used.load(Relaxed) >= self.high()
    }

    fn low(&self) -> u64 {
        self.limit.map_or(0, |limit| limit - limit / ABOVE_LOW)
    }

    /// When to note again though nothing has changed: ranks that have stopped wait for their turn to begin anew.
    pub(super) fn wait(&self) -> Option<Duration> {
        (self.stopped.load(Relaxed) > 0).then(|| self.pause.max(Duration::from_millis(10)))
    }

    /// A rank comes, and may grow until it is its turn to stop.
    pub(super) fn enter(&self, member: Member) {
        if self.limit.is_none() {
            return;
        }
        let mut ranks = self.ranks.lock();
        ranks.growing.push(member);
        self.set_next_stop(ranks.growing.len());
    }

    /// A rank is gone.
    pub(super) fn leave(&self, slot: Slot) {
        if self.limit.is_none() {
            return;
        }
        let mut ranks = self.ranks.lock();
        ranks.growing.retain(|member| member.slot != slot);
        ranks.stopped.retain(|member| member.slot != slot);
        ranks.beginning.take_if(|member| member.slot == slot);
        self.count(&mut ranks);
    }

    /// An index uses so many bytes now, and used `before`; whoever has to stops, or begins anew.
    pub(super) fn note(&self, before: &mut u64, now: u64) {
        let change = now.wrapping_sub(std::mem::replace(before, now));
        let used = self.used.fetch_add(change, Relaxed).wrapping_add(change);
        if self.limit.is_none() {
            return;
        }
        if used >= self.next_stop.load(Relaxed) {
            self.stop_coldest();
        } else if used < self.low() && self.stopped.load(Relaxed) > 0 {
            self.begin_one();
        }
    }

    fn stop_coldest(&self) {
        let mut ranks = self.ranks.lock();
        let used = self.used.load(Relaxed);
        if used < self.next_stop.load(Relaxed) {
            return;
        }
        let warmth = |member: &Member| {
            let status = member.gate.status();
            (status.matched_ms(), u64::MAX - status.totals().batches)
        };
        let growing = ranks.growing.iter().enumerate().min_by_key(|(_, member)| warmth(member));
        let Some((coldest, _)) = growing else {
            self.set_next_stop(0);
            return;
        };
        let member = ranks.growing.swap_remove(coldest);
        member.gate.stop_growth();
        if !std::mem::replace(&mut ranks.warned, true) {
            tracing::warn!(
                worker = %member.worker,
                rank = %member.rank,
                used,
                limit = self.limit,
                "the index comes near its memory limit: ranks that are matched least hold no more blocks than they do; raise \
                 --index-memory-limit if that lasts"
            );
        }
        ranks.stopped.push_back(member);
        self.count(&mut ranks);
        self.set_next_stop(ranks.growing.len());
    }

    /// Tells the rank that stopped first to begin anew, unless another one just was.
    fn begin_one(&self) {
        let mut ranks = self.ranks.lock();
        if ranks.beginning.is_some() || ranks.begun.is_some_and(|begun| begun.elapsed() < self.pause) {
            return;
        }
        let Some(member) = ranks.stopped.pop_front() else { return };
        member.rebuild.ask();
        ranks.begun = Some(Instant::now());
        ranks.beginning = Some(member);
    }

    /// The index holds nothing of a rank any more: if it was told to begin anew, this is where it does.
    pub(super) fn emptied(&self, slot: Slot) {
        if self.limit.is_none() {
            return;
        }
        let mut ranks = self.ranks.lock();
        let Some(member) = ranks.beginning.take_if(|member| member.slot == slot) else { return };
        member.gate.start_growth();
        ranks.growing.push(member);
        self.count(&mut ranks);
        self.set_next_stop(ranks.growing.len());
    }

    fn count(&self, ranks: &mut Ranks) {
        let stopped = ranks.stopped.len() + usize::from(ranks.beginning.is_some());
        self.stopped.store(stopped as u64, Relaxed);
        if stopped == 0 && std::mem::take(&mut ranks.warned) {
            tracing::info!("the index holds all blocks of all ranks again, as far as streams are complete");
        }
    }

    /// What is left below the limit is shared out among those who grow: the last one stops there.
    fn set_next_stop(&self, growing: usize) {
        let used = self.used.load(Relaxed).max(self.high());
        let next = match self.limit {
            Some(_) if growing > 0 && self.stopped.load(Relaxed) == 0 => self.high(),
            Some(limit) if growing > 0 => used + limit.saturating_sub(used) / growing as u64,
            _ => u64::MAX,
        };
        self.next_stop.store(next, Relaxed);
    }
}
