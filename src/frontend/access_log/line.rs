//! One request's line, from its head to the end of its answer.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use http::{HeaderMap, StatusCode, request::Parts};
use parking_lot::Mutex;
use serde::Serialize;
use tracing_subscriber::fmt::{
    format::Writer,
    time::{FormatTime as _, SystemTime},
};

use super::writer::{Logged, Queue};
use crate::{
    frontend::{
        counters::Outcome,
        error::ErrorCode,
        place::Placed,
        request_id::RequestId,
        traces::{Part, RequestSpan, Step, Trace},
    },
    proxy::Usage,
    slot::{Rank, WorkerId},
};

/// The longest path and the longest name of a model that are written out: clients choose them.
const LONGEST: usize = 256;

/// A request's line. It is written when this is dropped, which is when the answer is over.
pub(in crate::frontend) struct Line {
    /// Where it goes; nowhere if the request is only traced.
    queue: Option<Arc<Queue>>,
    /// Ends with what the line says.
    span: Option<RequestSpan>,
    began: Instant,
    facts: Arc<Facts>,
    /// Of the answer; it is over once the last byte of the body is out.
    over: bool,
    written: Written,
}

/// What inner parts of the frontend learn of a request. Each is noted once, or the last time counts.
#[derive(Default)]
pub(in crate::frontend) struct Facts {
    known: Mutex<Known>,
    trace: Option<Trace>,
}

#[derive(Default)]
struct Known {
    model: Option<String>,
    bytes_in: Option<u64>,
    worker: Option<(u64, u32)>,
    prefill_worker: Option<(u64, u32)>,
    stream: bool,
    usage: Option<Usage>,
    outcome: Option<Outcome>,
}

/// A line as it stands in the log: the names and their meanings are in `docs/security.md`. What is not known is left out.
#[derive(Serialize)]
pub(in crate::frontend) struct Written {
    time: String,
    request_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    method: String,
    path: String,
    version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::frontend) status: Option<u16>,
    pub(in crate::frontend) outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::frontend) error: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::frontend) model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefill_worker: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefill_rank: Option<u32>,
    pub(in crate::frontend) stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::frontend) prompt_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::frontend) cached_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::frontend) completion_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::frontend) bytes_in: Option<u64>,
    pub(in crate::frontend) bytes_out: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::frontend) first_byte_ms: Option<f64>,
    duration_ms: f64,
}

impl Line {
    pub(super) fn begin(queue: Option<Arc<Queue>>, name: &RequestId, head: &Parts) -> Self {
        let mut time = String::new();
        // Writing to a string does not fail.
        let _ = SystemTime.format_time(&mut Writer::new(&mut time));
        let written = Written {
            time,
            request_id: name.as_str().to_owned(),
            trace_id: trace_id(&head.headers).map(str::to_owned),
            key: None,
            method: head.method.as_str().chars().take(LONGEST).collect(),
            path: head.uri.path().chars().take(LONGEST).collect(),
            version: version(head.version),
            status: None,
            outcome: "",
            error: None,
            model: None,
            worker: None,
            rank: None,
            prefill_worker: None,
            prefill_rank: None,
            stream: false,
            prompt_tokens: None,
            cached_tokens: None,
            completion_tokens: None,
            bytes_in: None,
            bytes_out: 0,
            first_byte_ms: None,
            duration_ms: 0.0,
        };
        Self { queue, span: None, began: Instant::now(), facts: Arc::default(), over: false, written }
    }

    /// That of a request which is traced and not logged.
    pub(in crate::frontend) fn unlogged(name: &RequestId, head: &Parts) -> Self {
        Self::begin(None, name, head)
    }

    /// The request is traced: the span ends with what the line says. Called once others have the facts, it has no parts.
    pub(in crate::frontend) fn trace(&mut self, span: RequestSpan) {
        self.written.trace_id = Some(span.id());
        if let Some(facts) = Arc::get_mut(&mut self.facts) {
            facts.trace = Some(span.trace());
        }
        self.span = Some(span);
    }

    /// Where others note what they learn.
    pub(in crate::frontend) fn facts(&self) -> Arc<Facts> {
        Arc::clone(&self.facts)
    }

    /// Whose key the request shows.
    pub(in crate::frontend) fn key(&mut self, owner: &str) {
        self.written.key = Some(owner.to_owned());
    }

    /// The answer begins.
    pub(in crate::frontend) fn answered(&mut self, status: StatusCode, error: Option<ErrorCode>) {
        self.written.status = Some(status.as_u16());
        self.written.error = error.map(|ErrorCode(code)| code);
        self.written.first_byte_ms = Some(millis(self.began.elapsed()));
    }

