//! What a turn of a long conversation costs, and what short requests notice of long ones.
//!
//! * `turn/*`: a history of 100,000 tokens with one new message of some 50, by steps: reading the JSON, rendering the
//!   template, rendering and looking all segments up (`draft`), the tokens (`cached`, which includes the draft), and the same
//!   without the cache (`fresh`). `words` is the same history with messages of a few words, so of very many segments.
//! * After that, without criterion: the latency of short requests alone and while eight cold prompts of 100,000 tokens are
//!   kept in flight, over sockets, to `POST /v1/route/explain`: the way of a request without an engine, whose own tokenising
//!   would be measured too. Client and router share the machine.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a bench reports by failing")]

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use criterion::{BatchSize, Criterion};
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use kvroute::{
    cli::assemble,
    config::{FrontendPlan, ModelEntry},
    fleet::{RouterConfig, WorkerSpec},
    frontend::FrontendSettings,
    prompt::{ChatInput, Encoder, SegmentCache},
    select::{Mode, Tuning},
};
use serde_json::{Value, json};

const TOKENS: usize = 100_000;

fn main() {
    let mut criterion = Criterion::default().configure_from_args().sample_size(20);
    turn(&mut criterion, "turn", 400);
    turn(&mut criterion, "words", 8);
    criterion.final_summary();
    if std::env::args().all(|argument| argument != "--list" && argument != "--test") {
        short_beside_long();
    }
}

/// Words that differ, of a language that the tiny tokenizer knows a little.
fn words(rng: &mut fastrand::Rng, count: usize) -> String {
    let known =
        ["the", "begin", "rain", "user", "before", "happen", "stone", "river", "return", "value", "of", "it"];
    let word = |rng: &mut fastrand::Rng| match rng.u8(..8) {
        0 => format!("{}\n", rng.u32(..10_000)),
        1 => format!("{}{}.", known[rng.usize(..known.len())], known[rng.usize(..known.len())]),
        _ => known[rng.usize(..known.len())].to_owned(),
    };
    (0..count).map(|_| word(rng)).collect::<Vec<_>>().join(" ")
}

/// A conversation of [`TOKENS`] tokens, by messages of so many words.
fn history(encoder: &Encoder, words_each: usize) -> Vec<Value> {
    let mut rng = fastrand::Rng::with_seed(7);
    let (mut messages, mut tokens) = (Vec::new(), 0);
    while tokens < TOKENS {
        let content = words(&mut rng, words_each);
        tokens += encoder.encode_text(&content, false).unwrap().tokens.len() + 5;
        let role = if messages.len() % 2 == 0 { "user" } else { "assistant" };
        messages.push(json!({"role": role, "content": content}));
    }
    messages
}

fn turn(criterion: &mut Criterion, name: &str, words_each: usize) {
    let encoder = Encoder::tiny().unwrap();
    let mut messages = history(&encoder, words_each);
    let cache = SegmentCache::new(64 << 20);
    let history = json!(messages);
    let before = encoder.draft_chat(&ChatInput::new(&history), &cache).unwrap();
    let tokens = encoder.finish(before, &cache, &|| false).unwrap().unwrap().tokens.len();
    let count = messages.len();
    messages.push(json!({"role": "user", "content": ""}));
    let mut rng = fastrand::Rng::with_seed(11);
    let mut next = || {
        let content = words(&mut rng, 30);
        messages[count]["content"] = Value::from(content);
        json!(messages)
    };
    let text = next().to_string();
    println!("{name}: {count} messages, {tokens} tokens, {} bytes of JSON", text.len());
    let mut group = criterion.benchmark_group(name);
    group.bench_function("json", |b| b.iter(|| serde_json::from_str::<Value>(&text).unwrap()));
    let fixed = next();
    let input = ChatInput::new(&fixed);
    group.bench_function("render", |b| b.iter(|| encoder.render_chat(&input).unwrap()));
    group.bench_function("draft", |b| b.iter(|| encoder.draft_chat(&input, &cache).unwrap()));
    group.bench_function("cached", |b| {
        b.iter_batched(
            &mut next,
            |messages| {
                let draft = encoder.draft_chat(&ChatInput::new(&messages), &cache).unwrap();
                assert!(draft.open_bytes() < 1000);
                (encoder.finish(draft, &cache, &|| false).unwrap(), messages)
            },
            BatchSize::PerIteration,
        );
    });
    group.bench_function("fresh", |b| b.iter(|| encoder.encode_chat(&input).unwrap()));
    group.finish();
}

