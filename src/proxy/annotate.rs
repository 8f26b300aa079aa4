//! Adding `nvext` to an answer, for a client that asked for it.
//!
//! A member is added to the worker's JSON and everything else stays as it is, byte for byte: the text goes in front
//! of the closing bracket of the root object as it passes. Nothing is held back and nothing is parsed, so an event
//! is not later, and a body not smaller or larger in memory, than without.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use http::{Response, header};
use http_body::{Body, Frame, SizeHint};
use serde_json::{Map, Value};

use super::{
    headers::Form,
    skim::{Facts, Skim},
    sse::{Framer, Piece},
};

/// Says what goes into `nvext`, when it is known.
pub trait Annotator: Send + 'static {
    /// The members for the first JSON event of a stream, or for a body that is one JSON object. Called once.
    fn first(&mut self) -> Option<Map<String, Value>>;

    /// The members for an event that carries a `finish_reason`, of which a stream with several choices has several;
    /// or for a body that is one JSON object. Called when that event, or that body, is all here.
    fn finish(&mut self) -> Option<Map<String, Value>>;
}

/// Has `annotator`'s members added to `response`.
///
/// A body that is neither JSON nor events, or is compressed, passes unchanged; so does an event, or a JSON body,
/// that has an `nvext` of the worker's own already.
pub fn annotate<B, A: Annotator>(response: Response<B>, annotator: A) -> Response<Annotated<B, A>> {
    let (mut head, inner) = response.into_parts();
    let target = match Form::of(&head.headers) {
        Form::Events => Target::Events(Framer::default()),
        Form::Json => Target::Json,
        Form::Opaque => Target::Nothing,
    };
    if !matches!(target, Target::Nothing) {
        // The length is not known before the end any more.
        head.headers.remove(header::CONTENT_LENGTH);
    }
    let writer = Writer { annotator, skim: Skim::default(), begun: false };
    Response::from_parts(head, Annotated { inner, target, writer })
}

/// A body with an [`Annotator`]'s members added. Made by [`annotate`].
pub struct Annotated<B, A> {
    inner: B,
    target: Target,
    writer: Writer<A>,
}

enum Target {
    Events(Framer),
    Json,
    Nothing,
}

struct Writer<A> {
    annotator: A,
    skim: Skim,
    /// [`Annotator::first`] was called.
    begun: bool,
}

impl<A: Annotator> Writer<A> {
    /// Reads on in one JSON text. If its root ends here: where, and what goes there.
    fn read(&mut self, json: &[u8], whole: bool) -> Option<(usize, String)> {
        let close = self.skim.feed(json)?;
        let Facts { object, members, nvext, finish, .. } = self.skim.facts();
        if !object || nvext {
            return None;
        }
        let mut added = if self.begun { None } else { self.annotator.first() };
        self.begun = true;
        if finish || whole {
            match (&mut added, self.annotator.finish()) {
                (Some(added), Some(last)) => added.extend(last),
                (None, last) => added = last,
                (Some(_), None) => {}
            }
        }
        let added = Value::Object(added.filter(|added| !added.is_empty())?);
        let comma = if members { "," } else { "" };
        Some((close, format!("{comma}\"nvext\":{added}")))
    }
}

impl<B, A: Annotator> Annotated<B, A> {
    fn write(&mut self, bytes: Bytes) -> Bytes {
        let Self { target, writer, .. } = self;
        let mut added: Vec<(usize, String)> = Vec::new();
        match target {
            Target::Nothing => {}
            Target::Json => added.extend(writer.read(&bytes, true)),
            Target::Events(framer) => framer.read(&bytes, |piece, at| match piece {
                Piece::Data(json) => {
                    added.extend(writer.read(json, false).map(|(close, text)| (at + close, text)));
                }
                Piece::Another => {
                    writer.read(b"\n", false);
                }
                Piece::End => writer.skim.reset(),
            }),
        }
        if added.is_empty() {
            return bytes;
        }
        let growth: usize = added.iter().map(|(_, text)| text.len()).sum();
        let mut written = BytesMut::with_capacity(bytes.len() + growth);
        let mut from = 0;
        for (at, text) in added {
            written.extend_from_slice(&bytes[from..at]);
            written.extend_from_slice(text.as_bytes());
            from = at;
        }
        written.extend_from_slice(&bytes[from..]);
        written.freeze()
    }
}

