//! Placing a request: tokens to block hashes, a lookup in the index, and the decision.
//!
//! All of it runs in one go on the request's thread, without an await. The memory it works in belongs
//! to the thread and is reused, so a warm placement allocates what its booking keeps and nothing else.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use super::{
    app::App,
    asking::{Asking, Hop, Prompt},
    counters::Counters,
    decision_log::{Moment, Recorder, Ticket},
    error::ApiError,
    first_token::FirstToken,
    session::Session,
    traces::Part,
    workspace::{Blocks, Hashed, Tools, hashed},
};
use crate::{
    fleet::{Fleet, Probe, ProbeTaken, RankMember, SessionUse, SetState, SetView},
    hash::SequenceHash,
    index::Overlap,
    load::Booking,
    select::{
        Admission, Choice, Demand, Mode, Phase, Refusal, RefusalKind, Row,
        cost::Cost,
        queue::{PrefillEstimate, Wait, WaitReason},
    },
    slot::WorkerId,
};

/// A placed request.
pub(super) struct Placed {
    pub(super) choice: Choice,
    pub(super) booking: Booking,
    /// Whether it tries a worker that failed, to be held until that says how it went.
    pub(super) probe: Option<Probe>,
    /// Its part in its session, to be held as long as the booking.
    pub(super) session: Option<SessionUse>,
    pub(super) first_token: FirstToken,
    /// What is to be said of the decision later, if it was recorded.
    pub(super) ticket: Option<Ticket>,
    /// What the index says of the member, whether or not it was credited; nothing where its stream cannot be trusted.
    pub(super) predicted: Option<Overlap>,
    pub(super) member: Arc<RankMember>,
    /// The span of its way to the worker, to be held until the answer is over.
    pub(super) attempt: Option<Part>,
}

/// What a dry run looked at besides the rows.
pub(super) struct Considered {
    /// Full blocks of the prompt.
    pub(super) blocks: usize,
    pub(super) session: Option<Session>,
}

/// What came of a request that may wait.
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for every request")]
pub(super) enum Trial {
    Placed(Placed),
    Waits(WaitReason),
}

/// Whether a request may wait.
#[derive(Clone, Copy)]
pub(super) enum Patience<'a> {
    /// It may not, and shall not go where it failed already.
    None { avoid: &'a [WorkerId] },
    /// It may, unless it has been held for long enough.
    Waits { hold_over: bool },
}

impl App {
    /// Chooses a worker of `set` and books the request there, at once.
    ///
    /// # Errors
    /// Why it got none.
    pub(super) fn place(
        &self,
        set: &SetView,
        prompt: &Prompt,
        hop: Hop,
        avoid: &[WorkerId],
    ) -> Result<Placed, Refusal> {
        hashed(set, prompt, Some(&self.counters.hash), |blocks, tools| {
            let patience = Patience::None { avoid };
            match self.placing(set).place(tools, blocks, &prompt.asking(hop), patience)? {
                Trial::Placed(placed) => Ok(placed),
                // Nobody without patience waits.
                Trial::Waits(_) => Err(Refusal::NoWorkers),
            }
        })
    }

    /// The same, unless the request should wait.
    ///
    /// # Errors
    /// Why it got no worker.
    pub(super) fn place_unless_it_waits(
        &self,
        set: &SetView,
        prompt: &Prompt,
        hop: Hop,
    ) -> Result<Trial, Refusal> {
        hashed(set, prompt, Some(&self.counters.hash), |blocks, tools| {
            let patience = Patience::Waits { hold_over: false };
            self.placing(set).place(tools, blocks, &prompt.asking(hop), patience)
        })
    }

    /// How much there is to compute, why the request would wait if it came now and nobody else did, if it would, and the
    /// prompt's blocks to keep.
    ///
    /// # Errors
    /// Why the request would get no worker.
    pub(super) fn estimate(
        &self,
        set: &SetView,
        prompt: &Prompt,
        hop: Hop,
    ) -> Result<(PrefillEstimate, Option<Wait>, Hashed), Refusal> {
        self.explained(set, prompt, hop, &[], |outcome, tools, dry| {
            let choice = outcome?;
            let estimate = set.selector.estimate(&dry.demand, &tools.rows, &choice);
            let wait = set.selector.explain_wait(&dry.demand, &tools.rows, &choice, dry.now);
            let Blocks { hashes, sequence } = dry.blocks;
            Ok((estimate, wait, Hashed { hashes: hashes.to_vec(), sequence: sequence.to_vec() }))
        })
    }

