//! Traces of requests, for a collector that speaks OTLP over HTTP.
//!
//! With `--otlp-endpoint` every POST of a client becomes a span, as a part of the client's trace if it brings one (W3C's
//! `traceparent`), with a span each for what takes its time: `tokenise`, `place`, and one for every worker that the request is sent to. The
//! worker is told of the last, so that what an engine traces hangs below it. Names of attributes are those of OpenTelemetry's semantic
//! conventions, for HTTP and for generative AI, where they have one, and `kvroute.*` where not. Nothing of a prompt or an answer is in a span.
//!
//! No request waits for a collector: spans go into a bounded queue, and what does not fit is lost. Which traces are sampled, how large
//! that queue is, what else the collector is told: the SDK's environment variables say so (`docs/traces.md`).
//!
//! The SDK is there in binaries built with the feature `otel`. In others the flag is an error at the start, and a [`Trace`] is a type
//! without values, so that nothing is left of it in a request's way.

#[cfg(feature = "otel")]
mod collector;
mod endpoint;
#[cfg(not(feature = "otel"))]
#[path = "absent.rs"]
mod sdk;
#[cfg(feature = "otel")]
mod sdk;

use std::fmt;

use http::request::Parts;
use thiserror::Error;

use super::{access_log::Facts, error::ApiError, place::Placed};
use crate::metrics::Page;

pub use endpoint::OtlpEndpoint;
pub(super) use sdk::{Part, RequestSpan, Trace, Traces};

/// Traces that cannot be begun.
#[derive(Debug, Error)]
pub enum TracesError {
    /// The binary cannot make any.
    #[error(
        "--otlp-endpoint: this kvroute was built without traces; build it with `cargo build --release --features otel`, or leave the \
         flag out"
    )]
    NotBuilt,
    /// What the SDK reads from the environment is wrong.
    #[error("--otlp-endpoint {endpoint}: {problem}")]
    Exporter {
        /// Where traces were to go.
        endpoint: OtlpEndpoint,
        /// Why they cannot.
        problem: String,
    },
}

/// What a part of a request's time goes into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// The body is read into fields, and its prompt into tokens.
    Tokenise,
    /// A worker is chosen, which may take a wait in the queue.
    Place,
}

#[cfg_attr(not(feature = "otel"), expect(dead_code, reason = "for the SDK"))]
impl Step {
    /// The span's name.
    const fn name(self) -> &'static str {
        match self {
            Self::Tokenise => "tokenise",
            Self::Place => "place",
        }
    }
}

/// Does what places a request, as a step of its trace, if it has one.
///
/// # Errors
/// Those of what is done.
pub(super) async fn placing(
    head: &Parts,
    doing: impl Future<Output = Result<Placed, ApiError>>,
) -> Result<Placed, ApiError> {
    let step = Facts::of(head).and_then(|facts| facts.step(Step::Place));
    let outcome = doing.await;
    match (step, &outcome) {
        (Some(step), Ok(placed)) => step.placed(placed),
        (Some(step), Err(error)) => step.refused(error.status),
        (None, _) => {}
    }
    outcome
}

/// Writes what became of what was to be sent to the collector: as many times it arrived, and did not.
fn write(page: &mut Page<'_>, [sent, failed]: [u64; 2], failing: bool) -> fmt::Result {
    page.counters_by(
        "result",
        "trace_exports",
        "Batches of spans for the collector, by what became of them",
        [("sent", sent), ("failed", failed)],
    )?;
    page.gauge("trace_exports_failing", "1 while spans do not reach the collector", i64::from(failing))
}
