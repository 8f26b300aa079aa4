//! What is learned of an answer while it passes, and what a request holds until it is over.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use axum::{
    body::Body,
    response::{IntoResponse as _, Response},
};
use http::{StatusCode, request::Parts};
use serde_json::{Map, Value, json};

use super::{
    access_log::Facts,
    app::App,
    counters::{Counters, Outcome, Surface},
    decision_log::Ticket,
    error::{self, ApiError},
    first_token::FirstToken,
    gate::Place,
    hints::Metadata,
    place::Placed,
    traces::{Part, Step},
    two_hop::{self, Prefiller},
};
use crate::{
    fleet::{RankMember, SessionUse, unix_ms},
    index::Overlap,
    load::Booking,
    proxy::{Annotator, Answer, End, Observer, Time, Usage},
};

/// A request that is being served. It is in flight for as long as this lives, and counted once, by how it
/// ended.
pub(super) struct InFlight {
    counters: Arc<Counters>,
    surface: Surface,
    asked: Instant,
    ended: bool,
    /// Until when the answer has to be complete.
    time: Option<Time>,
    /// Its place among those that are served.
    place: Option<Arc<Place>>,
    /// What the access log is told, and the request's trace, where there is either.
    facts: Option<Arc<Facts>>,
}

impl InFlight {
    pub(super) fn enter(counters: &Arc<Counters>, surface: Surface) -> Self {
        // Relaxed: a gauge.
        counters.in_flight.fetch_add(1, Relaxed);
        let counters = Arc::clone(counters);
        Self { counters, surface, asked: Instant::now(), ended: false, time: None, place: None, facts: None }
    }

    /// The same for a request whose place and whose line, if it has one, came with its head, and whose body has so many bytes.
    pub(super) fn noted(mut self, head: &mut Parts, bytes: usize) -> Self {
        // Taken out: others get copies of the head.
        self.place = head.extensions.remove();
        self.facts = Facts::of(head).map(Arc::clone);
        self.note(|facts| facts.read(bytes));
        self
    }

    /// The same for a request that has so long from now; zero is for ever, and so is what goes beyond all time.
    pub(super) fn within(mut self, limit: Duration) -> Self {
        let until = self.asked.checked_add(limit).filter(|_| !limit.is_zero());
        self.time = until.map(|until| Time { until: until.into(), limit });
        self
    }

    /// Until when its answer has to be complete.
    pub(super) const fn time(&self) -> Option<Time> {
        self.time
    }

    /// Waits for what is done before there is an answer, for as long as the request has.
    ///
    /// # Errors
    /// 504 when its time is over; what was done is dropped then.
    pub(super) async fn in_time<T>(&self, doing: impl Future<Output = T>) -> Result<T, ApiError> {
        match self.time {
            None => Ok(doing.await),
            Some(Time { until, limit }) => {
                tokio::time::timeout_at(until, doing).await.map_err(|_| ApiError::out_of_time(limit))
            }
        }
    }

    /// Tells the access log, and the trace.
    pub(super) fn note(&self, what: impl FnOnce(&Facts)) {
        if let Some(facts) = &self.facts {
            what(facts);
        }
    }

    /// A part of its time that begins, if it is traced.
    pub(super) fn step(&self, step: Step) -> Option<Part> {
        self.facts.as_ref().and_then(|facts| facts.step(step))
    }

    /// Counts it as finished; once, calls after the first change nothing.
    fn end(&mut self, outcome: Outcome) {
        if !std::mem::replace(&mut self.ended, true) {
            self.counters.request(self.surface, outcome);
            self.note(|facts| facts.ended(outcome));
        }
    }

    /// Counts it as served.
    pub(super) fn complete(&mut self) {
        self.end(Outcome::Ok);
    }

    /// Ends it with an error of our own.
    pub(super) fn refuse(mut self, error: ApiError) -> Response {
        self.end(Outcome::of_status(error.status));
        error.into_response()
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.counters.in_flight.fetch_sub(1, Relaxed);
        // Nobody answered it: the server drops a handler whose client has left, at whatever it awaits.
        self.end(Outcome::Cancelled);
    }
}

