//! Placing a request: tokens to block hashes, a lookup in the index, and the decision.
//!
//! All of it runs in one go on the request's thread, without an await. The memory it works in belongs
//! to the thread and is reused, so a warm placement allocates what its booking keeps and nothing else.

use std::{
    borrow::Cow,
    cell::RefCell,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use fastrand::Rng;

use super::{
    app::App,
    asked_model::AskedModel,
    counters::Counters,
    decision_log::{Moment, Ticket},
    error::ApiError,
    first_token::FirstToken,
    hints::Hints,
    prompts::Tokens,
    session::{self, Session},
    two_hop::has,
};
use crate::{
    fleet::{FleetView, PrefillPool, RankMember, SessionId, SessionUse, SetState, SetView},
    hash::{self, BlockHash, BlockHasher, Identity, SequenceHash},
    index,
    load::Booking,
    select::{
        self, Choice, Demand, Member, Mode, Overrides, Phase, Pin, Refusal, RefusalKind, Row, cost::Cost,
    },
    slot::WorkerId,
};

/// A prompt as placement sees it.
#[derive(Clone, Debug, Default)]
pub(super) struct Prompt {
    pub(super) tokens: Tokens,
    /// The adapter that the request asks for.
    pub(super) lora: Option<String>,
    /// The cache namespace that the engine will use.
    pub(super) salt: Option<String>,
    /// Whether the answer comes piece by piece, so that its first token can be told from its last.
    pub(super) streams: bool,
    /// The request's name, if its decisions are recorded.
    pub(super) recorded: Option<Arc<str>>,
}

/// One hop of a request: which part of its work is placed, the worker that it insists on, and its session.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Hop {
    pub(super) phase: Phase,
    pub(super) pin: Option<Pin>,
    pub(super) session: Option<SessionId>,
}

impl Hop {
    /// All of the work in one place.
    pub(super) fn whole(hints: &Hints) -> Self {
        Self { phase: Phase::Aggregated, pin: hints.pin, session: hints.session }
    }

    /// The decode hop gets the prompt's blocks from elsewhere: it has nothing to prefill, and its blocks are its own.
    /// What it has cached saves nothing, unless it may compute the rest of a prompt itself.
    fn overrides(self, set: &SetView) -> Overrides {
        if self.phase != Phase::Decode {
            return Overrides::default();
        }
        Overrides {
            assume_kv_reuse: Some(false),
            track_prefill_tokens: Some(false),
            overlap_score_credit: set.config.tuning.conditional_disagg.is_none().then_some(0.0),
            ..Overrides::default()
        }
    }
}

/// A placed request.
pub(super) struct Placed {
    pub(super) choice: Choice,
    pub(super) booking: Booking,
    /// Its part in its session, to be held as long as the booking.
    pub(super) session: Option<SessionUse>,
    pub(super) first_token: FirstToken,
    /// What is to be said of the decision later, if it was recorded.
    pub(super) ticket: Option<Ticket>,
    pub(super) member: Arc<RankMember>,
}

/// What a dry run looked at besides the rows.
pub(super) struct Considered {
    /// Full blocks of the prompt.
    pub(super) blocks: usize,
    pub(super) session: Option<Session>,
}

/// Memory of one thread.
struct Workspace {
    hashes: Vec<BlockHash>,
    sequence: Vec<SequenceHash>,
    members: Vec<Member>,
    lookup: index::Scratch,
    rows: select::Scratch,
    rng: Rng,
}

thread_local! {
    static WORKSPACE: RefCell<Workspace> = RefCell::new(Workspace {
        hashes: Vec::new(),
        sequence: Vec::new(),
        members: Vec::new(),
        lookup: index::Scratch::new(),
        rows: select::Scratch::new(),
        rng: Rng::new(),
    });
}

