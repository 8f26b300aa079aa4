//! One slot's row in a decision, and where the rows come from.

use super::{
    AffinityMode, Demand, Exclusion, Tie, Tuning,
    cost::{self, Cost, time::FIXED_TOKENS},
};
use crate::{
    device::{Condition, DeviceClass, MeanSpeed, Speed, Terms},
    event::Tier,
    index::{Overlap, Overlaps},
    load::{ActiveReader, Backlog, Capacity, Ledger, Shared, SlotLoad, Thresholds},
    slot::{Rank, Slot, WorkerId},
};
use std::time::Duration;

/// What the fleet knows of one rank.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Member {
    /// Its slot.
    pub slot: Slot,
    /// Its worker.
    pub worker: WorkerId,
    /// Its rank within the worker.
    pub rank: Rank,
    /// What it computes on.
    pub class: DeviceClass,
    /// How its devices are doing, where there is telemetry.
    pub device: Option<Condition>,
    /// What it weighs because it is new or recovered, above 0, to 1.
    pub slow_start: f64,
    /// Whether what the index says of it can be trusted now. If not, its overlap counts as nothing.
    pub credits_overlap: bool,
    /// The slot under which the index has what was sent there lately, if that counts beside what events say.
    pub expected: Option<Slot>,
    /// What its engine can take, as far as anybody said.
    pub capacity: Capacity,
    /// Why it may not be chosen, as far as the fleet knows.
    pub exclusion: Option<Exclusion>,
}

impl Member {
    /// A rank of whose slot, worker and number alone anything is known: an accelerator without telemetry, not new, whose overlaps are
    /// credited, and that may be chosen.
    #[must_use]
    pub fn new(slot: Slot, worker: WorkerId, rank: Rank) -> Self {
        Self {
            slot,
            worker,
            rank,
            class: DeviceClass::Accelerator,
            device: None,
            slow_start: 1.0,
            credits_overlap: true,
            expected: None,
            capacity: Capacity::default(),
            exclusion: None,
        }
    }
}

/// One candidate: what is known of a slot with regard to one request.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Row {
    /// Its slot.
    pub slot: Slot,
    /// Its worker.
    pub worker: WorkerId,
    /// Its rank within the worker.
    pub rank: Rank,
    /// What it computes on.
    pub class: DeviceClass,
    /// What its devices weigh, where there is telemetry and weights are on.
    pub device: Option<Terms>,
    /// What it weighs because it is new or recovered, above 0, to 1.
    pub slow_start: f64,
    /// Why it may not be chosen; `None` makes it eligible.
    pub exclusion: Option<Exclusion>,
    /// What the request's session makes of it, if it went there last.
    pub tied: Option<AffinityMode>,
    /// Leading blocks of the prompt that it is credited with.
    pub overlap: Overlap,
    /// What the index says of it and is not credited, because the member's `credits_overlap` is false.
    pub withheld: Option<Overlap>,
    /// Leading blocks of the prompt that were sent there lately, of which the overlap takes account.
    pub expected: u32,
    /// Prompt tokens that it need not compute, slower tiers counted in part.
    pub cached_tokens: u64,
    /// Leading blocks of the prompt that its requests in flight use, where these share what they have in common.
    pub carried: u32,
    /// How many of those requests use the last of these blocks.
    pub carriers: u32,
    /// What it will have of the prompt once what it is doing is done: the overlap, and what is carried.
    pub predicted: Overlap,
    /// Blocks of the prompt that none of its requests in flight uses.
    pub new_blocks: u64,
    /// The prompt's prefill there, in tokens of work: what will not be cached, and a fixed part.
    pub prefill_work: u64,
    /// What it was doing when the decision was made.
    pub load: SlotLoad,
    /// The prefill work that it had before it then.
    pub backlog: Backlog,
    /// How fast it has been, with what its devices were known to be slower for taken out.
    pub speed: Speed,
    /// What its engine can take, as far as anybody said.
    pub capacity: Capacity,
    /// Whether it is over a busy threshold. Its worker cannot be chosen if all ranks of it are.
    pub busy: bool,
    /// What the request would cost there; set by modes that price candidates.
    pub cost: Option<Cost>,
}

