//! Decisions joined with loads.

use super::{Choice, Demand, Member, Mode, Refusal, Row, Scratch, Tuning, decide};
use crate::{
    index::Overlaps,
    load::{Booking, Claim, Loads, OutputGrowth},
};
use fastrand::Rng;
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
        let tuning = self.tuning.with(&demand.overrides);
        scratch.gather(
            members,
            overlaps,
            demand,
            &tuning,
            &self.loads.active_reader(!tuning.router_track_active_blocks),
        );

        let mut ledger = self.loads.ledger();
        scratch.read_loads(&mut ledger, now);
        let turn = self.turn.load(Relaxed);
        scratch.set_turn(turn);
        let picked = decide(self.mode, &tuning, demand, turn, scratch.rows_mut(), now, rng)?;
        let row = scratch.rows()[picked];
        if self.mode == Mode::RoundRobin && demand.pin.is_none() && row.tied.is_none() {
            self.turn.store(turn.wrapping_add(1), Relaxed);
        }
        let claim = claim(&row, demand, &tuning);
        let booking = Booking::open(&self.loads, &mut ledger, row.slot, &claim, row.new_blocks, now);
        drop(ledger);

        let booking = booking.settle(claim.sequence, row.new_blocks);
        Ok((Choice::of(self.mode, scratch.rows(), picked, claim.prefill_tokens), booking))
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
        let tuning = self.tuning.with(&demand.overrides);
        scratch.gather(
            members,
            overlaps,
            demand,
            &tuning,
            &self.loads.active_reader(!tuning.router_track_active_blocks),
        );
        scratch.read_loads(&mut self.loads.ledger(), now);
        let turn = self.turn.load(Relaxed);
        scratch.set_turn(turn);
        let picked = decide(self.mode, &tuning, demand, turn, scratch.rows_mut(), now, rng)?;
        let claim = claim(&scratch.rows()[picked], demand, &tuning);
        Ok(Choice::of(self.mode, scratch.rows(), picked, claim.prefill_tokens))
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