/// Long prompts that are kept in flight.
const LONG: u64 = 8;

/// For how long short requests are measured.
const MEASURED: Duration = Duration::from_secs(10);

type Http = Client<HttpConnector, Full<bytes::Bytes>>;

fn short_beside_long() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let encoder = Encoder::tiny().unwrap();
        let mut rng = fastrand::Rng::with_seed(13);
        let mut long = words(&mut rng, TOKENS / 2);
        let tokens = encoder.encode_text(&long, false).unwrap().tokens.len();
        long.truncate(long.len() * TOKENS / tokens.max(TOKENS));
        let long: Arc<str> = long.into();
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let plan = FrontendPlan {
            settings: FrontendSettings { public: local, admin: local, ..FrontendSettings::default() },
            router: RouterConfig { mode: Mode::Kv, tuning: Tuning::default() },
            workers: vec![WorkerSpec::new("http://127.0.0.1:9", "m")],
            models: vec![ModelEntry {
                name: "m".to_owned(),
                tokenizer: concat!(env!("CARGO_MANIFEST_DIR"), "/assets/tiny").into(),
                chat_template: None,
            }],
        };
        let frontend = assemble(plan).await.unwrap();
        let url: Arc<str> = format!("http://{}/v1/route/explain", frontend.admin_addr()).into();
        for round in 1..=3 {
            measure(&url, "alone").await;
            let (over, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
            let clients: Vec<_> = (0..LONG)
                .map(|client| {
                    let (url, long) = (Arc::clone(&url), Arc::clone(&long));
                    let (over, done) = (Arc::clone(&over), Arc::clone(&done));
                    tokio::spawn(async move {
                        let http = http();
                        for number in 0_u64.. {
                            if over.load(Relaxed) {
                                break;
                            }
                            ask(&http, &url, &format!("{round} {client} {number} {long}")).await;
                            done.fetch_add(1, Relaxed);
                        }
                    })
                })
                .collect();
            measure(&url, &format!("beside {LONG} of {TOKENS} tokens")).await;
            println!("  {} long prompts were answered meanwhile", done.load(Relaxed));
            over.store(true, Relaxed);
            for client in clients {
                client.await.unwrap();
            }
        }
    });
}

fn http() -> Http {
    Client::builder(TokioExecutor::new()).build_http()
}

async fn ask(http: &Http, url: &str, content: &str) {
    let body = json!({"model": "m", "messages": [{"role": "user", "content": content}]}).to_string();
    let request = Request::post(url).header("content-type", "application/json");
    let answer = http.request(request.body(Full::new(body.into())).unwrap()).await.unwrap();
    assert!(answer.status().is_success(), "{}", answer.status());
    answer.into_body().collect().await.unwrap();
}

/// Sends short prompts, each with something new in it, a millisecond apart, and prints how long they took.
async fn measure(url: &str, what: &str) {
    let http = http();
    let (start, mut taken, mut number) = (Instant::now(), Vec::new(), 0_u64);
    while start.elapsed() < MEASURED {
        number += 1;
        let content = format!("{number} {what}: what is the value of the river before it rains?");
        let sent = Instant::now();
        ask(&http, url, &content).await;
        taken.push(sent.elapsed());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    taken.sort_unstable();
    let at = |share: f64| taken[((taken.len() - 1) as f64 * share) as usize].as_secs_f64() * 1000.0;
    println!(
        "short requests {what}: {} of them, p50 {:.2} ms, p99 {:.2} ms, longest {:.2} ms",
        taken.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
}