impl App {
    /// The set that serves what is asked for now, and the adapter if the name is one. Of several sets it is the one with
    /// the worker that the request is pinned to, else one is drawn, by their numbers of workers that can take it.
    ///
    /// # Errors
    /// 404 for a model nobody serves, or nobody at this route; 503 for one that has prefill workers only.
    pub(super) fn set_for(
        &self,
        asked: &AskedModel,
        hints: &Hints,
    ) -> Result<(Arc<SetView>, Option<String>), ApiError> {
        let view = self.fleet.view();
        let model = &asked.name;
        let route = view.route(model).ok_or_else(|| {
            if view.has_prefill(model) {
                return ApiError::unavailable(format!(
                    "no worker decodes '{model}' now, only prefill workers do serve it"
                ));
            }
            ApiError::model_not_found(model, &view.models())
        })?;
        let sets = serving(&view, &route.sets, asked).ok_or_else(|| asked.not_served(&view, &route.sets))?;
        let now = self.fleet.clock().now();
        let set = pinned_set(&view, &sets, hints)
            .or_else(|| session_set(&view, &sets, hints.session?, now))
            .or_else(|| draw_set(&view, &sets, route.lora.as_deref(), self.fleet.now_ms()))
            .ok_or_else(|| ApiError::unavailable(format!("no worker serves '{model}' now")))?;
        Ok((set, route.lora.clone()))
    }

    /// Chooses a worker of `set` and books the request there.
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
        WORKSPACE.with_borrow_mut(|space| {
            let asked = Instant::now();
            hash_prompt(space, set, prompt);
            let hashed = Instant::now();
            let overlaps = set.index.overlap(&space.hashes, &mut space.lookup);
            let looked_up = Instant::now();
            set.gather(prompt.lora.as_deref(), self.fleet.now_ms(), &mut space.members);
            let now = self.fleet.clock().now();
            let session = Session::of(set, hop, now);
            let demand = demand(set, prompt, (hop, session.as_ref()), &space.sequence, avoid);
            let seed = space.rng.get_seed();
            let admitted =
                set.selector.admit(&space.members, overlaps, &demand, &mut space.rows, now, &mut space.rng);
            self.counters.hash.observe(hashed - asked);
            self.counters.lookup.observe(looked_up - hashed);
            self.counters.admit.observe(looked_up.elapsed());
            self.counters.rows(space.rows.rows());
            let ticket = prompt.recorded.as_ref().and_then(|name| {
                let moment = Moment {
                    set,
                    generation: self.fleet.view().generation,
                    prompt,
                    demand: &demand,
                    scratch: &space.rows,
                    seed,
                    clock: self.fleet.clock(),
                    now,
                };
                self.decisions.keep(name, &moment, admitted.as_ref().map(|(choice, _)| choice))
            });
            let (choice, booking) = admitted?;
            self.counters.choice(&choice);
            let session = session.and_then(|session| {
                let (outcome, begun) = session.begin(set, choice.slot, self.fleet.clock());
                self.counters.session(outcome);
                begun
            });
            // A decode hop takes its blocks from elsewhere, so what it has cached was not asked for.
            if hop.phase != Phase::Decode {
                self.counters.prefix(&choice, space.hashes.len());
            }
            // Rows stand in the order of the members, which were gathered from this very view.
            let member = set.members.get(choice.row).ok_or(Refusal::NoWorkers)?;
            member.chosen.fetch_add(1, Relaxed);
            if let Some(expected) = member.expected.as_ref().filter(|_| set.config.mode == Mode::Kv) {
                expected.kept_by.sent(&space.hashes, &space.sequence);
            }
            let predicted = choice.cost.and_then(|cost| cost.first_token());
            let times = || self.counters.first_tokens.of(&set.key);
            let first_token = FirstToken::expect(self.fleet.clock(), now, predicted, times);
            Ok(Placed { choice, booking, session, first_token, ticket, member: Arc::clone(member) })
        })
    }

    /// Decides as [`App::place`] would now, without booking, and hands the outcome with every candidate's row
    /// and its session to `read`.
    pub(super) fn dry_run<R>(
        &self,
        set: &SetView,
        prompt: &Prompt,
        hop: Hop,
        read: impl FnOnce(Result<Choice, Refusal>, &[Row], &Considered) -> R,
    ) -> R {
        WORKSPACE.with_borrow_mut(|space| {
            hash_prompt(space, set, prompt);
            let overlaps = set.index.overlap(&space.hashes, &mut space.lookup);
            set.gather(prompt.lora.as_deref(), self.fleet.now_ms(), &mut space.members);
            let now = self.fleet.clock().now();
            let session = Session::of(set, hop, now);
            let demand = demand(set, prompt, (hop, session.as_ref()), &space.sequence, &[]);
            let outcome =
                set.selector.explain(&space.members, overlaps, &demand, &mut space.rows, now, &mut space.rng);
            read(outcome, space.rows.rows(), &Considered { blocks: space.hashes.len(), session })
        })
    }
}

