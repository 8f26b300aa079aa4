//! Decisions joined with loads.

use super::{
    Choice, Demand, Member, Mode, Refusal, Row, Scratch, Tuning, decide,
    queue::{self, Outlook, PrefillEstimate, Wait},
};
use crate::{
    index::Overlaps,
    load::{Booking, Claim, Ledger, Loads, OutputGrowth},
};
use fastrand::Rng;
use parking_lot::MutexGuard;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// Chooses for one worker set. Shared by all threads that serve it.
#[derive(Debug)]
pub struct Selector {
    mode: Mode,
    tuning: Tuning,
    loads: Arc<Loads>,
    /// Requests that round robin placed. Written under the admission mutex, which orders it: Relaxed suffices.
    turn: AtomicU64,
}

/// What became of a request that can wait.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is taken apart at once, and a box would be an allocation for every request"
)]
pub enum Admission {
    /// It was chosen for, and is booked.
    Admitted(Choice, Booking),
    /// It should wait.
    Waits(Wait),
}

impl Selector {
    /// A selector for slots that do nothing yet. `tuning` should have passed
    /// [`Tuning::validate`]; without that, choices may be poor but are never undefined.
    #[must_use]
    pub fn new(mode: Mode, tuning: Tuning) -> Self {
        Self::with_loads(mode, tuning, Loads::new())
    }

    /// A selector that goes on with the loads of another, as when a set's configuration changes.
    #[must_use]
    pub const fn with_loads(mode: Mode, tuning: Tuning, loads: Arc<Loads>) -> Self {
        Self { mode, tuning, loads, turn: AtomicU64::new(0) }
    }

    /// A selector of another configuration that goes on where this one is: with its loads, and its turn.
    #[must_use]
    pub fn under(&self, mode: Mode, tuning: Tuning) -> Self {
        let turn = AtomicU64::new(self.turn.load(Relaxed));
        Self { mode, tuning, loads: Arc::clone(&self.loads), turn }
    }

    /// The rule.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// The settings.
    #[must_use]
    pub const fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// What the slots are doing.
    #[must_use]
    pub const fn loads(&self) -> &Arc<Loads> {
        &self.loads
    }

    /// Whether its settings make any request wait.
    #[must_use]
    pub const fn makes_wait(&self) -> bool {
        matches!(self.mode, Mode::Kv) && (self.tuning.queue_threshold.is_some() || self.tuning.hold.is_some())
    }

