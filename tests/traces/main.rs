//! Traces of requests, as a collector gets them: `cargo test --features otel --test traces`.

#![cfg(feature = "otel")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod collector;
mod protobuf;
#[path = "../rig/mod.rs"]
mod rig;

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use http::Method;
use http_body_util::BodyExt as _;
use kvroute::{
    config::FrontendPlan,
    fleet::WorkerSpec,
    frontend::{ApiKeys, OtlpEndpoint},
    select::Mode,
};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{
    collector::{Collector, Span},
    rig::{
        Answer, MODEL, Rig, chat, eventually, lasting_port, plan,
        pools::{CHAT, Pools, growing, hops},
        scripted::{Scripted, answer, served},
        upstream::{self, Upstream},
    },
};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CLIENT: &str = "00f067aa0ba902b7";

/// An answer with what the engine counted.
const COUNTED: &str = "{\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4,\"prompt_tokens_details\":{\"cached_tokens\":8}}}";

/// Stands wherever a prompt could stand by mistake.
const SECRET: &str = "dolphinsecret";

fn traced(plan: FrontendPlan, otlp_endpoint: Option<OtlpEndpoint>) -> FrontendPlan {
    let mut plan = plan;
    plan.settings.otlp_endpoint = otlp_endpoint;
    plan
}

/// A chat of a client that traces, or decided not to.
async fn ask(rig: &Rig, sampled: bool) -> Answer {
    let parent = format!("00-{TRACE}-{CLIENT}-{:02x}", u8::from(sampled));
    let headers = [
        ("traceparent", parent.as_str()),
        ("tracestate", "vendor=7"),
        ("tracestate", "another=8"),
        ("x-request-id", "mine"),
    ];
    let url = format!("{}{CHAT}", rig.public());
    rig.client.request(Method::POST, &url, &headers, &chat("be brief", SECRET)).await
}

/// The spans of a frontend that has stopped.
async fn stopped(rig: Rig, collector: &Collector) -> Vec<Span> {
    assert!(rig.frontend.stop().await);
    for body in collector.bodies() {
        assert!(
            !body.windows(SECRET.len()).any(|window| window == SECRET.as_bytes()),
            "a prompt is in a span"
        );
    }
    collector.spans()
}

fn named<'a>(spans: &'a [Span], name: &str) -> Vec<&'a Span> {
    let mut named: Vec<_> = spans.iter().filter(|span| span.name == name).collect();
    named.sort_by_key(|span| span.began);
    named
}