/// Those of the sets at `positions` that have the route that is asked for; none if that is none of them.
fn serving<'a>(view: &FleetView, positions: &'a [usize], asked: &AskedModel) -> Option<Cow<'a, [usize]>> {
    let serves = |position: &usize| view.sets.get(*position).is_some_and(|set| asked.is_served_by(set));
    // Nearly always, and without a copy.
    if positions.iter().all(serves) {
        return Some(Cow::Borrowed(positions));
    }
    let some: Vec<_> = positions.iter().copied().filter(serves).collect();
    if some.is_empty() { None } else { Some(Cow::Owned(some)) }
}

fn pinned_set(view: &FleetView, sets: &[usize], hints: &Hints) -> Option<Arc<SetView>> {
    let sets = || sets.iter().filter_map(|&position| view.sets.get(position));
    let pinned = |set: &&Arc<SetView>| hints.pin.is_some_and(|pin| has(set, &pin));
    // A pinned prefill worker serves one decode set.
    let prefill_pinned = |set: &&Arc<SetView>| match (&set.prefill, hints.prefill_pin.or(hints.pin)) {
        (PrefillPool::Active(prefill), Some(pin)) => has(prefill, &pin),
        _ => false,
    };
    sets().find(pinned).or_else(|| sets().find(prefill_pinned)).map(Arc::clone)
}

fn session_set(
    view: &FleetView,
    positions: &[usize],
    session: SessionId,
    now: Duration,
) -> Option<Arc<SetView>> {
    if positions.len() == 1 {
        return None;
    }
    let sets = positions.iter().filter_map(|&position| view.sets.get(position));
    session::set_of(sets, session, now).map(Arc::clone)
}

fn draw_set(
    view: &FleetView,
    positions: &[usize],
    adapter: Option<&str>,
    now_ms: u64,
) -> Option<Arc<SetView>> {
    let sets = || positions.iter().filter_map(|&position| view.sets.get(position));
    if positions.len() == 1 {
        return sets().next().map(Arc::clone);
    }
    let total: usize = sets().map(|set| set.routable_for(adapter, now_ms)).sum();
    if total == 0 {
        // The refusal of any of them says why.
        return sets().next().map(Arc::clone);
    }
    let mut draw = WORKSPACE.with_borrow_mut(|space| space.rng.usize(..total));
    for set in sets() {
        let share = set.routable_for(adapter, now_ms);
        if draw < share {
            return Some(Arc::clone(set));
        }
        draw -= share;
    }
    // A worker left between the two counts.
    sets().next().map(Arc::clone)
}

fn hash_prompt(space: &mut Workspace, set: &SetView, prompt: &Prompt) {
    let identity = Identity::new(prompt.lora.as_deref(), prompt.salt.as_deref());
    let hasher = BlockHasher::new(set.block_size, identity);
    let tokens = hash::Prompt { eagle: set.eagle, ..hash::Prompt::text(&prompt.tokens.ids) };
    hasher.hash(&tokens, &mut space.hashes);
    hash::chain(&space.hashes, &mut space.sequence);
}

fn demand<'a>(
    set: &SetView,
    prompt: &Prompt,
    (hop, session): (Hop, Option<&Session>),
    sequence: &'a [SequenceHash],
    avoid: &'a [WorkerId],
) -> Demand<'a> {
    let demand = Demand::new(prompt.tokens.ids.len(), set.block_size, sequence);
    // A prefill's answer is its first token.
    let first_token_seen = prompt.streams || hop.phase == Phase::Prefill;
    Demand {
        phase: hop.phase,
        pin: hop.pin,
        tie: session.and_then(Session::tie),
        avoid,
        overrides: hop.overrides(set),
        first_token_seen,
        ..demand
    }
}

/// A refusal as a client sees it.
pub(super) fn refused(set: &SetView, refusal: &Refusal) -> ApiError {
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
        RefusalKind::Busy => ApiError::overloaded(message),
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
