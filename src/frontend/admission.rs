//! Placing a request in a fleet that changes meanwhile.
//!
//! A request takes its worker set from one view, and may find that nobody is left in it: the workers went while its
//! prompt was turned into tokens, or the set's members disagree about their configuration. Its successors are in
//! the view of now, or soon will be, so it looks again, and waits a moment where that can help.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::{
    app::App,
    error::ApiError,
    place::{Placed, refused},
    queue::NotPlaced,
    route::Send,
};
use crate::{
    fleet::SetState,
    select::{Refusal, RefusalKind},
};

/// How long a request waits, at most, for a worker set that has members and admits none of them. Long enough for
/// a registration and a removal that follow each other, short enough for a client that could go elsewhere.
const ADMISSION_WAIT: Duration = Duration::from_secs(1);

impl App {
    /// Chooses a worker and books the request there, in the set that the request has, else in the one that serves
    /// its model by then. A request that failed somewhere has waited before, and does not wait again.
    ///
    /// # Errors
    /// The last refusal, as a client sees it.
    pub(super) async fn place_in_time(&self, send: &mut Send) -> Result<Placed, ApiError> {
        match self.place_send(send).await {
            Ok(placed) => Ok(placed),
            Err(NotPlaced::Refused(refusal)) => self.place_later(send, refusal).await,
            Err(NotPlaced::TurnedAway(reason)) => Err(reason.error()),
        }
    }

    async fn place_send(&self, send: &Send) -> Result<Placed, NotPlaced> {
        self.place_in_turn(&send.set, &send.prompt, send.hop, &send.hints, send.tries.avoid()).await
    }

    async fn place_later(&self, send: &mut Send, mut refusal: Refusal) -> Result<Placed, ApiError> {
        let deadline = Instant::now() + ADMISSION_WAIT;
        // Before the view is looked at: a change after that look is then heard of.
        let mut changes = self.fleet.changes();
        let mut seen = None;
        while refusal.kind() == RefusalKind::Unavailable {
            let generation = self.fleet.view().generation;
            if seen == Some(generation) {
                let waits = send.set.state() == SetState::Conflict;
                if !waits || !matches!(timeout_at(deadline, changes.changed()).await, Ok(Ok(()))) {
                    break;
                }
                continue;
            }
            seen = Some(generation);
            // A model that has gone altogether is unavailable rather than unknown: the request was in time for it.
            let Ok((set, _)) = self.set_for(&send.model, &send.hints) else { break };
            send.set = set;
            match self.place_send(send).await {
                Ok(placed) => return Ok(placed),
                Err(NotPlaced::Refused(again)) => refusal = again,
                Err(NotPlaced::TurnedAway(reason)) => return Err(reason.error()),
            }
        }
        // Of a request that a worker answered the answer is told, and not this.
        if !send.tries.answered() {
            self.counters.refusal(refusal.kind());
        }
        Err(refused(self, &send.set, &refusal))
    }
}