    /// So many bytes of its body go out.
    pub(in crate::frontend) const fn sent(&mut self, bytes: u64) {
        self.written.bytes_out += bytes;
    }

    /// None are left.
    pub(in crate::frontend) const fn over(&mut self) {
        self.over = true;
    }

    fn outcome(&self, noted: Option<Outcome>) -> Outcome {
        let status = self.written.status.and_then(|status| StatusCode::from_u16(status).ok());
        match (noted, status) {
            (Some(outcome), _) => outcome,
            (None, Some(status)) if self.over => Outcome::of_status(status),
            _ => Outcome::Cancelled,
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let known = std::mem::take(&mut *self.facts.known.lock());
        let outcome = self.outcome(known.outcome).name();
        let written = &mut self.written;
        written.outcome = outcome;
        written.model = known.model;
        written.bytes_in = known.bytes_in;
        (written.worker, written.rank) = known.worker.unzip();
        (written.prefill_worker, written.prefill_rank) = known.prefill_worker.unzip();
        written.stream = known.stream;
        if let Some(usage) = known.usage {
            written.prompt_tokens = Some(usage.prompt_tokens);
            written.cached_tokens = usage.cached_tokens;
            written.completion_tokens = Some(usage.completion_tokens);
        }
        written.duration_ms = millis(self.began.elapsed());
        if let Some(span) = self.span.take() {
            span.end(written);
        }
        if let Some(queue) = &self.queue
            && let Ok(mut line) = serde_json::to_vec(written)
        {
            line.push(b'\n');
            queue.put(Logged(line));
        }
    }
}

impl Facts {
    /// Those of a request whose line, if it has one, came with its head.
    pub(in crate::frontend) fn of(head: &Parts) -> Option<&Arc<Self>> {
        head.extensions.get()
    }

    /// A part of the request's time that begins, if the request is traced.
    pub(in crate::frontend) fn step(&self, step: Step) -> Option<Part> {
        self.trace.as_ref().map(|trace| trace.step(step))
    }

    /// The request is about to be sent to a worker.
    pub(in crate::frontend) fn attempt(&self, placed: &Placed, head: &Parts) -> Option<Part> {
        self.trace.as_ref().map(|trace| trace.attempt(placed, head))
    }

    /// For which model, which somebody serves: what a client writes in its place may be anything.
    pub(in crate::frontend) fn asked(&self, model: &str) {
        self.known.lock().model = Some(model.chars().take(LONGEST).collect());
    }

    /// The request's body has so many bytes.
    pub(in crate::frontend) fn read(&self, bytes: usize) {
        self.known.lock().bytes_in = Some(bytes as u64);
    }

    /// Who answers, and whether piece by piece.
    pub(in crate::frontend) fn served(&self, worker: WorkerId, rank: Rank, stream: bool) {
        let mut known = self.known.lock();
        known.worker = Some((worker.0, rank.0));
        known.stream = stream;
    }

    /// Who computed the prompt, where that is somebody else.
    pub(in crate::frontend) fn prefilled(&self, worker: u64, rank: u32) {
        self.known.lock().prefill_worker = Some((worker, rank));
    }

    /// What the engine counted.
    pub(in crate::frontend) fn usage(&self, usage: Usage) {
        self.known.lock().usage = Some(usage);
    }

    /// How it ended.
    pub(in crate::frontend) fn ended(&self, outcome: Outcome) {
        self.known.lock().outcome = Some(outcome);
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1000.0
}

const fn version(version: http::Version) -> &'static str {
    match version {
        http::Version::HTTP_10 => "HTTP/1.0",
        http::Version::HTTP_2 => "HTTP/2",
        _ => "HTTP/1.1",
    }
}

/// The trace that a request belongs to, by W3C's `traceparent`: `VERSION-TRACE-PARENT-FLAGS`, in lower-case digits.
fn trace_id(headers: &HeaderMap) -> Option<&str> {
    let mut parts = headers.get("traceparent")?.to_str().ok()?.split('-');
    let (version, trace) = (parts.next()?, parts.next()?);
    let hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let known = version.len() == 2 && hex(version) && version != "ff";
    (known && trace.len() == 32 && hex(trace) && trace.bytes().any(|byte| byte != b'0')).then_some(trace)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_trace_is_told_by_its_header_where_that_is_one() {
        let of = |text: &'static str| {
            let headers = HeaderMap::from_iter([(
                http::HeaderName::from_static("traceparent"),
                HeaderValue::from_static(text),
            )]);
            trace_id(&headers).map(str::to_owned)
        };
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        assert_eq!(of("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").as_deref(), Some(trace));
        for odd in [
            "",
            "00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f-00f067aa0ba902b7-01",
        ] {
            assert_eq!(of(odd), None, "{odd}");
        }
    }
}
