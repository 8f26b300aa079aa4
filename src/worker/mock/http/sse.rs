//! Streaming answers: server-sent events as vLLM writes them.

use std::collections::VecDeque;

use axum::body::{Body, Bytes};
use axum::response::Response;
use http::header::CONTENT_TYPE;
use serde_json::Value;

use super::body::StreamOptions;
use super::generation::Generation;
use crate::worker::mock::scheduler::Produced;

/// How one endpoint writes its events.
pub(super) struct Shape {
    /// Sent for every choice before the first token of the first one.
    pub(super) opening: Option<fn(&Generation, usize) -> Value>,
    /// One token, with the text that it adds.
    pub(super) token: fn(&Generation, &Produced, &str) -> Value,
    /// The frame of the last event, which carries the usage: no choices.
    pub(super) closing: fn(&Generation) -> Value,
}

/// The client, or a test, ended the stream before its end.
#[derive(Debug, thiserror::Error)]
#[error("the stream was cut")]
struct Cut;

/// A response that streams the generation to its end. `cut_after` breaks the connection after so many events.
pub(super) fn respond(
    generation: Generation,
    shape: Shape,
    options: StreamOptions,
    cut_after: Option<u64>,
) -> Response {
    let stream =
        Events { generation, shape, options, cut_after, queue: VecDeque::new(), opened: false, ended: false };
    let body = Body::from_stream(futures_util::stream::unfold(stream, |mut stream| async move {
        let event = stream.next().await?;
        Some((event, stream))
    }));
    let mut response = Response::new(body);
    let kind = http::HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

struct Events {
    generation: Generation,
    shape: Shape,
    options: StreamOptions,
    cut_after: Option<u64>,
    queue: VecDeque<Bytes>,
    opened: bool,
    ended: bool,
}

impl Events {
    async fn next(&mut self) -> Option<Result<Bytes, Cut>> {
        if self.queue.is_empty() && !self.ended && self.fill().await.is_err() {
            return Some(Err(Cut));
        }
        let event = self.queue.pop_front()?;
        if let Some(left) = &mut self.cut_after {
            let Some(fewer) = left.checked_sub(1) else { return Some(Err(Cut)) };
            *left = fewer;
        }
        Some(Ok(event))
    }

    /// Queues what the next token gives rise to, or the end.
    async fn fill(&mut self) -> Result<(), Cut> {
        match self.generation.next().await {
            Some(Ok((produced, piece))) => {
                if !std::mem::replace(&mut self.opened, true)
                    && let Some(opening) = self.shape.opening
                {
                    for choice in 0..self.generation.choices.len() {
                        self.push(opening(&self.generation, choice));
                    }
                }
                self.push((self.shape.token)(&self.generation, &produced, &piece));
            }
            Some(Err(_)) => return Err(Cut),
            None => {
                self.ended = true;
                if self.options.include_usage {
                    let mut closing = (self.shape.closing)(&self.generation);
                    closing["usage"] = self.generation.usage();
                    self.queue.push_back(event(&closing));
                }
                self.queue.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
            }
        }
        Ok(())
    }

    fn push(&mut self, mut chunk: Value) {
        if self.options.include_usage && self.options.continuous_usage_stats {
            chunk["usage"] = self.generation.usage();
        }
        self.queue.push_back(event(&chunk));
    }
}

fn event(value: &Value) -> Bytes {
    format!("data: {value}\n\n").into()
}