fn only<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let [span] = named(spans, name)[..] else { panic!("{name}: {spans:#?}") };
    span
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_a_part_of_its_client_s_trace_and_its_worker_s_work_a_part_of_it() {
    let collector = Collector::start().await;
    let worker = Upstream::start(|_| (200, "application/json", COUNTED)).await;
    let plan = traced(plan(Mode::RoundRobin, vec![worker.worker(1, MODEL)]), collector.endpoint());
    let rig = Rig::start_plan(plan, Vec::new()).await;
    assert_eq!(ask(&rig, true).await.status, 200);
    let told = worker.last().headers;
    let spans = stopped(rig, &collector).await;

    let request = only(&spans, &format!("POST {CHAT}"));
    assert_eq!((request.trace.as_str(), request.parent.as_str(), request.kind), (TRACE, CLIENT, 2));
    assert!(!request.failed && request.events == ["first byte"], "{request:?}");
    for (name, value) in [
        ("http.request.method", "POST"),
        ("http.route", CHAT),
        ("url.path", CHAT),
        ("http.response.status_code", "200"),
        ("gen_ai.request.model", MODEL),
        ("gen_ai.usage.input_tokens", "9"),
        ("gen_ai.usage.output_tokens", "4"),
        ("kvroute.cached_tokens", "8"),
        ("kvroute.request_id", "mine"),
        ("kvroute.outcome", "ok"),
    ] {
        assert_eq!(request.attributes.get(name).map(String::as_str), Some(value), "{name}: {request:?}");
    }
    let [tokenise, place, attempt] = ["tokenise", "place", "POST"].map(|name| only(&spans, name));
    assert_eq!([tokenise.kind, place.kind, attempt.kind], [1, 1, 3]);
    for part in [tokenise, place, attempt] {
        assert_eq!((&part.trace, &part.parent), (&request.trace, &request.id));
        assert!(request.began <= part.began && part.began <= part.ended && part.ended <= request.ended);
    }
    assert!(tokenise.ended <= place.began && place.ended <= attempt.began);
    assert_eq!(place.attributes["kvroute.router_mode"], "round-robin");
    assert_eq!((&*place.attributes["kvroute.worker"], &*attempt.attributes["kvroute.worker"]), ("1", "1"));
    assert_eq!(attempt.attributes["http.response.status_code"], "200");
    assert_eq!(told["traceparent"], format!("00-{TRACE}-{}-01", attempt.id));
    assert_eq!(told["tracestate"], "vendor=7,another=8");
    assert_eq!(spans.len(), 4, "{spans:#?}");
    let said = |text: &str| collector.bodies()[0].windows(text.len()).any(|window| window == text.as_bytes());
    assert!(said("service.name") && said("kvroute") && !said("unknown_service"));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_worker_that_is_tried_has_a_span_of_its_own() {
    let collector = Collector::start().await;
    let busy = Scripted::start(|_| answer(503, &[], "{}")).await;
    let free = Scripted::start(|_| served(2)).await;
    let workers = vec![busy.worker(1), free.worker(2)];
    let plan = traced(plan(Mode::RoundRobin, workers), collector.endpoint());
    let rig = Rig::start_plan(plan, Vec::new()).await;
    while busy.seen() == 0 {
        assert_eq!(ask(&rig, true).await.status, 200);
    }
    let spans = stopped(rig, &collector).await;
    let refused = spans.iter().find(|span| span.failed).unwrap();
    assert_eq!(refused.attributes["http.response.status_code"], "503");
    assert_eq!(refused.attributes["kvroute.worker"], "1");
    let beside: Vec<_> = spans.iter().filter(|span| span.parent == refused.parent).collect();
    assert_eq!(beside.iter().filter(|span| span.name == "place").count(), 2);
    let tries: Vec<_> = beside.iter().filter(|span| span.name == "POST").collect();
    assert_eq!(tries.len(), 2);
    assert!(tries.iter().any(|span| span.attributes["kvroute.worker"] == "2" && !span.failed));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_says_why() {
    let collector = Collector::start().await;
    let url = format!("http://127.0.0.1:{}", lasting_port());
    let gone = WorkerSpec { id: Some(1), ..WorkerSpec::new(&url, MODEL) };
    let rig =
        Rig::start_plan(traced(plan(Mode::RoundRobin, vec![gone]), collector.endpoint()), Vec::new()).await;
    let answer = ask(&rig, true).await;
    assert_eq!(answer.status, 502, "{}", answer.text);
    let unknown = json!({ "model": SECRET, "messages": [{ "role": "user", "content": SECRET }] });
    assert_eq!(rig.post(CHAT, &unknown).await.status, 404);
    rig.client.get(&format!("{}/health", rig.public())).await;
    let spans = stopped(rig, &collector).await;

    let attempt = only(&spans, "POST");
    assert_eq!((attempt.failed, &*attempt.attributes["error.type"]), (true, "worker_unreachable"));
    let requests = named(&spans, &format!("POST {CHAT}"));
    let [failed, refused] = requests[..] else { panic!("{spans:#?}") };
    assert!(failed.failed && failed.attributes["http.response.status_code"] == "502");
    let [found, nobody] = named(&spans, "place")[..] else { panic!("{spans:#?}") };
    assert_eq!((found.failed, nobody.failed), (false, true), "there is nobody else");
    assert!(!refused.failed, "a client's error is none of the server's");
    assert_eq!(refused.attributes["error.type"], "model_not_found");
    assert_eq!((refused.parent.as_str(), refused.trace == TRACE), ("", false), "a trace of its own");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_its_worker_breaks_off_is_a_failure_of_both() {
    let collector = Collector::start().await;
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let breaking = async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let head =
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
            stream.write_all(format!("{head}6\r\ndata: \r\n").as_bytes()).await.unwrap();
        }
    };
    let worker = tokio::spawn(breaking);
    let breaks = WorkerSpec { id: Some(1), ..WorkerSpec::new(&url, MODEL) };
    let rig =
        Rig::start_plan(traced(plan(Mode::RoundRobin, vec![breaks]), collector.endpoint()), Vec::new()).await;
    let _ = rig
        .client
        .open(&format!("{}{CHAT}", rig.public()), &chat("be brief", SECRET))
        .await
        .into_body()
        .collect()
        .await;
    let spans = stopped(rig, &collector).await;
    worker.abort();
    let (request, attempt) = (only(&spans, &format!("POST {CHAT}")), only(&spans, "POST"));
    assert!(request.failed && attempt.failed, "{spans:#?}");
    assert_eq!(request.attributes["kvroute.outcome"], "cut");
    assert_eq!(attempt.attributes["error.type"], "worker_stream_cut");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_let_in_is_not_traced() {
    let collector = Collector::start().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "sk-aaaaaaaaaaaaaaaa\n").unwrap();
    let worker = Upstream::start(upstream::plain).await;
    let mut plan = traced(plan(Mode::RoundRobin, vec![worker.worker(1, MODEL)]), collector.endpoint());
    plan.settings.api_keys = Some(Arc::new(ApiKeys::open(file.path()).unwrap()));
    let rig = Rig::start_plan(plan, Vec::new()).await;
    assert_eq!(ask(&rig, true).await.status, 401);
    assert!(stopped(rig, &collector).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_in_two_hops_has_a_span_for_each() {
    let collector = Collector::start().await;
    let pools = Pools::start(1, 1).await;
    let rig = pools.behind_plan(|workers| traced(plan(Mode::Kv, workers), collector.endpoint())).await;
    let (prefill, decode) = hops(&rig.post(CHAT, &growing(1)).await);
    let spans = stopped(rig, &collector).await;
    let hops: Vec<_> =
        named(&spans, "POST").iter().map(|span| span.attributes["kvroute.worker"].clone()).collect();
    assert_eq!(hops, [prefill.to_string(), decode.to_string()]);
    assert_eq!(named(&spans, "place").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_that_its_client_does_not_sample_is_passed_on_and_not_sent() {
    let collector = Collector::start().await;
    let worker = Upstream::start(upstream::plain).await;
    let plan = traced(plan(Mode::RoundRobin, vec![worker.worker(1, MODEL)]), collector.endpoint());
    let rig = Rig::start_plan(plan, Vec::new()).await;
    assert_eq!(ask(&rig, false).await.status, 200);
    let told = worker.last().headers["traceparent"].to_str().unwrap().to_owned();
    assert!(told.starts_with(&format!("00-{TRACE}-")) && told.ends_with("-00"), "{told}");
    assert!(stopped(rig, &collector).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_costs_traces_alone() {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, lasting_port()));
    let worker = Scripted::start(|_| served(1)).await;
    let endpoint = Some(format!("http://{address}").parse().unwrap());
    let rig =
        Rig::start_plan(traced(plan(Mode::RoundRobin, vec![worker.worker(1)]), endpoint), Vec::new()).await;
    let exports = async |result: &str| {
        rig.metric("kvroute_trace_exports_total", &format!("result=\"{result}\"")).await as u64
    };
    let failing = async || rig.metric("kvroute_trace_exports_failing", "").await == 1.0;
    assert_eq!(ask(&rig, true).await.status, 200);
    eventually("a batch is lost", async || failing().await).await;
    assert_eq!((exports("sent").await, exports("failed").await), (0, 1));

    let collector = Collector::start_at(address).await;
    assert_eq!(ask(&rig, true).await.status, 200);
    eventually("a batch arrives", async || exports("sent").await == 1).await;
    assert!(!failing().await && !collector.spans().is_empty());
}