impl Row {
    /// The row of `member` before anything is known of the request.
    #[must_use]
    pub fn new(member: &Member) -> Self {
        let nothing = Overlap::default();
        Self {
            slot: member.slot,
            worker: member.worker,
            rank: member.rank,
            class: member.class,
            device: None,
            slow_start: member.slow_start,
            exclusion: member.exclusion,
            tied: None,
            overlap: nothing,
            withheld: if member.credits_overlap { None } else { Some(nothing) },
            expected: 0,
            cached_tokens: 0,
            carried: 0,
            carriers: 0,
            predicted: nothing,
            new_blocks: 0,
            prefill_work: 0,
            load: SlotLoad::default(),
            backlog: Backlog::default(),
            speed: Speed::default(),
            capacity: member.capacity,
            busy: false,
            cost: None,
        }
    }

    /// Whether it may be chosen.
    #[must_use]
    pub const fn is_eligible(&self) -> bool {
        self.exclusion.is_none()
    }

    /// Its requests in flight and the one to come, for what it weighs while it starts slowly: in the order of the requests in
    /// flight among rows that weigh the same.
    pub(super) fn requests_for_weight(&self) -> f64 {
        (f64::from(self.load.requests) + 1.0) / self.slow_start
    }

    /// The share of their full speed that its devices are known to have, above 0, to 1.
    #[must_use]
    pub fn pace(&self) -> f64 {
        self.device.map_or(1.0, |terms| terms.pace())
    }

    /// Seconds that a token of prefill work takes there now, in a fleet that takes `mean`.
    #[must_use]
    pub fn seconds_per_token(&self, mean: f64) -> f64 {
        self.speed.seconds_per_token(mean) / self.pace()
    }

    /// The row as it would be under another `tuning`, as far as that only values what the row knows: blocks of slower tiers
    /// and devices. What was counted under the old one, and what was not, stays as it is.
    pub fn revalue(&mut self, demand: &Demand<'_>, tuning: &Tuning) {
        self.device = tuning.device_weights.again(self.device);
        self.value(demand, tuning);
    }

    /// Says what its blocks are worth to `demand`.
    fn value(&mut self, demand: &Demand<'_>, tuning: &Tuning) {
        self.cached_tokens = cost::cached_tokens(self.overlap, demand.block_size, tuning);
        self.predicted = cost::predicted(self.overlap, self.carried);
        let cached = cost::cached_tokens(self.predicted, demand.block_size, tuning);
        self.prefill_work = (demand.isl_tokens as u64).saturating_sub(cached).max(1) + FIXED_TOKENS;
    }

    /// The overlap as the index said it, credited or not.
    const fn reported(&mut self) -> &mut Overlap {
        match &mut self.withheld {
            Some(withheld) => withheld,
            None => &mut self.overlap,
        }
    }
}

/// The memory that decisions work in; one a thread, reused, so that a warm decision allocates nothing.
/// The rows of the last decision stay until the next.
#[derive(Debug, Default)]
pub struct Scratch {
    rows: Vec<Row>,
    /// The row of each slot index, or [`NO_ROW`].
    row_of: Vec<u32>,
    turn: u64,
    /// What the rows' slots take on average, in seconds a token, when their loads were read.
    mean_speed: f64,
}

const NO_ROW: u32 = u32::MAX;

impl Scratch {
    /// An empty scratch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The rows of the last decision, in order of its members.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Requests that round robin had placed before the last decision.
    #[must_use]
    pub const fn turn(&self) -> u64 {
        self.turn
    }

    /// Seconds a token of prefill work takes in the fleet of the last decision.
    pub(super) const fn mean_speed(&self) -> f64 {
        self.mean_speed
    }

    pub(super) const fn set_turn(&mut self, turn: u64) {
        self.turn = turn;
    }

    pub(super) fn rows_mut(&mut self) -> &mut [Row] {
        &mut self.rows
    }

    /// Makes the rows of `members`: everything but their loads, which are read when the decision is made.
    pub(super) fn gather(
        &mut self,
        members: &[Member],
        overlaps: Overlaps<'_>,
        demand: &Demand<'_>,
        tuning: &Tuning,
        active: &ActiveReader<'_>,
    ) {
        self.gather_alone(members, tuning);
        self.credit(members, overlaps);
        let blocks = demand.blocks();
        for row in &mut self.rows {
            row.exclusion = row.exclusion.or_else(|| excluded_by(demand, row));
            if row.withheld.is_none() {
                row.overlap = cost::predicted(row.overlap, row.expected);
            }
            let mut shared = Shared::default();
            if tuning.follows_blocks() {
                shared = active.shared(row.slot, demand.sequence);
                (row.carried, row.carriers) =
                    (u32::try_from(shared.blocks).unwrap_or(u32::MAX), shared.requests);
            }
            if tuning.router_track_active_blocks {
                row.new_blocks = blocks - shared.blocks as u64;
            }
            row.value(demand, tuning);
        }
        if let Some(tie) = demand.tie {
            self.tie(tie);
        }
    }

