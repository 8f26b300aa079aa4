//! What a request may say about its own routing, and what it is told back.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod rig;

use http::Method;
use http_body_util::BodyExt as _;
use kvroute::{config::FrontendPlan, select::Mode};
use serde_json::{Value, json};

use crate::rig::{
    Answer, MODEL, Rig, chat, plan, prose,
    upstream::{PLAIN, Upstream, plain},
};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

async fn ask(rig: &Rig, headers: &[(&str, &str)], nvext: &Value) -> Answer {
    let mut body = chat("be brief", "where am I?");
    body["nvext"] = nvext.clone();
    body["nvext"]["extra_fields"] = json!(["worker_id"]);
    rig.client.request(Method::POST, &format!("{}{CHAT}", rig.public()), headers, &body).await
}

fn message(answer: &Answer) -> &str {
    answer.json["error"]["message"].as_str().unwrap_or_else(|| panic!("{}", answer.text))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pin_goes_where_it_says_in_every_mode_and_the_header_wins() {
    for mode in [Mode::Kv, Mode::RoundRobin, Mode::Direct, Mode::LeastLoaded] {
        let rig = Rig::start(mode, 3).await;
        for (headers, nvext, worker) in [
            (&[][..], json!({ "backend_instance_id": 2 }), 2),
            (&[], json!({ "decode_worker_id": 3 }), 3),
            (&[], json!({ "backend_instance_id": 2, "decode_worker_id": 1 }), 1),
            (&[], json!({ "backend_instance_id": 2, "dp_rank": 0 }), 2),
            (&[("x-dynamo-worker-instance-id", "3")], json!({}), 3),
            (&[("x-worker-instance-id", "1")], json!({}), 1),
            (&[("x-worker-instance-id", "1"), ("x-dynamo-dp-rank", "0")], json!({}), 1),
            (&[("x-worker-instance-id", "1"), ("x-dp-rank", "0")], json!({}), 1),
            (&[("x-worker-instance-id", "1"), ("x-data-parallel-rank", "0")], json!({}), 1),
            (&[("x-worker-instance-id", "3")], json!({ "backend_instance_id": 2 }), 3),
            (&[("x-dynamo-worker-instance-id", "3")], json!({ "decode_worker_id": 1 }), 3),
            (&[("x-dynamo-worker-instance-id", "2"), ("x-worker-instance-id", "1")], json!({}), 2),
            (&[("x-dynamo-worker-instance-id", "two"), ("x-worker-instance-id", "1")], json!({}), 1),
            (&[("x-worker-instance-id", "-1")], json!({ "backend_instance_id": 2 }), 2),
            (&[("x-dp-rank", "none")], json!({ "backend_instance_id": 2, "dp_rank": 0 }), 2),
        ] {
            // More than once, so that no turn of a rotation can pass for a pin.
            for _ in 0..2 {
                let answer = ask(&rig, headers, &nvext).await;
                assert_eq!(answer.status, 200, "{mode} {headers:?} {nvext}: {}", answer.text);
                assert_eq!(answer.worker(), worker, "{mode} {headers:?} {nvext}");
            }
        }
        rig.wait_for_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pin_to_nobody_is_refused_by_name() {
    let rig = Rig::start(Mode::Kv, 2).await;
    for (headers, nvext, says) in [
        (
            &[][..],
            json!({ "backend_instance_id": 9 }),
            "nvext.backend_instance_id=9 does not identify a known worker",
        ),
        (&[], json!({ "decode_worker_id": 9 }), "nvext.decode_worker_id=9 does not identify"),
        (&[("x-worker-instance-id", "9")], json!({}), "9 does not identify a known worker"),
        (&[], json!({ "backend_instance_id": 1, "dp_rank": 4 }), "has no rank 4; it has 1 ranks"),
        (&[], json!({ "dp_rank": 0 }), "a dp_rank needs the worker"),
        (&[("x-dp-rank", "0")], json!({}), "a dp_rank needs the worker"),
    ] {
        let answer = ask(&rig, headers, &nvext).await;
        assert_eq!(answer.status, 400, "{headers:?} {nvext}: {}", answer.text);
        assert!(message(&answer).contains(says), "{headers:?} {nvext}: {}", answer.text);
    }
    // A malformed header is an absent one: no pin, so any worker.
    let answer = ask(&rig, &[("x-worker-instance-id", "9x")], &json!({})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    rig.wait_for_idle().await;

    let direct = Rig::start(Mode::Direct, 2).await;
    let answer = ask(&direct, &[], &json!({})).await;
    assert_eq!(answer.status, 400);
    assert!(message(&answer).contains("worker ID required"), "{}", answer.text);
}

async fn recording() -> (Rig, Upstream) {
    let upstream = Upstream::start(plain).await;
    let rig = Rig::assemble(plan(Mode::Kv, vec![upstream.worker(1, MODEL)]), Vec::new()).await;
    (rig, upstream)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engine_gets_the_client_s_bytes_without_nvext() {
    let (rig, upstream) = recording().await;
    let url = format!("{}{CHAT}", rig.public());
    let messages = r#""messages" : [ {"role":"user","content":"h\u00e9\/ 漢"} ]"#;
    for (sent, received) in [
        (
            format!(
                r#" {{ "model":"{MODEL}" , {messages},"nvext" : {{"extra_fields":["timing"], "x":{{}}}} , "seed":1.50e1 }} "#
            ),
            format!(r#" {{ "model":"{MODEL}" , {messages} , "seed":1.50e1 }} "#),
        ),
        (
            format!(
                r#"{{"nvext":{{"agent_hints":{{"priority":3}}}},"mod\u0065l":"{MODEL}",{messages},"later":[1, 2]}}"#
            ),
            format!(r#"{{"mod\u0065l":"{MODEL}",{messages},"later":[1, 2]}}"#),
        ),
        (
            format!("{{\r\n\"model\":\"{MODEL}\",\r\n{messages},\r\n\"nvext\":{{}}\r\n}}\n"),
            format!("{{\r\n\"model\":\"{MODEL}\",\r\n{messages}\r\n}}\n"),
        ),
        (
            format!("{{ \"model\": \"{MODEL}\",{messages}, \"unknown\":null }}"),
            format!("{{ \"model\": \"{MODEL}\",{messages}, \"unknown\":null }}"),
        ),
        (
            format!(r#"{{"model":"{MODEL}",{messages},"nvext":{{"cache_salt":"a\"b"}}}}"#),
            format!(r#"{{"cache_salt":"a\"b","model":"{MODEL}",{messages}}}"#),
        ),
        (
            format!(
                r#"{{"model":"{MODEL}",{messages},"cache_salt":"own","nvext":{{"cache_salt":"other"}}}}"#
            ),
            format!(r#"{{"model":"{MODEL}",{messages},"cache_salt":"own"}}"#),
        ),
    ] {
        let answer = rig.client.post_bytes(&url, sent.clone()).await;
        assert_eq!(answer.status, 200, "{sent}: {}", answer.text);
        let last = upstream.last();
        assert_eq!((last.path.as_str(), last.body), (CHAT, received), "{sent}");
    }
    assert_eq!(rig.metric("kvroute_unknown_hint_keys_total", "").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tenant_in_the_header_wins_over_every_salt_in_the_body() {
    let (rig, upstream) = recording().await;
    // Prompts are cached on routes that are not tokenised here, too.
    for (path, prompt) in
        [(CHAT, r#""messages":[{"role":"user","content":"hi"}]"#), ("/v1/responses", r#""input":"hi""#)]
    {
        let url = format!("{}{path}", rig.public());
        for salt in
            ["", r#""cache_salt":null,"#, r#""cache_salt":"theirs","#, r#""nvext":{"cache_salt":"theirs"},"#]
        {
            let body = format!(r#"{{{salt}"model":"{MODEL}",{prompt}}}"#);
            let body: Value = serde_json::from_str(&body).unwrap();
            let answer = rig.client.request(Method::POST, &url, &[("x-tenant-id", "acme")], &body).await;
            assert_eq!(answer.status, 200, "{}", answer.text);
            let sent = upstream.last();
            assert_eq!(sent.path, path);
            assert_eq!(sent.body.matches("cache_salt").count(), 1, "{}", sent.body);
            assert_eq!(serde_json::from_str::<Value>(&sent.body).unwrap()["cache_salt"], "acme");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_share_nothing_and_predictions_under_a_salt_are_right() {
    let rig = Rig::start(Mode::Kv, 2).await;
    let body = chat(&prose(5, 120), "what now?");
    let mut by_nvext = body.clone();
    by_nvext["nvext"] = json!({ "cache_salt": "beta" });
    let mut own = body.clone();
    own["cache_salt"] = json!("gamma");
    let tenants: [(&[(&str, &str)], &Value); 4] =
        [(&[], &body), (&[("x-tenant-id", "acme")], &body), (&[], &by_nvext), (&[], &own)];
    for round in 0..2 {
        for (headers, body) in tenants {
            rig.wait_for_events().await;
            let send = async |base: String, path: &str| {
                rig.client.request(Method::POST, &format!("{base}{path}"), headers, body).await
            };
            let explain = send(rig.admin(), "/v1/route/explain").await.json;
            let answer = send(rig.public(), CHAT).await;
            let reachable = (answer.prompt_tokens() - 1) / 16;
            let predicted = explain["choice"]["overlap_blocks"].as_u64().unwrap().min(reachable);
            assert_eq!(predicted * 16, answer.cached_tokens(), "{headers:?} {explain}");
            assert_eq!(predicted, if round == 0 { 0 } else { reachable }, "{headers:?} {body}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_only_the_engine_can_turn_into_tokens_reaches_it_as_it_came() {
    let (rig, upstream) = recording().await;
    for prompt in [
        r#""prompt_embeds":"QUJD""#,
        r#""prompt":null,"prompt_embeds":["QUJD"]"#,
        r#""prompt":"","prompt_embeds":"QUJD""#,
    ] {
        let body = format!(r#"{{"model":"{MODEL}",{prompt}}}"#);
        let answer = rig.client.post_bytes(&format!("{}{TEXT}", rig.public()), body.clone()).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(upstream.last().body, body);
    }
    rig.wait_for_idle().await;
}

/// The events of a stream, as JSON, without `[DONE]`.
fn events(text: &str) -> Vec<Value> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_comes_by_opt_in() {
    let rig = Rig::start(Mode::Kv, 2).await;
    let mut chat = chat("be brief", "who are you?");
    chat["nvext"] = json!({ "extra_fields": ["worker_id", "timing", "kv_hit_rate"] });
    let text = json!({ "model": MODEL, "prompt": "who are you?", "max_tokens": 4, "nvext": chat["nvext"] });
    for (path, mut body) in [(CHAT, chat), (TEXT, text)] {
        let whole = rig.post(path, &body).await;
        let nvext = &whole.json["nvext"];
        let worker = &nvext["worker_id"]["decode_worker_id"];
        assert_eq!(
            nvext["worker_id"],
            json!({ "prefill_worker_id": worker, "prefill_dp_rank": 0, "decode_worker_id": worker, "decode_dp_rank": 0 })
        );
        assert_timing(&nvext["timing"]);
        assert_eq!(nvext.as_object().unwrap().len(), 2);

        body["stream"] = json!(true);
        let stream = rig.post(path, &body).await;
        assert!(stream.text.ends_with("data: [DONE]\n\n"), "{}", stream.text);
        let events = events(&stream.text);
        let (first, rest) = events.split_first().unwrap();
        assert!(first["nvext"]["worker_id"]["decode_worker_id"].is_u64(), "{first}");
        assert!(first["nvext"].get("timing").is_none(), "{first}");
        for event in rest {
            let finish = event["choices"][0]["finish_reason"].is_string();
            assert_eq!(event["nvext"]["timing"].is_object(), finish, "{event}");
            assert!(event["nvext"].get("worker_id").is_none(), "{event}");
        }
        let timing = rest.iter().map(|event| &event["nvext"]["timing"]).find(|timing| timing.is_object());
        assert_timing(timing.unwrap());
        for answer in [whole, stream] {
            assert!(!answer.text.contains("kv_hit_rate"), "{}", answer.text);
        }
    }
}

fn assert_timing(timing: &Value) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    let received = timing["request_received_ms"].as_u64().unwrap();
    assert!(received <= now && now - received < 60_000, "{timing}");
    let (first, total) = (timing["ttft_ms"].as_f64().unwrap(), timing["total_time_ms"].as_f64().unwrap());
    assert!(0.0 < first && first <= total, "{timing}");
}

/// Events with odd spacing, a comment, and CRLF line ends.
fn odd(path: &str) -> (u16, &'static str, &'static str) {
    if path == CHAT { (200, "text/event-stream", ODD) } else { plain(path) }
}

const ODD: &str = ": hello\r\n\r\ndata:{\"choices\" : [ ]}\n\nid: 7\ndata: {\"choices\":[{\"finish_reason\":\"stop\"}]}\r\n\r\ndata: [DONE]\n\n";

#[tokio::test(flavor = "multi_thread")]
async fn without_opt_in_the_answer_is_the_engine_s_to_the_byte() {
    let upstream = Upstream::start(odd).await;
    let rig = Rig::assemble(plan(Mode::Kv, vec![upstream.worker(1, MODEL)]), Vec::new()).await;
    let text = json!({ "model": MODEL, "prompt": "hi" });
    for nvext in [json!(null), json!({}), json!({ "extra_fields": ["engine_data", "kv_hit_rate"] })] {
        let (mut chat, mut text) = (chat("a", "b"), text.clone());
        (chat["nvext"], text["nvext"]) = (nvext.clone(), nvext);
        assert_eq!(rig.post(CHAT, &chat).await.text, ODD);
        let answer = rig.post(TEXT, &text).await;
        assert_eq!(answer.text, PLAIN);
        assert_eq!(answer.headers["content-length"], PLAIN.len().to_string());
    }
    // And with it, only `nvext` is added.
    let mut asking = text;
    asking["nvext"] = json!({ "extra_fields": ["worker_id"] });
    let answer = rig.post(TEXT, &asking).await.text;
    let (kept, added) = (PLAIN.strip_suffix("}\n").unwrap(), ",\"nvext\":{\"worker_id\":");
    assert!(answer.starts_with(&format!("{kept}{added}")) && answer.ends_with("}\n"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn where_a_request_would_go_is_told_to_operators_only() {
    let rig = Rig::start(Mode::Kv, 2).await;
    let prompt: Vec<u32> = (0..80).map(|token| 300 + token).collect();
    let served = json!({ "model": MODEL, "prompt": prompt, "max_tokens": 2, "nvext": { "extra_fields": ["worker_id"] } });
    let holder = rig.post(TEXT, &served).await.worker();
    rig.wait_for_events().await;
    rig.wait_for_idle().await;
    let chosen = rig.metric("kvroute_worker_chosen_total", "").await;

    let mut query = served.clone();
    query["nvext"] = json!({ "annotations": ["query_instance_id:"] });
    let refused = rig.post(TEXT, &query).await;
    assert_eq!(refused.status, 400, "{}", refused.text);
    assert!(message(&refused).contains("admin listener"), "{}", refused.text);
    assert_eq!(refused.json["error"]["param"], "nvext.annotations");

    let answer = rig.ask(TEXT, &query).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(answer.worker(), holder);
    assert_eq!(answer.json["nvext"]["token_ids"], json!(prompt));
    assert!(answer.json["nvext"].get("timing").is_none());
    let mut chat = chat("be brief", "and a chat?");
    chat["nvext"] = query["nvext"].clone();
    let answer = rig.ask(CHAT, &chat).await;
    let tokens = rig.client.post(&format!("http://{}/tokenize", rig.engines[0].http_addr()), &chat).await;
    assert_eq!(answer.json["nvext"]["token_ids"], tokens.json["tokens"], "{}", answer.text);

    // Nothing was sent and nothing is booked.
    assert_eq!(rig.metric("kvroute_worker_chosen_total", "").await, chosen);
    assert!(rig.workers().await.iter().all(|worker| worker["load"]["requests"] == 0));
    let without = rig.ask(TEXT, &served).await;
    assert_eq!(without.status, 400, "{}", without.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_routes_that_are_not_tokenised_honour_pins_too() {
    let upstreams = [Upstream::start(plain).await, Upstream::start(plain).await];
    let workers = (1..).zip(&upstreams).map(|(id, upstream)| upstream.worker(id, MODEL)).collect();
    let plan = FrontendPlan { models: Vec::new(), ..plan(Mode::RoundRobin, workers) };
    let rig = Rig::assemble(plan, Vec::new()).await;
    let body = json!({ "model": MODEL, "input": "hi", "nvext": { "backend_instance_id": 2 } });
    for _ in 0..2 {
        let response = rig.client.open(&format!("{}/v1/responses", rig.public()), &body).await;
        assert_eq!(response.status(), 200);
        response.into_body().collect().await.unwrap();
    }
    assert_eq!((upstreams[0].recorded().len(), upstreams[1].recorded().len()), (0, 2));
    assert!(!upstreams[1].last().body.contains("nvext"));
}