/// An answer that is about to be relayed.
pub(super) struct Watch {
    status: StatusCode,
    /// Whether an event will say when the prefill is over.
    tells_first_token: bool,
    received_ms: u64,
    member: Arc<RankMember>,
    predicted: Option<Overlap>,
    /// Whether another worker computed the prompt.
    prefilled: bool,
    in_flight: InFlight,
}

impl Watch {
    pub(super) fn new(answer: &Answer, in_flight: InFlight, placed: &Placed, prefilled: bool) -> Self {
        let since = u64::try_from(in_flight.asked.elapsed().as_millis()).unwrap_or(0);
        let received_ms = unix_ms().saturating_sub(since);
        let tells_first_token = answer.tells_first_token();
        let (member, predicted) = (Arc::clone(&placed.member), placed.predicted);
        in_flight.note(|facts| facts.served(placed.choice.worker, placed.choice.rank, answer.streams()));
        Self {
            status: answer.status(),
            tells_first_token,
            received_ms,
            member,
            predicted,
            prefilled,
            in_flight,
        }
    }

    /// The observer that holds what was booked, and the request's part in its session, until the answer is over.
    pub(super) fn holding(self, placed: Placed) -> Relayed {
        let Placed { booking, probe, session, first_token, ticket, attempt, .. } = placed;
        // What the answer says of its worker is known by now.
        drop(probe);
        Relayed { watch: self, booking, _session: session, attempt, first_token, ticket, usage: None }
    }

    /// What the client asked to be told about its own request. Dynamo's `kv_hit_rate` is not among it: it
    /// would tell a client what others have cached.
    pub(super) fn annotator(
        &self,
        metadata: Metadata,
        placed: &Placed,
        prefiller: Option<Prefiller>,
    ) -> RequestMetadata {
        let own = (placed.choice.worker.0, placed.choice.rank.0);
        RequestMetadata {
            metadata,
            // Where one worker does both phases it fills the fields of both, as Dynamo has it.
            worker_id: two_hop::worker_id(prefiller.unwrap_or(own), Some(own)),
            asked: self.in_flight.asked,
            received_ms: self.received_ms,
            first_ms: None,
        }
    }
}

/// Watches the answer of one request. Dropped when it is over, and with it the booking: that is how loads
/// return to zero whatever happened.
pub(super) struct Relayed {
    watch: Watch,
    booking: Booking,
    _session: Option<SessionUse>,
    attempt: Option<Part>,
    first_token: FirstToken,
    ticket: Option<Ticket>,
    usage: Option<Usage>,
}

impl Observer for Relayed {
    fn first_byte(&mut self) {
        let Watch { in_flight, tells_first_token, .. } = &self.watch;
        in_flight.counters.first_byte.observe(in_flight.asked.elapsed());
        if !tells_first_token {
            // An answer in one piece has its first byte when all is computed. Compressed events begin with what may be no token, so that
            // no speed is learned of them either, and nothing later can be told.
            self.booking.prefill_done();
        }
    }

    fn first_token(&mut self) {
        self.first_token.came(&self.booking);
        if let Some(ticket) = &mut self.ticket {
            ticket.first_token();
        }
    }

    fn output(&mut self, steps: u32) {
        self.booking.output(u64::from(steps));
    }

    fn usage(&mut self, usage: Usage) {
        self.usage = Some(usage);
        self.watch.in_flight.note(|facts| facts.usage(usage));
        if let Some(ticket) = &mut self.ticket {
            ticket.usage(usage);
        }
    }

    fn end(&mut self, end: End) {
        if let Some(attempt) = self.attempt.take() {
            attempt.over(end);
        }
        let outcome = outcome(end, self.watch.status);
        self.watch.in_flight.end(outcome);
        if let Some(ticket) = &mut self.ticket {
            ticket.end(self.watch.status, outcome);
        }
        // A decode engine counts what it took over as cached, which says nothing of any cache.
        if !self.watch.prefilled && (self.usage.is_some() || outcome == Outcome::Ok) {
            let Watch { in_flight, member, predicted, .. } = &self.watch;
            note_usage(&in_flight.counters, member, *predicted, self.usage);
        }
    }
}

