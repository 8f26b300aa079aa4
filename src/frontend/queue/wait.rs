//! The way of a request through a queue.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{
    Left, SetQueue,
    set_queue::{Means, Waiter},
};
use crate::{
    fleet::SetView,
    frontend::{
        app::App,
        asking::{Hop, Prompt},
        error::ApiError,
        hints::Hints,
        place::{Placed, Trial},
        session::Session,
        workspace::Hashed,
    },
    select::{
        AffinityMode, Phase, Refusal,
        queue::{Expired, Overflow, Ticket, Urgency, Wait, Waiting},
    },
    slot::WorkerId,
};

/// Why a request has no worker.
#[derive(Debug)]
pub(in crate::frontend) enum NotPlaced {
    /// Nobody could take it.
    Refused(Refusal),
    /// It was not let wait, or no longer.
    TurnedAway(TurnedAway),
}

/// Why a request does not wait.
#[derive(Debug)]
pub(in crate::frontend) enum TurnedAway {
    /// The queue is full; `expected` is how long it will take until a worker is free.
    Full { overflow: Overflow, expected: Duration },
    /// It waited for too long.
    Late(Expired),
}

impl TurnedAway {
    /// As a client sees it.
    pub(in crate::frontend) fn error(&self) -> ApiError {
        match self {
            Self::Full { overflow, expected } => ApiError::turned_away(
                "queue_full",
                format!(
                    "all workers are busy, and the queue is full: {overflow}; send the request again later"
                ),
                *expected,
            ),
            Self::Late(expired) => ApiError::turned_away(
                "deadline_exceeded",
                format!(
                    "all workers are busy, and nvext.router.ttft_target passed after {:.3} s in the queue; send the \
                     request again with a later target",
                    expired.waited.as_secs_f64()
                ),
                Duration::ZERO,
            ),
        }
    }
}

/// A request's place in a queue, which it leaves with this.
struct Place {
    queue: Arc<SetQueue>,
    ticket: Ticket,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.queue.withdraw(self.ticket);
    }
}

impl App {
    /// Chooses a worker of `set` and books the request there, once the set's configuration lets it go. One that failed at
    /// the workers to `avoid` has waited before, and does not wait again.
    ///
    /// # Errors
    /// Why it got none.
    pub(in crate::frontend) async fn place_in_turn(
        &self,
        set: &SetView,
        prompt: &Prompt,
        hop: Hop,
        hints: &Hints,
        avoid: &[WorkerId],
    ) -> Result<Placed, NotPlaced> {
        // A decode hop has nothing to prefill, so nothing to wait for.
        if !avoid.is_empty() || !set.selector.makes_wait() || hop.phase == Phase::Decode {
            return self.place(set, prompt, hop, avoid).map_err(NotPlaced::Refused);
        }
        let queue = self.queues.of(set, &self.settings);
        // Who comes while others wait stands behind them, even if somebody has become free this very moment.
        if queue.is_idle()
            && let Trial::Placed(placed) =
                self.place_unless_it_waits(set, prompt, hop).map_err(NotPlaced::Refused)?
        {
            return Ok(placed);
        }
        self.wait(&queue, set, prompt, hop, hints).await
    }

    async fn wait(
        &self,
        queue: &Arc<SetQueue>,
        set: &SetView,
        prompt: &Prompt,
        hop: Hop,
        hints: &Hints,
    ) -> Result<Placed, NotPlaced> {
        let (waiting, wait, blocks) = self.waiting(set, prompt, hop, hints).map_err(NotPlaced::Refused)?;
        let (answer, answered) = oneshot::channel();
        let isl_tokens = prompt.asking(hop).isl_tokens;
        let waiter = Waiter { prompt: prompt.without_tokens(), isl_tokens, hop, blocks, answer };
        let means = Means {
            fleet: Arc::clone(&self.fleet),
            counters: Arc::clone(&self.counters),
            decisions: Arc::clone(&self.decisions),
        };
        let workers = set.worker_count() as u64;
        let ticket = queue.join(waiting, waiter, workers, &means);
        let ticket = ticket.map_err(|overflow| {
            let full = if overflow.name == "tokens" { Left::FullOfTokens } else { Left::FullOfRequests };
            self.queues.tally.count(full);
            let expected = wait.map_or(Duration::ZERO, |wait| wait.expected);
            NotPlaced::TurnedAway(TurnedAway::Full { overflow, expected })
        })?;
        let _place = Place { queue: Arc::clone(queue), ticket };
        // Nobody answers if the queue's task broke, or the server stops.
        answered.await.unwrap_or(Err(NotPlaced::Refused(Refusal::NoWorkers)))
    }

