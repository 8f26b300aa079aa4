//! A prompt's tokens come from the model's tokenizer, else from the engine, else from nobody; and that is said.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod rig;

use http_body_util::BodyExt as _;
use kvroute::{
    config::FrontendPlan,
    fleet::WorkerSpec,
    select::Mode,
    worker::mock::{MockEngine, MockSettings},
};
use serde_json::{Value, json};

use crate::rig::{
    MODEL, Rig, chat, embedder, engine_settings, plan,
    pools::Pools,
    prose,
    upstream::{PLAIN, Upstream, plain},
    worker,
};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// The same plan without tokenizers.
fn without_tokenizer(plan: FrontendPlan) -> FrontendPlan {
    FrontendPlan { models: Vec::new(), ..plan }
}

/// Requests that repeat and extend a few prompts.
fn request(number: u64) -> (&'static str, Value) {
    let (group, tail) = (prose(number % 3, 60), prose(50 + number % 5, 10));
    match number % 2 {
        0 => (CHAT, chat(&group, &tail)),
        _ => (TEXT, json!({ "model": MODEL, "max_tokens": 3, "prompt": format!("{group} {tail}") })),
    }
}

async fn assert_predictions_are_right(rig: &Rig, source: &str) {
    let mut hits = 0;
    for number in 0..24 {
        let (path, mut body) = request(number);
        rig.wait_for_events().await;
        let explain = rig.ask("/v1/route/explain", &body).await.json;
        assert_eq!((&explain["tokens_from"], &explain["prompt_complete"]), (&json!(source), &json!(true)));
        let choice = &explain["choice"];
        body["nvext"] = json!({ "backend_instance_id": choice["worker_id"] });
        let answer = rig.post(path, &body).await;
        assert_eq!(explain["prompt_tokens"], answer.prompt_tokens(), "{explain}");
        let reachable = (answer.prompt_tokens() - 1) / 16;
        let predicted = choice["overlap_blocks"].as_u64().unwrap().min(reachable) * 16;
        assert_eq!(predicted, answer.cached_tokens(), "request {number}: {explain}");
        hits += u64::from(predicted > 0);
    }
    assert!(hits > 15, "only {hits} requests had anything to predict");
    assert_said(rig, source, 0.0).await;
    assert_eq!(rig.metric("kvroute_untokenised_requests_total", "").await, 0.0);
}