    /// Decides as [`App::place`] would now, without booking, and hands the outcome with every candidate's row
    /// to `read`.
    pub(super) fn dry_run<R>(
        &self,
        set: &SetView,
        prompt: &Prompt,
        hop: Hop,
        read: impl FnOnce(Result<Choice, Refusal>, &[Row], &Considered) -> R,
    ) -> R {
        self.explained(set, prompt, hop, &[], |outcome, tools, dry| {
            let considered = Considered { blocks: dry.blocks.hashes.len(), session: dry.session };
            read(outcome, tools.rows.rows(), &considered)
        })
    }

    /// Whether anybody but the workers to `avoid` would take the request now.
    pub(super) fn takes(&self, set: &SetView, prompt: &Prompt, hop: Hop, avoid: &[WorkerId]) -> bool {
        self.explained(set, prompt, hop, avoid, |outcome, _, _| outcome.is_ok())
    }

    fn explained<R>(
        &self,
        set: &SetView,
        prompt: &Prompt,
        hop: Hop,
        avoid: &[WorkerId],
        read: impl FnOnce(Result<Choice, Refusal>, &mut Tools, Dry<'_>) -> R,
    ) -> R {
        hashed(set, prompt, None, |blocks, tools| {
            let Tools { members, lookup, rows, rng } = tools;
            let asking = prompt.asking(hop);
            // Whom to credit before what they hold: see `StreamStatus::state`.
            set.gather(asking.adapter(), self.fleet.now_ms(), members);
            let overlaps = set.index.overlap(blocks.hashes, lookup);
            let now = self.fleet.clock().now();
            let session = Session::of(set, hop, now);
            let demand = demand(set, &asking, session.as_ref(), blocks.sequence, avoid);
            let outcome = set.selector.explain(members, overlaps, &demand, rows, now, rng);
            read(outcome, tools, Dry { blocks, demand, session, now })
        })
    }

    fn placing<'a>(&'a self, set: &'a SetView) -> Placing<'a> {
        let Self { fleet, counters, decisions, .. } = self;
        Placing { fleet, counters, decisions, set }
    }
}

/// What was asked in a dry run.
struct Dry<'a> {
    blocks: Blocks<'a>,
    demand: Demand<'a>,
    session: Option<Session>,
    now: Duration,
}

/// What it takes to place a request.
#[derive(Clone, Copy)]
pub(super) struct Placing<'a> {
    pub(super) fleet: &'a Fleet,
    pub(super) counters: &'a Counters,
    pub(super) decisions: &'a Recorder,
    pub(super) set: &'a SetView,
}

impl Placing<'_> {
    /// Looks the blocks of a prompt up, and places its request.
    ///
    /// # Errors
    /// Why it got no worker.
    pub(super) fn place(
        self,
        tools: &mut Tools,
        blocks: Blocks<'_>,
        asking: &Asking<'_>,
        patience: Patience<'_>,
    ) -> Result<Trial, Refusal> {
        loop {
            if let Some(trial) = self.choose(tools, blocks, asking, patience)? {
                return Ok(trial);
            }
        }
    }

    /// Makes one choice; `None` if it fell on a worker that failed and that another request is trying by now, which the next
    /// choice knows.
    fn choose(
        self,
        tools: &mut Tools,
        blocks: Blocks<'_>,
        asking: &Asking<'_>,
        patience: Patience<'_>,
    ) -> Result<Option<Trial>, Refusal> {
        let Self { fleet, counters, decisions, set } = self;
        let Tools { members, lookup, rows, rng } = tools;
        let Blocks { hashes, sequence } = blocks;
        let hashed = Instant::now();
        // Whom to credit before what they hold: see `StreamStatus::state`.
        let all_failed = set.gather(asking.adapter(), fleet.now_ms(), members);
        let gathered = Instant::now();
        let overlaps = set.index.overlap(hashes, lookup);
        let looked_up = Instant::now();
        let now = fleet.clock().now();
        let session = Session::of(set, asking.hop, now);
        let avoid = if let Patience::None { avoid } = patience { avoid } else { &[] };
        let demand = demand(set, asking, session.as_ref(), sequence, avoid);
        let seed = rng.get_seed();
        let admitted = match patience {
            Patience::None { .. } => set.selector.admit(members, overlaps, &demand, rows, now, rng),
            Patience::Waits { hold_over } => {
                match set.selector.admit_when_free(members, overlaps, &demand, hold_over, rows, now, rng) {
                    Ok(Admission::Admitted(choice, booking)) => Ok((choice, booking)),
                    // Whoever waits is looked at again and again, and counts when that is over.
                    Ok(Admission::Waits(wait)) => return Ok(Some(Trial::Waits(wait.reason))),
                    Err(refusal) => Err(refusal),
                }
            }
        };
        // Rows stand in the order of the members, which were gathered from this very view.
        let chosen = admitted.as_ref().ok().and_then(|(choice, _)| set.members.get(choice.row));
        let probe = match chosen.filter(|_| !all_failed).map(|member| fleet.enter(&member.worker)) {
            Some(Err(ProbeTaken)) => return Ok(None),
            Some(Ok(probe)) => probe,
            None => None,
        };
        counters.lookup.observe(looked_up - gathered);
        counters.admit.observe(looked_up.elapsed() + (gathered - hashed));
        counters.rows(rows.rows());
        let ticket = asking.prompt.recorded.as_ref().and_then(|name| {
            let moment = Moment {
                set,
                prompt: asking.prompt,
                demand: &demand,
                scratch: rows,
                seed,
                clock: fleet.clock(),
                now,
            };
            decisions.keep(name, &moment, admitted.as_ref().map(|(choice, _)| choice))
        });
        let (choice, booking) = admitted?;
        counters.choice(&choice);
        let session = session.and_then(|session| {
            let (outcome, begun) = session.begin(set, choice.slot, fleet.clock());
            counters.session(outcome);
            begun
        });
        // A decode hop takes its blocks from elsewhere, so what it has cached was not asked for.
        if asking.hop.phase != Phase::Decode {
            counters.prefix(&choice, hashes.len());
        }
        let member = chosen.ok_or(Refusal::NoWorkers)?;
        member.tally.chosen.fetch_add(1, Relaxed);
        if let Some(expected) = member.expected.as_ref().filter(|_| set.config.mode == Mode::Kv) {
            expected.kept_by.sent(hashes, sequence);
        }
        if choice.overlap.total() > 0 {
            member.status.note_match(fleet.now_ms());
        }
        let predicted = choice.cost.and_then(|cost| cost.first_token());
        let times = || counters.first_tokens.of(&set.key);
        let first_token = FirstToken::expect(fleet.clock(), now, predicted, times);
        let held = rows.rows().get(choice.row).and_then(|row| row.withheld).unwrap_or(choice.overlap);
        let predicted = member.status.state().credits_overlap().then_some(held);
        let member = Arc::clone(member);
        Ok(Some(Trial::Placed(Placed {
            choice,
            booking,
            probe,
            session,
            first_token,
            ticket,
            predicted,
            member,
            attempt: None,
        })))
    }
}