// Nothing is pinned in place; the inner body is `Unpin` where it is polled.
impl<B: Unpin, A> Unpin for Annotated<B, A> {}

impl<B: Body<Data = Bytes> + Unpin, A: Annotator> Body for Annotated<B, A> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(|bytes| self.write(bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.target {
            Target::Nothing => self.inner.size_hint(),
            Target::Events(_) | Target::Json if self.inner.is_end_stream() => SizeHint::with_exact(0),
            Target::Events(_) | Target::Json => SizeHint::default(),
        }
    }
}

impl<B, A> fmt::Debug for Annotated<B, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Annotated").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, convert::Infallible};

    use super::*;

    struct Chunks(VecDeque<Bytes>);

    impl Body for Chunks {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.0.pop_front().map(|chunk| Ok(Frame::data(chunk))))
        }
    }

    struct Fixed;

    impl Annotator for Fixed {
        fn first(&mut self) -> Option<Map<String, Value>> {
            serde_json::from_str(r#"{"worker_id":{"decode_worker_id":7}}"#).unwrap()
        }

        fn finish(&mut self) -> Option<Map<String, Value>> {
            serde_json::from_str(r#"{"timing":{"ttft_ms":1.5}}"#).unwrap()
        }
    }

    /// Annotates `text` in one piece and byte by byte, which must not differ.
    fn annotated(kind: &str, text: &str) -> String {
        let mut seen = Vec::new();
        for size in [text.len().max(1), 1] {
            let chunks = text.as_bytes().chunks(size).map(Bytes::copy_from_slice).collect();
            let response = Response::builder()
                .header("content-type", kind)
                .header("content-length", text.len())
                .body(Chunks(chunks))
                .unwrap();
            let mut response = annotate(response, Fixed);
            let lengthless = !response.headers().contains_key("content-length");
            assert_eq!(lengthless, kind != "text/plain");
            let mut context = Context::from_waker(std::task::Waker::noop());
            let mut out = Vec::new();
            while let Poll::Ready(Some(frame)) = Pin::new(response.body_mut()).poll_frame(&mut context) {
                out.extend_from_slice(&frame.unwrap().into_data().unwrap());
            }
            seen.push(String::from_utf8(out).unwrap());
        }
        assert_eq!(seen[0], seen[1]);
        seen.remove(0)
    }

    #[test]
    fn a_json_body_gets_everything_in_front_of_its_end() {
        let both = r#""nvext":{"worker_id":{"decode_worker_id":7},"timing":{"ttft_ms":1.5}}"#;
        let json = "application/json";
        assert_eq!(annotated(json, "{\"a\": 1e2 }\n"), format!("{{\"a\": 1e2 ,{both}}}\n"));
        assert_eq!(annotated(json, "{}"), format!("{{{both}}}"));
        for untouched in [r#"{"nvext":{}}"#, "[1]", "null", r#"{"cut": "#] {
            assert_eq!(annotated(json, untouched), untouched);
        }
        assert_eq!(annotated("text/plain", "{}"), "{}");
    }

    #[test]
    fn a_stream_gets_the_worker_first_and_the_timing_with_the_finish() {
        let stream = concat!(
            ": ping\r\n\r\n",
            "data: {\"choices\":[{\"delta\":{\"content\":\"}\"}}]}\r\n\r\n",
            "data: {\"choices\":[{\"delta\":{},\"finish_reason\":null}]}\n\n",
            "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
            "data: {\"choices\":[],\"usage\":{}}\n\ndata: [DONE]\n\n",
        );
        let expected = stream
            .replacen("}}]}\r", "}}],\"nvext\":{\"worker_id\":{\"decode_worker_id\":7}}}\r", 1)
            .replacen("\"stop\"}]}", "\"stop\"}],\"nvext\":{\"timing\":{\"ttft_ms\":1.5}}}", 1);
        assert_eq!(annotated("text/event-stream", stream), expected);
    }
}
