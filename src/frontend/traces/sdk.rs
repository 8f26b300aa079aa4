//! Spans, by OpenTelemetry's SDK.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderValue, Method, StatusCode, request::Parts};
use opentelemetry::{
    Context, Key, KeyValue,
    propagation::{Extractor, TextMapPropagator as _},
    trace::{
        Span as _, SpanBuilder, SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider as _,
    },
};
use opentelemetry_http::HeaderInjector;
use opentelemetry_otlp::{RetryPolicy, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    propagation::TraceContextPropagator,
    trace::{SdkTracer, SdkTracerProvider, Span},
};
use tracing::info;

use super::{
    OtlpEndpoint, Step, TracesError,
    collector::{Collector, Exports},
};
use crate::{
    frontend::{access_log::Written, place::Placed, request_id::RequestId},
    metrics::Page,
    proxy::{End, ProxyError, usual_port},
};

/// For how long a stop waits for the collector.
const FLUSH: Duration = Duration::from_secs(5);

/// The routes that a span may be named after: those that clients choose freely would make as many names.
const ROUTES: [&str; 3] = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"];

/// Where traces go, if anywhere.
#[derive(Default)]
pub(in crate::frontend) struct Traces(Option<Sending>);

struct Sending {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    exports: Arc<Exports>,
}

/// A request's own span, which ends last.
pub(in crate::frontend) struct RequestSpan {
    began: SystemTime,
    span: Span,
    trace: Trace,
}

/// What the spans below it hang on.
#[derive(Clone)]
pub(in crate::frontend) struct Trace {
    tracer: SdkTracer,
    below: Context,
}

/// A span below a request's own. It ends when it is dropped.
pub(in crate::frontend) struct Part {
    span: Span,
}

impl Traces {
    /// Begins to send traces to a collector, on the runtime that this is called on.
    ///
    /// # Errors
    /// When what the SDK reads from the environment is of no use. A collector that is not there is no error.
    pub(in crate::frontend) fn open(endpoint: &OtlpEndpoint) -> Result<Self, TracesError> {
        let exports = Arc::new(Exports::default());
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Collector::new(endpoint.base(), Arc::clone(&exports)))
            .with_endpoint(endpoint.traces())
            // What is sent once is counted once; the next batch finds out whether the collector is back.
            .with_retry_policy(RetryPolicy::disabled())
            .build()
            .map_err(|error| TracesError::Exporter {
                endpoint: endpoint.clone(),
                problem: error.to_string(),
            })?;
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource()).build();
        let tracer = provider.tracer("kvroute");
        info!(to = %endpoint, "requests are traced");
        Ok(Self(Some(Sending { provider, tracer, exports })))
    }

    /// The span of a request that begins; none for those without a body, which are answered at once and often asked.
    pub(in crate::frontend) fn begin(&self, name: &RequestId, head: &Parts) -> Option<RequestSpan> {
        let Sending { tracer, .. } = self.0.as_ref().filter(|_| head.method == Method::POST)?;
        let path = head.uri.path();
        let route = ROUTES.contains(&path).then_some(path);
        let parent =
            TraceContextPropagator::new().extract_with_context(&Context::new(), &Carried::by(&head.headers));
        let began = SystemTime::now();
        let attributes = [
            Some(KeyValue::new("http.request.method", "POST")),
            Some(KeyValue::new("url.path", clipped(path))),
            route.map(|route| KeyValue::new("http.route", route.to_owned())),
            Some(KeyValue::new("kvroute.request_id", name.as_str().to_owned())),
        ];
        let builder =
            SpanBuilder::from_name(route.map_or_else(|| "POST".to_owned(), |route| format!("POST {route}")))
                .with_kind(SpanKind::Server)
                .with_start_time(began)
                .with_attributes(attributes.into_iter().flatten());
        let span = tracer.build_with_context(builder, &parent);
        let below = Context::new().with_remote_span_context(span.span_context().clone());
        Some(RequestSpan { began, span, trace: Trace { tracer: tracer.clone(), below } })
    }

    /// Sends what has ended, for a while; whether all of it went out.
    pub(in crate::frontend) fn flush(&self) -> bool {
        // The SDK says nothing of a last batch that did not arrive.
        let sent = |sending: &Sending| {
            sending.provider.shutdown_with_timeout(FLUSH).is_ok() && !sending.exports.counts().1
        };
        self.0.as_ref().is_none_or(sent)
    }

    /// Writes the numbers; all are 0 without a collector.
    pub(in crate::frontend) fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        let (counts, failing) = self.0.as_ref().map(|sending| sending.exports.counts()).unwrap_or_default();
        super::write(page, counts, failing)
    }
}

