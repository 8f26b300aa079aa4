//! The load: each request at its time, whatever became of those before it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::BodyExt as _;
use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::JoinSet;

use crate::proxy::{Caller, End, Observer, Pool, PoolSettings, Usage};

/// A request and when to send it.
pub(super) struct Planned {
    pub(super) due: Duration,
    pub(super) tokens: Vec<u32>,
    pub(super) max_tokens: u32,
}

/// What became of one request.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Answered {
    /// Whether it was answered with success, to the end.
    pub(super) ok: bool,
    /// From sending to the first token.
    pub(super) first_token: Option<Duration>,
    /// From sending to the end.
    pub(super) total: Duration,
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    /// The status of the answer, if there was one.
    pub(super) status: Option<StatusCode>,
    /// The worker that served it, if the frontend told.
    pub(super) worker: Option<u64>,
}

/// What became of all of them.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) name: String,
    pub(super) wall: Duration,
    pub(super) answers: Vec<Answered>,
}

impl Run {
    /// Says so if nothing was answered: its figures are figures of nothing.
    pub(super) fn came_to_nothing(&self) -> Option<String> {
        let last = self.answers.last()?;
        if self.answers.iter().any(|answer| answer.ok) {
            return None;
        }
        let status = last.status.map_or("without an answer".to_owned(), |status| format!("with {status}"));
        Some(format!("{}: all {} requests failed, one of them {status}", self.name, self.answers.len()))
    }
}

/// Sends requests to one frontend.
pub(super) struct Client {
    pool: Pool,
    url: Uri,
    model: String,
}

impl Client {
    pub(super) fn new(url: Uri, model: &str) -> Self {
        // The patience of a client that measures: what is slow shall be seen, not cut.
        let settings = PoolSettings {
            first_byte_timeout: Duration::ZERO,
            idle_timeout: Duration::ZERO,
            ..PoolSettings::default()
        };
        Self { pool: Pool::new(&settings), url, model: model.to_owned() }
    }

    /// Waits until the frontend says that it can serve.
    pub(super) async fn wait_until_ready(&self, patience: Duration) -> Result<(), String> {
        let (start, caller) = (Instant::now(), Caller::new(patience));
        loop {
            let problem = match caller.get(&self.url, "/ready").await {
                Ok(reply) if reply.status == StatusCode::OK => return Ok(()),
                Ok(reply) => format!("GET /ready answers {}", reply.status),
                Err(problem) => problem,
            };
            if start.elapsed() > patience {
                return Err(format!("{} is not ready: {problem}", self.url));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Sends everything, each request at its time, and waits for all answers.
    pub(super) async fn run(&self, name: &str, plan: impl Iterator<Item = Planned>, requests: usize) -> Run {
        let bar = progress(name, requests);
        let start = Instant::now();
        let mut sent = JoinSet::new();
        for planned in plan {
            tokio::time::sleep_until((start + planned.due).into()).await;
            let request = self.request(&planned);
            let (pool, url, bar) = (self.pool.clone(), self.url.clone(), bar.clone());
            sent.spawn(async move {
                let answered = send(&pool, &url, request).await;
                bar.inc(1);
                answered
            });
        }
        let answers = sent.join_all().await;
        bar.finish_and_clear();
        Run { name: name.to_owned(), wall: start.elapsed(), answers }
    }

    fn request(&self, planned: &Planned) -> Bytes {
        let body = json!({
            "model": self.model,
            "prompt": planned.tokens,
            "max_tokens": planned.max_tokens,
            "ignore_eos": true,
            "stream": true,
            "stream_options": { "include_usage": true },
            "nvext": { "extra_fields": ["worker_id"] },
        });
        Bytes::from(body.to_string())
    }
}

fn progress(name: &str, requests: usize) -> ProgressBar {
    let bar = ProgressBar::new(requests as u64);
    let template = "{prefix:>22} {bar:40} {pos}/{len} answered, {elapsed}";
    // The template is a constant; were it wrong, the default style would do.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_prefix(name.to_owned());
    bar
}

/// Notes the moments of one answer.
struct Stopwatch {
    sent: Instant,
    answered: Arc<Mutex<Answered>>,
}

impl Observer for Stopwatch {
    fn first_token(&mut self) {
        self.answered.lock().first_token = Some(self.sent.elapsed());
    }

    fn usage(&mut self, usage: Usage) {
        let mut answered = self.answered.lock();
        answered.prompt_tokens = usage.prompt_tokens;
        answered.cached_tokens = usage.cached_tokens.unwrap_or(0);
    }

    fn end(&mut self, end: End) {
        let mut answered = self.answered.lock();
        answered.ok = end == End::Complete;
        answered.total = self.sent.elapsed();
    }
}

async fn send(pool: &Pool, url: &Uri, body: Bytes) -> Answered {
    let request = Request::post("/v1/completions")
        .header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let Ok(request) = request.body(()) else { return Answered::default() };
    let (head, ()) = request.into_parts();
    let answered = Arc::new(Mutex::new(Answered::default()));
    let watch = Stopwatch { sent: Instant::now(), answered: Arc::clone(&answered) };
    let Ok(answer) = pool.forward(url, &head, body).await else { return Answered::default() };
    let status = answer.status();
    let mut body = answer.relay(watch).into_body();
    let mut worker = None;
    while let Some(Ok(frame)) = body.frame().await {
        if let (None, Some(data)) = (worker, frame.data_ref()) {
            worker = worker_id(data);
        }
    }
    drop(body);
    let mut answered = *answered.lock();
    answered.ok &= status.is_success();
    answered.status = Some(status);
    answered.worker = worker;
    answered
}

/// The worker in `nvext`, which comes with the first event.
fn worker_id(data: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(data).ok()?;
    let (_, rest) = text.split_once("\"decode_worker_id\":")?;
    let digits = rest.trim_start().split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worker_is_found_in_the_first_event() {
        let event = br#"data: {"choices":[],"nvext":{"worker_id":{"decode_worker_id":12,"x":1}}}"#;
        assert_eq!(worker_id(event), Some(12));
        assert_eq!(worker_id(b"data: {}"), None);
    }
}