    /// Chooses a member for `demand` and books the request there, in one step: of two requests admitted at
    /// once, one sees the other's load. `overlaps` is what the index found for the prompt, `now` the time since any moment
    /// that is the same for all calls and all bookings of these loads.
    ///
    /// Work under the set's one mutex grows with the number of members and nothing else.
    ///
    /// # Errors
    /// A [`Refusal`]; nothing is booked then.
    #[expect(
        clippy::too_many_arguments,
        reason = "nothing is taken from the surroundings, so all of it is an argument"
    )]
    pub fn admit(
        &self,
        members: &[Member],
        overlaps: Overlaps<'_>,
        demand: &Demand<'_>,
        scratch: &mut Scratch,
        now: Duration,
        rng: &mut Rng,
    ) -> Result<(Choice, Booking), Refusal> {
        let tuning = self.rows(members, overlaps, demand, scratch);
        let mut ledger = self.loads.ledger();
        scratch.read_loads(&mut ledger, tuning.busy, now);
        let picked = self.pick(&tuning, demand, scratch, now, rng)?;
        let (booking, tokens) = self.book(&tuning, demand, &scratch.rows()[picked], ledger, now);
        Ok((Choice::of(self.mode, scratch.rows(), picked, tokens), booking))
    }

    /// The same for a request that can wait: if the set's settings say that it should, nothing is booked. `hold_over` says
    /// that it was held for as long as they allow.
    ///
    /// # Errors
    /// A [`Refusal`]; nothing is booked then, and there is nothing to wait for.
    #[expect(
        clippy::too_many_arguments,
        reason = "nothing is taken from the surroundings, so all of it is an argument"
    )]
    pub fn admit_when_free(
        &self,
        members: &[Member],
        overlaps: Overlaps<'_>,
        demand: &Demand<'_>,
        hold_over: bool,
        scratch: &mut Scratch,
        now: Duration,
        rng: &mut Rng,
    ) -> Result<Admission, Refusal> {
        let tuning = self.rows(members, overlaps, demand, scratch);
        let mut ledger = self.loads.ledger();
        scratch.read_loads(&mut ledger, tuning.busy, now);
        let picked = self.pick(&tuning, demand, scratch, now, rng)?;
        if let Some(wait) = queue::judge(self.mode, &tuning, demand, scratch, picked, hold_over, now) {
            return Ok(Admission::Waits(wait));
        }
        let (booking, tokens) = self.book(&tuning, demand, &scratch.rows()[picked], ledger, now);
        Ok(Admission::Admitted(Choice::of(self.mode, scratch.rows(), picked, tokens), booking))
    }

    /// Whether the set could take a request now, whichever, and if not, when.
    pub fn outlook(&self, members: &[Member], scratch: &mut Scratch, now: Duration) -> Outlook {
        scratch.gather_alone(members, &self.tuning);
        scratch.read_loads(&mut self.loads.ledger(), self.tuning.busy, now);
        queue::outlook(&self.tuning, scratch, now)
    }

    /// Chooses as [`Selector::admit`] would now, with the same rows in `scratch`; books nothing and takes no
    /// turn. Where chance decides, an admission repeats the choice only with the same `rng`.
    ///
    /// # Errors
    /// A [`Refusal`], as for an admission.
    #[expect(
        clippy::too_many_arguments,
        reason = "nothing is taken from the surroundings, so all of it is an argument"
    )]
    pub fn explain(
        &self,
        members: &[Member],
        overlaps: Overlaps<'_>,
        demand: &Demand<'_>,
        scratch: &mut Scratch,
        now: Duration,
        rng: &mut Rng,
    ) -> Result<Choice, Refusal> {
        let tuning = self.rows(members, overlaps, demand, scratch);
        scratch.read_loads(&mut self.loads.ledger(), tuning.busy, now);
        let picked = self.pick(&tuning, demand, scratch, now, rng)?;
        let claim = claim(&scratch.rows()[picked], demand, &tuning);
        Ok(Choice::of(self.mode, scratch.rows(), picked, claim.prefill_tokens))
    }

    /// Why the request of the last [`Selector::explain`] in `scratch`, which chose `choice`, would wait, if it would.
    #[must_use]
    pub fn explain_wait(
        &self,
        demand: &Demand<'_>,
        scratch: &Scratch,
        choice: &Choice,
        now: Duration,
    ) -> Option<Wait> {
        let tuning = self.tuning.with(&demand.overrides);
        queue::judge(self.mode, &tuning, demand, scratch, choice.row, false, now)
    }

    /// How much there is to compute of the prompt of that request.
    #[must_use]
    pub fn estimate(&self, demand: &Demand<'_>, scratch: &Scratch, choice: &Choice) -> PrefillEstimate {
        queue::estimate(demand, scratch, choice.row)
    }

    /// Makes the rows of a decision, and the settings that hold for it.
    fn rows(
        &self,
        members: &[Member],
        overlaps: Overlaps<'_>,
        demand: &Demand<'_>,
        scratch: &mut Scratch,
    ) -> Tuning {
        let tuning = self.tuning.with(&demand.overrides);
        let active = self.loads.active_reader(!tuning.router_track_active_blocks);
        scratch.gather(members, overlaps, demand, &tuning, &active);
        tuning
    }

    fn pick(
        &self,
        tuning: &Tuning,
        demand: &Demand<'_>,
        scratch: &mut Scratch,
        now: Duration,
        rng: &mut Rng,
    ) -> Result<usize, Refusal> {
        let turn = self.turn.load(Relaxed);
        scratch.set_turn(turn);
        decide(self.mode, tuning, demand, turn, scratch.rows_mut(), now, rng)
    }

    /// Books the request on the row that was picked, before anybody else can look at the loads. Also says how many prompt tokens
    /// that books as waiting for prefill.
    fn book(
        &self,
        tuning: &Tuning,
        demand: &Demand<'_>,
        row: &Row,
        mut ledger: MutexGuard<'_, Ledger>,
        now: Duration,
    ) -> (Booking, u64) {
        if self.mode == Mode::RoundRobin && demand.pin.is_none() && row.tied.is_none() {
            self.turn.store(self.turn.load(Relaxed).wrapping_add(1), Relaxed);
        }
        let claim = claim(row, demand, tuning);
        let booking = Booking::open(&self.loads, &mut ledger, row.slot, &claim, row.new_blocks, now);
        drop(ledger);
        (booking.settle(claim.sequence, row.new_blocks), claim.prefill_tokens)
    }
}

/// What `demand` takes from the slot of `row`, as far as it is tracked.
fn claim<'a>(row: &Row, demand: &Demand<'a>, tuning: &Tuning) -> Claim<'a> {
    let mut claim = Claim::default();
    if tuning.router_track_prefill_tokens {
        claim.prefill_tokens = (demand.isl_tokens as u64).saturating_sub(row.cached_tokens);
        claim.prefill_work = row.prefill_work;
        claim.first_token_seen = demand.first_token_seen;
    }
    if tuning.follows_blocks() {
        claim.sequence = demand.sequence;
        claim.sequence_uncounted = !tuning.router_track_active_blocks;
    }
    if tuning.router_track_active_blocks {
        if claim.sequence.is_empty() {
            claim.private_blocks = demand.blocks();
        }
        claim.output = tuning.router_track_output_blocks.then(|| OutputGrowth {
            prompt_tokens: demand.isl_tokens as u64,
            prompt_blocks: demand.blocks(),
            block_size: demand.block_size,
        });
    }
    claim
}