/// All places that say where tokens come from agree.
async fn assert_said(rig: &Rig, source: &str, untokenised: f64) {
    let ready = rig.client.get(&format!("{}/ready", rig.public())).await;
    assert_eq!((ready.status.as_u16(), &ready.json["models"][0]["tokens_from"]), (200, &json!(source)));
    let sets = rig.client.get(&format!("{}/v1/worker-sets", rig.admin())).await;
    assert_eq!(sets.json["worker_sets"][0]["tokens_from"], source);
    assert_eq!(rig.metric("kvroute_model_untokenised", MODEL).await, untokenised);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_s_tokenizer_is_asked_first() {
    let rig = Rig::start(Mode::Kv, 2).await;
    assert_predictions_are_right(&rig, "tokenizer").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_one_the_engine_is_asked() {
    let pools = Pools::of(vec![engine_settings(); 2]).await;
    let rig = pools.behind_plan(|workers| without_tokenizer(plan(Mode::Kv, workers))).await;
    rig.wait_for_streams("live").await;
    assert_predictions_are_right(&rig, "engine").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn token_ids_need_nobody() {
    let upstream = Upstream::start(no_tokenize).await;
    let rig =
        Rig::assemble(without_tokenizer(plan(Mode::Kv, vec![upstream.worker(1, MODEL)])), Vec::new()).await;
    let body = json!({ "model": MODEL, "prompt": [300, 301, 302] });
    let explain = rig.ask("/v1/route/explain", &body).await.json;
    assert_eq!((&explain["tokens_from"], &explain["prompt_tokens"]), (&json!("client"), &json!(3)));
    assert_eq!(rig.post(TEXT, &body).await.status, 200);
    assert!(upstream.recorded().iter().all(|request| request.path == TEXT));
}

fn no_tokenize(path: &str) -> (u16, &'static str, &'static str) {
    if path == "/tokenize" { (404, "application/json", r#"{"detail":"Not Found"}"#) } else { plain(path) }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_neither_the_load_decides_and_everyone_can_see_it() {
    let upstreams = [Upstream::start(no_tokenize).await, Upstream::start(no_tokenize).await];
    let workers = (1..).zip(&upstreams).map(|(id, upstream)| upstream.worker(id, MODEL)).collect();
    let rig = Rig::assemble(without_tokenizer(plan(Mode::Kv, workers)), Vec::new()).await;
    assert_said(&rig, "engine", 0.0).await;
    for number in 0..8 {
        let (path, body) = request(number);
        let answer = rig.post(path, &body).await;
        assert_eq!((answer.status.as_u16(), answer.text.as_str()), (200, PLAIN));
        assert_eq!(rig.metric("kvroute_untokenised_requests_total", "").await, (number + 1) as f64);
    }
    assert_said(&rig, "nobody", 1.0).await;
    let asked: usize = upstreams
        .iter()
        .map(|upstream| upstream.recorded().iter().filter(|request| request.path == "/tokenize").count())
        .sum();
    assert!((1..=4).contains(&asked), "asked {asked} times");

    let explain = rig.ask("/v1/route/explain", &chat("a", "b")).await.json;
    assert_eq!(explain["tokens_from"], "nobody", "{explain}");
    assert_eq!((&explain["prompt_complete"], &explain["prompt_tokens"]), (&json!(false), &json!(0)));
    assert!(explain["tokens_problem"].as_str().unwrap().contains("no tokenizer"), "{explain}");
    rig.wait_for_idle().await;
}

fn starting(path: &str) -> (u16, &'static str, &'static str) {
    if path == "/tokenize" { (503, "text/plain", "starting") } else { plain(path) }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_in_trouble_does_not_settle_it() {
    let (troubled, engine) = (Upstream::start(starting).await, MockEngine::start(engine_settings()).await);
    let workers = vec![troubled.worker(1, MODEL)];
    let rig = Rig::assemble(without_tokenizer(plan(Mode::Kv, workers)), vec![engine.unwrap()]).await;
    for _ in 0..6 {
        assert_eq!(rig.post(CHAT, &chat("a", "b")).await.text, PLAIN);
    }
    assert_said(&rig, "engine", 0.0).await;
    // One that answers is found, in front of it or behind.
    assert_eq!(rig.register(&worker(2, &rig.engines[0]), None).await.status, 201);
    let explain = rig.ask("/v1/route/explain", &chat("a", "b")).await.json;
    assert_eq!(explain["tokens_from"], "engine", "{explain}");
    assert!(explain["prompt_tokens"].as_u64().unwrap() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_with_an_image_is_known_up_to_it() {
    let rig = Rig::start(Mode::Kv, 2).await;
    let text = prose(9, 60);
    let image = json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64,AAAA" } });
    let conversation = |parts: Value| {
        json!({ "model": MODEL, "max_tokens": 2, "messages": [
            { "role": "user", "content": parts },
            { "role": "assistant", "content": "I see." },
            { "role": "user", "content": prose(10, 60) },
        ] })
    };
    let ask = async |body: &Value| rig.ask("/v1/route/explain", body).await.json;
    let words = json!({ "type": "text", "text": text });
    let whole = ask(&conversation(json!([words]))).await;
    let first = ask(&conversation(json!([image, words]))).await;
    let last = ask(&conversation(json!([words, image]))).await;
    assert_eq!(whole["prompt_complete"], true, "{whole}");
    for explain in [&first, &last] {
        assert_eq!(
            (&explain["prompt_complete"], &explain["tokens_from"]),
            (&json!(false), &json!("tokenizer"))
        );
    }
    let tokens = |explain: &Value| explain["prompt_tokens"].as_u64().unwrap();
    assert!(tokens(&first) < 32, "what follows the image was counted: {first}");
    assert!(tokens(&first) < tokens(&last) && tokens(&last) < tokens(&whole), "{first} {last} {whole}");

    // What stands in front of the image is a prefix like any other.
    assert_eq!(rig.post(CHAT, &conversation(json!([words]))).await.status, 200);
    rig.wait_for_events().await;
    let shared = ask(&conversation(json!([words, image]))).await;
    assert_eq!(shared["choice"]["overlap_blocks"], tokens(&last) / 16, "{shared}");
    let answer = rig.post(CHAT, &conversation(json!([words, image]))).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_routes_go_by_load_and_are_counted_apart() {
    for mode in [Mode::Kv, Mode::LeastLoaded] {
        let slow = MockSettings { speedup: 1.0, ..engine_settings() };
        let mut engines = Vec::new();
        for settings in [slow, engine_settings()] {
            engines.push(MockEngine::start(settings).await.unwrap());
        }
        let workers = (1..).zip(&engines).map(|(id, engine)| embedder(id, engine)).collect();
        let rig = Rig::assemble(plan(mode, workers), engines).await;
        let mut long = chat(&prose(3, 60), "be long");
        (long["stream"], long["max_tokens"]) = (json!(true), json!(60));
        long["nvext"] = json!({ "backend_instance_id": 1 });
        let open = rig.client.open(&format!("{}{CHAT}", rig.public()), &long).await;
        for _ in 0..4 {
            let embedding = rig.post("/v1/embeddings", &json!({ "model": MODEL, "input": "hello" })).await;
            assert_eq!(embedding.status, 200, "{}", embedding.text);
            assert!(embedding.json["data"][0]["embedding"].is_array());
        }
        assert_eq!(rig.metric("kvroute_worker_chosen_total", "worker=\"1\"").await, 1.0, "{mode}");
        assert_eq!(rig.metric("kvroute_worker_chosen_total", "worker=\"2\"").await, 4.0, "{mode}");
        open.into_body().collect().await.unwrap();
        assert_eq!(rig.metric("kvroute_requests_total", "surface=\"other\",outcome=\"ok\"").await, 4.0);
        rig.wait_for_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_routes_pass_through_as_they_are() {
    let upstream = Upstream::start(plain).await;
    let model_type = "chat,embedding".parse().unwrap();
    let worker = WorkerSpec { model_type, ..upstream.worker(1, MODEL) };
    let rig = Rig::assemble(plan(Mode::Kv, vec![worker]), Vec::new()).await;
    let body = json!({ "model": MODEL, "input": "hello", "messages": "of another kind" });
    for path in ["/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/rerank"] {
        let answer = rig.post(path, &body).await;
        assert_eq!((answer.status.as_u16(), answer.text.as_str()), (200, PLAIN), "{path}");
        assert_eq!((upstream.last().path.as_str(), upstream.last().body), (path, body.to_string()));
        let unknown = rig.post(path, &json!({ "model": "llama" })).await;
        assert_eq!(unknown.status, 404, "{path}: {}", unknown.text);
        assert_eq!(unknown.json["error"]["code"], "model_not_found");
    }
    assert_eq!(rig.metric("kvroute_requests_total", "surface=\"other\",outcome=\"ok\"").await, 4.0);
    assert_eq!(rig.metric("kvroute_requests_total", "surface=\"other\",outcome=\"client_error\"").await, 4.0);
    for surface in ["chat", "completions"] {
        assert_eq!(rig.metric("kvroute_requests_total", &format!("surface=\"{surface}\"")).await, 0.0);
    }
    // Nobody expects their tokens, so nobody is said to be missing them.
    assert_eq!(rig.metric("kvroute_untokenised_requests_total", "").await, 0.0);
}