/// How a request ended whose answer of that status ended so.
pub(super) fn outcome(end: End, status: StatusCode) -> Outcome {
    match end {
        End::Complete => Outcome::of_status(status),
        End::Cut(_) => Outcome::Cut,
        End::Dropped => Outcome::Cancelled,
    }
}

/// Counts what an engine says of its cache, if it says so, and holds it against what was predicted. `usage` is what the answer to a
/// request had of it.
pub(super) fn note_usage(
    counters: &Counters,
    member: &RankMember,
    predicted: Option<Overlap>,
    usage: Option<Usage>,
) {
    let said = usage.and_then(|usage| Some((usage, usage.cached_tokens?)));
    if predicted.is_some() {
        member.predictions.note_answer(said.is_some());
    }
    let Some((usage, cached)) = said else { return };
    counters.reported.fetch_add(1, Relaxed);
    counters.reported_prompt_tokens.fetch_add(usage.prompt_tokens, Relaxed);
    counters.reported_cached_tokens.fetch_add(cached, Relaxed);
    member.tally.cached_tokens.fetch_add(cached, Relaxed);
    member.tally.prompt_tokens.fetch_add(usage.prompt_tokens, Relaxed);
    if let Some(predicted) = predicted {
        member.predictions.observe(predicted, member.cohort.block_size, usage.prompt_tokens, cached);
    }
}

/// Relays what a prefill worker answered in place of a prefill.
pub(super) fn relay_failure((answer, placed): (Answer, Placed), in_flight: InFlight) -> Response {
    let answer = answer.within(in_flight.time());
    let watch = Watch::new(&answer, in_flight, &placed, false);
    let mut response = answer.relay(watch.holding(placed));
    error::tell_of_answer(response.status(), response.headers_mut());
    response.map(Body::new)
}

/// `nvext` of a response, by opt-in.
pub(super) struct RequestMetadata {
    metadata: Metadata,
    worker_id: Value,
    asked: Instant,
    received_ms: u64,
    first_ms: Option<f64>,
}

impl Annotator for RequestMetadata {
    fn first(&mut self) -> Option<Map<String, Value>> {
        self.first_ms = Some(millis(self.asked));
        if !self.metadata.worker_id {
            return None;
        }
        Some(Map::from_iter([("worker_id".to_owned(), self.worker_id.take())]))
    }

    fn finish(&mut self) -> Option<Map<String, Value>> {
        if !self.metadata.timing {
            return None;
        }
        let timing = json!({
            "request_received_ms": self.received_ms,
            "ttft_ms": self.first_ms,
            "total_time_ms": millis(self.asked),
        });
        Some(Map::from_iter([("timing".to_owned(), timing)]))
    }
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}

impl App {
    /// Requests between their last byte in and the end of their answer.
    #[must_use]
    pub fn in_flight(&self) -> i64 {
        self.counters.in_flight.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(counters: &Counters) -> Vec<(Outcome, u64)> {
        let all = counters.requests().map(|(_, outcome, count)| (outcome, count));
        all.filter(|&(_, count)| count > 0).collect()
    }

    #[test]
    fn a_request_counts_once_however_it_ends() {
        let counters = Arc::new(Counters::default());
        drop(InFlight::enter(&counters, Surface::Chat));
        assert_eq!(finished(&counters), [(Outcome::Cancelled, 1)]);
        let mut request = InFlight::enter(&counters, Surface::Chat);
        assert_eq!(counters.in_flight.load(Relaxed), 1);
        request.end(Outcome::Ok);
        request.end(Outcome::Cut);
        drop(request);
        let response = InFlight::enter(&counters, Surface::Other).refuse(ApiError::unavailable("none"));
        assert_eq!(response.status(), 503);
        let expected = [(Outcome::Ok, 1), (Outcome::Cancelled, 1), (Outcome::ServerError, 1)];
        assert_eq!(finished(&counters), expected);
        assert_eq!(counters.in_flight.load(Relaxed), 0);
    }
}