impl Trace {
    /// A part of the request's time that begins.
    pub(in crate::frontend) fn step(&self, step: Step) -> Part {
        self.part(SpanBuilder::from_name(step.name()).with_kind(SpanKind::Internal))
    }

    /// The request is about to be sent to a worker.
    pub(in crate::frontend) fn attempt(&self, placed: &Placed, head: &Parts) -> Part {
        let url = &placed.member.worker.url;
        let port = url.port_u16().unwrap_or_else(|| usual_port(url));
        let attributes = [
            KeyValue::new("http.request.method", "POST"),
            KeyValue::new(
                "server.address",
                url.host().unwrap_or_default().trim_matches(['[', ']']).to_owned(),
            ),
            KeyValue::new("server.port", i64::from(port)),
            KeyValue::new(
                "url.full",
                // Of the authority nothing but the host: a user and a password may stand before it.
                format!(
                    "{}://{}:{port}{}{}",
                    url.scheme_str().unwrap_or("http"),
                    url.host().unwrap_or_default(),
                    url.path().trim_end_matches('/'),
                    clipped(head.uri.path())
                ),
            ),
        ];
        let attributes = attributes.into_iter().chain(chosen(placed));
        self.part(SpanBuilder::from_name("POST").with_kind(SpanKind::Client).with_attributes(attributes))
    }

    fn part(&self, builder: SpanBuilder) -> Part {
        Part { span: self.tracer.build_with_context(builder, &self.below) }
    }
}

impl RequestSpan {
    /// The trace's number, as it is in `traceparent`.
    pub(in crate::frontend) fn id(&self) -> String {
        self.span.span_context().trace_id().to_string()
    }

    /// What parts of it hang on.
    pub(in crate::frontend) fn trace(&self) -> Trace {
        self.trace.clone()
    }

    /// The answer is over, and this is all that is known of it.
    pub(in crate::frontend) fn end(mut self, known: &Written) {
        let number = |name, value: Option<u64>| value.map(|value| KeyValue::new(name, signed(value)));
        let attributes = [
            known.status.map(|status| KeyValue::new("http.response.status_code", i64::from(status))),
            known.error.map(|error| KeyValue::new("error.type", error)),
            known.model.clone().map(|model| KeyValue::new("gen_ai.request.model", model)),
            number("gen_ai.usage.input_tokens", known.prompt_tokens),
            number("gen_ai.usage.output_tokens", known.completion_tokens),
            number("kvroute.cached_tokens", known.cached_tokens),
            number("http.request.body.size", known.bytes_in),
            number("http.response.body.size", Some(known.bytes_out)),
            Some(KeyValue::new("kvroute.outcome", known.outcome)),
            Some(KeyValue::new("kvroute.stream", known.stream)),
        ];
        self.span.set_attributes(attributes.into_iter().flatten());
        if let Some(after) = known.first_byte_ms {
            let at = self.began + Duration::from_secs_f64(after / 1000.0);
            self.span.add_event_with_timestamp("first byte", at, Vec::new());
        }
        // A client's error is no error of the server's span.
        if matches!(known.outcome, "server_error" | "cut") {
            self.span.set_status(Status::error(known.outcome));
        }
        self.span.end();
    }
}