fn demand<'a>(
    set: &SetView,
    asking: &Asking<'_>,
    session: Option<&Session>,
    sequence: &'a [SequenceHash],
    avoid: &'a [WorkerId],
) -> Demand<'a> {
    let Asking { prompt, isl_tokens, hop } = *asking;
    Demand {
        phase: hop.phase,
        pin: hop.pin,
        tie: session.and_then(Session::tie),
        avoid,
        overrides: hop.overrides(set),
        // A prefill's answer is its first token.
        first_token_seen: prompt.streams || hop.phase == Phase::Prefill,
        ..Demand::new(isl_tokens, set.block_size, sequence)
    }
}

/// A refusal as a client sees it.
pub(super) fn refused(app: &App, set: &SetView, refusal: &Refusal) -> ApiError {
    let message = match set.state() {
        SetState::Conflict if refusal.kind() == RefusalKind::Unavailable => format!(
            "worker set {} takes no requests: the cards of its workers differ in {}",
            set.key,
            set.differing_fields().join(", ")
        ),
        _ => refusal.to_string(),
    };
    match refusal.kind() {
        RefusalKind::Unavailable => ApiError::unavailable(format!("{message}; send the request again later")),
        RefusalKind::Busy => ApiError::overloaded(app.settings.overload_status, message),
        RefusalKind::Invalid => ApiError::bad_field("nvext", message),
    }
}

impl Counters {
    fn rows(&self, rows: &[Row]) {
        for exclusion in rows.iter().filter_map(|row| row.exclusion) {
            self.exclusion(exclusion);
        }
    }

    fn prefix(&self, choice: &Choice, blocks: usize) {
        self.prompt_blocks.fetch_add(blocks as u64, Relaxed);
        self.overlap_blocks.fetch_add(u64::from(choice.overlap.total()), Relaxed);
    }

    fn choice(&self, choice: &Choice) {
        self.choices.fetch_add(1, Relaxed);
        self.candidates.fetch_add(u64::from(choice.candidates), Relaxed);
        // A cost beyond reason shall not make a sum wrap.
        let (sum, parts) = match choice.cost {
            Some(Cost::Blocks(cost)) => (&self.cost_block_thousandths, cost.total * 1e3),
            Some(Cost::Time(cost)) => (&self.cost_microseconds, cost.total * 1e6),
            None => return,
        };
        sum.fetch_add(parts.min(1e12) as u64, Relaxed);
    }
}