    fn waiting(
        &self,
        set: &SetView,
        prompt: &Prompt,
        hop: Hop,
        hints: &Hints,
    ) -> Result<(Waiting, Option<Wait>, Hashed), Refusal> {
        let (prefill, wait, blocks) = self.estimate(set, prompt, hop)?;
        let arrived = self.fleet.clock().now();
        let waiting = Waiting {
            arrived,
            urgency: Urgency {
                strict_priority: hints.haste.strict_priority,
                priority_jump: hints.haste.priority_jump,
                deadline: hints.haste.first_token_within.map(|within| arrived.saturating_add(within)),
            },
            lane: lane(set, prompt, hop, arrived),
            tenant: hints.tenant.as_deref().unwrap_or_default().into(),
            isl_tokens: prompt.asking(hop).isl_tokens as u64,
            uncached_tokens: prefill.uncached_tokens,
            prefill_seconds: prefill.seconds,
            prefix: blocks.sequence.first().copied(),
        };
        Ok((waiting, wait, blocks))
    }
}

/// The lane of a request: 0, unless it is pinned, its session is tied to a worker, or not every worker has its adapter.
fn lane(set: &SetView, prompt: &Prompt, hop: Hop, now: Duration) -> u64 {
    let tie = Session::of(set, hop, now).and_then(|session| session.tie());
    let tie = tie.filter(|tie| tie.mode == AffinityMode::Hard).map(|tie| tie.slot);
    let pin = hop.pin.map(|pin| (pin.worker, pin.rank));
    if pin.is_none() && tie.is_none() && prompt.lora.is_none() {
        return 0;
    }
    // Two that meet by chance share a lane, and one may then wait for the other's workers: once in a very long while.
    ahash::RandomState::with_seeds(1, 2, 3, 4).hash_one((pin, tie, &prompt.lora)).max(1)
}

/// What explain says of the queue that a request would find; `None` where nobody waits.
pub(in crate::frontend) fn describe(
    app: &App,
    set: &SetView,
    prompt: &Prompt,
    hop: Hop,
    hints: &Hints,
) -> Option<Value> {
    if !set.selector.makes_wait() {
        return None;
    }
    let tuning = &set.config.tuning;
    let queue = app.queues.known(set);
    let depth = queue.as_ref().map(|queue| queue.depth(app.fleet.clock().now())).unwrap_or_default();
    let told = app.waiting(set, prompt, hop, hints).ok();
    let ahead = queue.zip(told.as_ref()).map(|(queue, (waiting, ..))| queue.ahead_of(waiting));
    let wait = told.and_then(|(_, wait, _)| wait);
    Some(json!({
        "threshold": tuning.queue_threshold,
        "hold_seconds": tuning.hold.map(|hold| hold.as_secs_f64()),
        "order": order(set),
        "requests": depth.requests,
        "prompt_tokens": depth.isl_tokens,
        "oldest_seconds": depth.oldest.as_secs_f64(),
        "waits_for": wait.map(|wait| wait.reason.name()),
        "ahead": ahead.unwrap_or(0),
        "expected_seconds": wait.map(|wait| wait.expected.as_secs_f64()),
    }))
}

/// What the order of a set's queue is called in metrics and explain.
pub(in crate::frontend) fn order(set: &SetView) -> &'static str {
    match set.config.tuning.hold {
        _ if !set.selector.makes_wait() => "none",
        Some(_) => "aged",
        None => set.config.tuning.queue_policy.name(),
    }
}