impl Part {
    /// The step found a worker.
    pub(in crate::frontend) fn placed(mut self, placed: &Placed) {
        let choice = &placed.choice;
        self.span.set_attributes(chosen(placed).into_iter().chain([
            KeyValue::new("kvroute.router_mode", choice.mode.name()),
            KeyValue::new("kvroute.overlap_blocks", i64::from(choice.overlap.total())),
            KeyValue::new("kvroute.cached_tokens_expected", signed(choice.cached_tokens)),
            KeyValue::new("kvroute.candidates", i64::from(choice.candidates)),
            KeyValue::new("kvroute.excluded", i64::from(choice.excluded)),
        ]));
    }

    /// It ended with an error for the client.
    pub(in crate::frontend) fn refused(mut self, status: StatusCode) {
        self.span.set_status(Status::error(status.to_string()));
    }

    /// Tells the worker of it, in place of what the client said.
    pub(in crate::frontend) fn carry(&self, headers: &mut HeaderMap) {
        let context = Context::new().with_remote_span_context(self.span.span_context().clone());
        TraceContextPropagator::new().inject_context(&context, &mut HeaderInjector(headers));
        // The propagator writes the state of a trace that has none, too.
        if headers.get("tracestate").is_some_and(HeaderValue::is_empty) {
            headers.remove("tracestate");
        }
    }

    /// The worker answers. The span goes on until the answer is over.
    pub(in crate::frontend) fn answered(&mut self, status: StatusCode) {
        self.span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
        if status.is_client_error() || status.is_server_error() {
            self.span.set_attribute(KeyValue::new("error.type", status.as_str().to_owned()));
            self.span.set_status(Status::error(status.to_string()));
        }
    }

    /// The answer is over.
    pub(in crate::frontend) fn over(mut self, end: End) {
        let why = match end {
            End::Complete => return,
            End::Cut(kind) => kind.name(),
            End::Dropped => "cancelled",
        };
        self.span.set_attribute(KeyValue::new("error.type", why));
        if end != End::Dropped {
            self.span.set_status(Status::error(why));
        }
    }

    /// There is no answer.
    pub(in crate::frontend) fn failed(mut self, error: &ProxyError) {
        self.span.set_attribute(KeyValue::new("error.type", error.kind.name()));
        self.span.set_status(Status::error(error.to_string()));
    }
}

/// What a client's headers say of its trace.
struct Carried<'a> {
    headers: &'a HeaderMap,
    /// Its lines as one, which is what several of them mean (RFC 9110 §5.3).
    state: Option<String>,
}

impl<'a> Carried<'a> {
    fn by(headers: &'a HeaderMap) -> Self {
        let lines: Option<Vec<_>> =
            headers.get_all("tracestate").iter().map(|line| line.to_str().ok()).collect();
        Self { headers, state: lines.map(|lines| lines.join(",")) }
    }
}

impl Extractor for Carried<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        if key == "tracestate" {
            return self.state.as_deref();
        }
        // Several parents are none.
        let mut values = self.headers.get_all(key).iter();
        values.next().filter(|_| values.next().is_none())?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.headers.keys().map(http::HeaderName::as_str).collect()
    }
}

/// What the collector is told of this process: what the environment says, and a name and a version if that says none.
fn resource() -> Resource {
    let given = Resource::builder().build();
    let said = |name: &'static str| given.get(&Key::from_static_str(name));
    let mut resource = Resource::builder();
    if said("service.version").is_none() {
        resource = resource.with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    }
    if said("service.name").is_none_or(|name| name.as_str().starts_with("unknown_service")) {
        resource = resource.with_service_name("kvroute");
    }
    resource.build()
}

/// Which worker it is, and which of its ranks.
fn chosen(placed: &Placed) -> [KeyValue; 2] {
    let (worker, rank) = (placed.choice.worker, placed.choice.rank);
    // Worker ids have 64 bits, and numbers of attributes a sign.
    [KeyValue::new("kvroute.worker", worker.0.to_string()), KeyValue::new("kvroute.rank", i64::from(rank.0))]
}

/// Clients choose paths.
fn clipped(path: &str) -> String {
    path.chars().take(256).collect()
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