    /// Marks the slot that a session went to last. If that is a must, nobody else is eligible, unless that slot takes no
    /// requests: then the session is free. One that is merely busy has its session all the same.
    fn tie(&mut self, tie: Tie) {
        let Some(row) = self.rows.iter_mut().find(|row| row.slot == tie.slot) else { return };
        row.tied = Some(tie.mode);
        if tie.mode == AffinityMode::Hard && matches!(row.exclusion, None | Some(Exclusion::Overloaded)) {
            for row in self.rows.iter_mut().filter(|row| row.tied.is_none()) {
                row.exclusion = row.exclusion.or(Some(Exclusion::OtherSession));
            }
        }
    }

    /// Makes the rows of `members` for no request in particular.
    pub(super) fn gather_alone(&mut self, members: &[Member], tuning: &Tuning) {
        self.rows.clear();
        let device = |member: &Member| tuning.device_weights.of(member.device);
        self.rows.extend(members.iter().map(|member| Row { device: device(member), ..Row::new(member) }));
    }

    /// Reads what the rows' slots are doing at `now`; one whose slot is no more cannot be chosen, nor one of a worker that
    /// is over the busy thresholds with all of its ranks, which stand together.
    pub(super) fn read_loads(&mut self, ledger: &mut Ledger, tuned: Thresholds, now: Duration) {
        let mut fleet = MeanSpeed::default();
        for row in &mut self.rows {
            match ledger.look(row.slot, row.pace(), now) {
                Some(sight) => {
                    (row.load, row.backlog, row.speed) = (sight.load, sight.backlog, sight.speed);
                    fleet.add(sight.speed);
                }
                None => row.exclusion = row.exclusion.or(Some(Exclusion::Retired)),
            }
        }
        self.mean_speed = fleet.seconds_per_token();
        ledger.set_mean_speed(self.mean_speed);
        let thresholds = ledger.thresholds(tuned);
        if !thresholds.any() {
            return;
        }
        for ranks in self.rows.chunk_by_mut(|one, other| one.worker == other.worker) {
            for row in &mut *ranks {
                row.busy = ledger.is_busy(row.slot, &thresholds, &row.capacity);
            }
            if ranks.iter().all(|row| row.busy) {
                for row in ranks {
                    row.exclusion = row.exclusion.or(Some(Exclusion::Overloaded));
                }
            }
        }
    }

    /// Spreads the index's answer over the rows. Slots are compared whole, so that a member is never
    /// credited with what another generation of its slot holds.
    fn credit(&mut self, members: &[Member], overlaps: Overlaps<'_>) {
        if overlaps.is_empty() {
            return;
        }
        self.row_of.fill(NO_ROW);
        for (position, member) in members.iter().enumerate() {
            for slot in [Some(member.slot), member.expected].into_iter().flatten() {
                let index = slot.index as usize;
                if self.row_of.len() <= index {
                    self.row_of.resize(index + 1, NO_ROW);
                }
                self.row_of[index] = u32::try_from(position).unwrap_or(NO_ROW);
            }
        }
        for (depth, slots) in overlaps.levels() {
            for &slot in slots {
                let Some(position) = self.position(slot) else { continue };
                let row = &mut self.rows[position];
                if row.slot == slot {
                    row.reported().gpu = depth;
                } else if members[position].expected == Some(slot) {
                    row.expected = depth;
                }
            }
        }
        for extension in overlaps.extensions() {
            let Some(position) = self.position(extension.slot) else { continue };
            let row = &mut self.rows[position];
            if row.slot != extension.slot {
                continue;
            }
            let overlap = row.reported();
            match extension.tier {
                Tier::Gpu => overlap.gpu = extension.blocks,
                Tier::Host => overlap.host = extension.blocks,
                Tier::Disk => overlap.disk = extension.blocks,
                Tier::External => overlap.external = extension.blocks,
            }
        }
    }

    /// The row that may be about `slot`, by its index alone.
    fn position(&self, slot: Slot) -> Option<usize> {
        let position = *self.row_of.get(slot.index as usize)? as usize;
        (position < self.rows.len()).then_some(position)
    }
}

fn excluded_by(demand: &Demand<'_>, row: &Row) -> Option<Exclusion> {
    if demand.pin.is_some_and(|pin| !pin.holds(row.worker, row.rank)) {
        Some(Exclusion::NotPinned)
    } else if demand.avoid.contains(&row.worker) {
        Some(Exclusion::AlreadyTried)
    } else {
        None
    }
}
