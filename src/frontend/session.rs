//! A request's session: where it went last, and what comes of that.

use std::{fmt, sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::{app::App, asking::Hop};
use crate::{
    fleet::{Clock, SessionId, SessionUse, SetView},
    metrics::Page,
    select::{AffinityMode, Choice, Exclusion, Row, SessionAffinity, Tie},
    slot::Slot,
};

/// The session of one hop, in a set that remembers sessions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session {
    id: SessionId,
    affinity: SessionAffinity,
    /// Where its last request went.
    seen: Option<Slot>,
}

impl Session {
    /// The session of `hop` as `set` knows it at `now`; `None` if the request names none, or the set remembers none.
    pub(super) fn of(set: &SetView, hop: Hop, now: Duration) -> Option<Self> {
        let (id, affinity) = (hop.session?, set.config.tuning.session_affinity);
        let ttl = Duration::from_secs(affinity.ttl_secs?);
        Some(Self { id, affinity, seen: set.sessions.slot(id, ttl, now) })
    }

    /// What it says to the choice.
    pub(super) fn tie(&self) -> Option<Tie> {
        self.seen.map(|slot| Tie { slot, mode: self.affinity.mode })
    }

    /// Remembers the choice for as long as what is returned lives, and the set's time beyond.
    pub(super) fn begin(
        &self,
        set: &SetView,
        chosen: Slot,
        clock: Clock,
    ) -> (SessionOutcome, Option<SessionUse>) {
        let begun = SessionUse::begin(&set.sessions, self.id, self.seen, chosen, clock);
        let outcome = if begun.is_some() { self.outcome(chosen) } else { SessionOutcome::Full };
        (outcome, begun)
    }

    fn outcome(&self, chosen: Slot) -> SessionOutcome {
        match self.seen {
            None => SessionOutcome::New,
            Some(seen) if seen == chosen => SessionOutcome::Kept,
            Some(_) => SessionOutcome::Moved,
        }
    }

    /// For explain: where the session is, whether the request follows it, and why not.
    pub(super) fn object(&self, set: &SetView, choice: Option<&Choice>, rows: &[Row]) -> Value {
        let member = self.seen.and_then(|slot| set.by_slot(slot));
        let bound = member.map(|member| json!({ "worker_id": member.worker.id.0, "dp_rank": member.rank.0 }));
        let mut object = json!({
            "mode": self.affinity.mode.name(),
            "ttl_secs": self.affinity.ttl_secs,
            "bound_to": bound,
        });
        if let Some(choice) = choice {
            let outcome = self.outcome(choice.slot);
            object["outcome"] = json!(outcome.name());
            if outcome == SessionOutcome::Moved {
                object["because"] = json!(self.why_not(rows));
            }
        }
        object
    }

    /// Why the request does not go where the session is.
    fn why_not(&self, rows: &[Row]) -> String {
        let Some(row) = rows.iter().find(|row| Some(row.slot) == self.seen) else {
            return "the worker that had the session is gone".to_owned();
        };
        match row.exclusion {
            Some(Exclusion::NotPinned) => "the request is pinned elsewhere".to_owned(),
            Some(exclusion) => {
                format!("the worker that has the session cannot take the request: {exclusion}")
            }
            None if self.affinity.mode == AffinityMode::Soft => {
                "another worker costs less, even with what going on there is worth".to_owned()
            }
            None => "another request of the session was placed meanwhile".to_owned(),
        }
    }
}

/// What became of a session when a request of it was placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionOutcome {
    /// Nobody had it.
    New,
    /// It stays where it was.
    Kept,
    /// It goes on elsewhere.
    Moved,
    /// It is not remembered: all that are have requests in flight.
    Full,
}

impl SessionOutcome {
    /// Every outcome.
    pub const ALL: [Self; 4] = [Self::New, Self::Kept, Self::Moved, Self::Full];

    /// The name in metrics and in explain.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Kept => "kept",
            Self::Moved => "moved",
            Self::Full => "full",
        }
    }
}

/// Of several sets that serve a model, the one that has the session at a worker of its own.
pub(super) fn set_of<'a>(
    mut sets: impl Iterator<Item = &'a Arc<SetView>>,
    session: SessionId,
    now: Duration,
) -> Option<&'a Arc<SetView>> {
    let hop = Hop { session: Some(session), ..Hop::default() };
    let has = |set: &&Arc<SetView>| {
        let seen = Session::of(set, hop, now).and_then(|session| session.seen);
        seen.is_some_and(|slot| set.by_slot(slot).is_some())
    };
    sets.find(has)
}

/// What there is to say of sessions on the metrics page. `sets` come with their names and what they serve.
pub(super) fn write(app: &App, sets: &[(&Arc<SetView>, String, String)], page: &mut Page<'_>) -> fmt::Result {
    let help = "Placed requests of sessions, by what became of the session";
    page.counters_by("outcome", "session_requests", help, app.counters.sessions())?;
    let now = app.fleet.clock().now();
    let sets = sets.iter().map(|(set, name, model_type)| {
        let labels = [("worker_set", name.as_str()), ("model", &set.key.model), ("model_type", model_type)];
        let ttl = Duration::from_secs(set.config.tuning.session_affinity.ttl_secs.unwrap_or(0));
        (labels, i64::try_from(set.sessions.count(ttl, now)).unwrap_or(i64::MAX))
    });
    let sets: Vec<_> = sets.collect();
    page.gauges(
        "worker_set_sessions",
        "Sessions that a worker set remembers",
        sets.iter().map(|(labels, count)| (&labels[..], *count)),
    )
}
