#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]
#![cfg(feature = "server")]
//! The mock engine over HTTP: what a client and a router see of it.

mod mock_client;

use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use kvroute::prompt::Encoder;
use kvroute::worker::mock::{MockEngine, MockError, MockSettings, Role};
use mock_client::{client, complete, eventually, get, post, post_raw, post_with, settings, start, tokens};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test(flavor = "multi_thread")]
async fn chat_answers_whole_and_streamed_with_the_same_text_and_usage() {
    let engine = start().await;
    let messages = json!([{"role": "user", "content": "a question of some length, longer than two blocks"}]);
    let whole = post_with(
        &engine,
        "/v1/chat/completions",
        &json!({"model": "m", "messages": messages, "max_tokens": 9, "return_token_ids": true, "nvext": {}}),
        &[("x-request-id", "rq-9"), ("x-session-id", "s"), ("endpoint-load-metrics-format", "JSON")],
    )
    .await;
    assert_eq!(whole.status, 200, "{:?}", whole.body);
    assert!(whole.headers["endpoint-load-metrics"].to_str().unwrap().starts_with("JSON {\"named_metrics\""));
    let whole = whole.json();
    assert_eq!((&whole["id"], &whole["object"]), (&json!("chatcmpl-rq-9"), &json!("chat.completion")));
    let choice = &whole["choices"][0];
    assert_eq!(
        (&choice["message"]["role"], &choice["finish_reason"]),
        (&json!("assistant"), &json!("length"))
    );
    let prompt: Vec<u32> = serde_json::from_value(whole["prompt_token_ids"].clone()).unwrap();
    let output: Vec<u32> = serde_json::from_value(choice["token_ids"].clone()).unwrap();
    assert_eq!(choice["message"]["content"], Encoder::tiny().unwrap().decode(&output));
    let usage = json!({
        "prompt_tokens": prompt.len(),
        "total_tokens": prompt.len() + 9,
        "completion_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 0},
    });
    assert_eq!(whole["usage"], usage);

    let streamed = post(
        &engine,
        "/v1/chat/completions",
        json!({
            "messages": messages,
            "max_completion_tokens": 9,
            "stream": true,
            "stream_options": {"include_usage": true},
        }),
    )
    .await;
    assert_eq!(streamed.headers["content-type"], "text/event-stream; charset=utf-8");
    let chunks = streamed.chunks();
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let (last, tokens) = chunks[1..].split_last().unwrap();
    assert_eq!(tokens.len(), 9, "one event a token");
    let text: String =
        tokens.iter().map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().unwrap()).collect();
    assert_eq!(choice["message"]["content"], text);
    let reasons: Vec<_> = tokens.iter().map(|chunk| chunk["choices"][0]["finish_reason"].clone()).collect();
    assert_eq!(
        (&reasons[8], reasons.iter().filter(|reason| reason.is_null()).count()),
        (&json!("length"), 8)
    );
    assert_eq!(last["choices"], json!([]));
    let reusable = (prompt.len() - 1) / 16 * 16;
    assert_eq!(last["usage"]["prompt_tokens_details"]["cached_tokens"], reusable, "the same prompt again");
    assert_eq!(last["usage"]["completion_tokens"], 9);
    assert!(
        chunks
            .iter()
            .all(|chunk| chunk["object"] == "chat.completion.chunk" && chunk["id"] == chunks[0]["id"])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_take_texts_and_token_lists_and_several_of_them() {
    let engine = start().await;
    let several = json!({"model": "m", "prompt": [tokens(1, 40), tokens(2, 20)], "max_tokens": 3, "n": 2});
    let reply = post(&engine, "/v1/completions", several).await.json();
    let choices = reply["choices"].as_array().unwrap();
    assert_eq!(
        choices.iter().map(|choice| choice["index"].as_u64().unwrap()).collect::<Vec<_>>(),
        [0, 1, 2, 3]
    );
    assert_eq!(
        (&reply["usage"]["prompt_tokens"], &reply["usage"]["completion_tokens"]),
        (&json!(60), &json!(12))
    );

    let text = json!({"prompt": ["one text", "another"], "stream": true, "return_token_ids": true});
    let chunks = post(&engine, "/v1/completions", text).await.chunks();
    for index in 0..2 {
        let of_choice: Vec<_> = chunks.iter().filter(|chunk| chunk["choices"][0]["index"] == index).collect();
        assert_eq!(of_choice.len(), 16, "vLLM's default limit");
        assert!(of_choice[0]["choices"][0]["prompt_token_ids"].is_array());
        assert!(of_choice[1]["choices"][0]["prompt_token_ids"].is_null());
        assert_eq!(of_choice[15]["choices"][0]["finish_reason"], "length");
    }
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()), "nobody asked for it");

    let again = |seed: u64| json!({"prompt": "same", "seed": seed, "max_tokens": 8});
    let mut texts = Vec::new();
    for seed in [1, 1, 2] {
        texts.push(post(&engine, "/v1/completions", again(seed)).await.json()["choices"][0]["text"].clone());
    }
    assert!(texts[0] == texts[1] && texts[0] != texts[2], "{texts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_tokens_are_the_full_blocks_but_what_must_be_computed() {
    let engine = start().await;
    let prompt = tokens(1, 100);
    assert_eq!(complete(&engine, &prompt).await, 0);
    assert_eq!(complete(&engine, &prompt).await, 96);
    assert_eq!(complete(&engine, &prompt[..96]).await, 80, "a full hit computes its last block again");
    assert_eq!(complete(&engine, &prompt[..50]).await, 48);
    let salted = json!({"model": "m", "prompt": prompt, "max_tokens": 1, "cache_salt": "s1"});
    let adapted = json!({"model": "ad1", "prompt": prompt, "max_tokens": 1});
    for body in [salted, adapted] {
        for cached in [0, 96] {
            let reply = post(&engine, "/v1/completions", body.clone()).await.json();
            assert_eq!(reply["usage"]["prompt_tokens_details"]["cached_tokens"], cached, "{body}");
        }
    }
    let metrics = String::from_utf8(get(&engine, "/metrics").await.body.to_vec()).unwrap();
    let sample = |name: &str| {
        let line = metrics.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}"));
        line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    let hits = f64::from(96 + 80 + 48 + 96 + 96);
    assert_eq!(sample("vllm:prefix_cache_hits_total{engine=\"0\",model_name=\"m\"}"), hits);
    assert_eq!(sample("vllm:prompt_tokens_cached_total{"), hits);
    assert_eq!(sample("vllm:prefix_cache_queries_total{"), f64::from(100 * 6 + 96 + 50));
    assert_eq!(
        sample("vllm:request_success_total{engine=\"0\",finished_reason=\"length\",model_name=\"m\"}"),
        8.0
    );
    assert_eq!(sample("vllm:num_requests_running{"), 0.0);
    assert!(
        metrics.contains("vllm:cache_config_info{block_size=\"16\",")
            && metrics.contains(",num_gpu_blocks=\"64\"")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_as_vllm_refuses() {
    let engine = start().await;
    let cases = [
        ("/v1/completions", json!({"model": "other", "prompt": "a"}), 404, "NotFoundError"),
        (
            "/v1/chat/completions",
            json!({"model": "other", "messages": [{"role": "user", "content": "a"}]}),
            404,
            "NotFoundError",
        ),
        ("/v1/completions", json!({"prompt": tokens(1, 512)}), 400, "BadRequestError"),
        ("/v1/completions", json!({"prompt": tokens(1, 500), "max_tokens": 13}), 400, "BadRequestError"),
        ("/v1/completions", json!({"prompt": "a", "max_tokens": 0}), 400, "BadRequestError"),
        ("/v1/completions", json!({"prompt": [4_000_000]}), 400, "BadRequestError"),
        ("/v1/completions", json!({"prompt": []}), 400, "BadRequestError"),
        ("/v1/completions", json!({"prompt_token_ids": [1, 2]}), 400, "BadRequestError"),
        ("/v1/completions", json!({"prompt": "a", "cache_salt": ""}), 400, "BadRequestError"),
        (
            "/v1/completions",
            json!({"prompt": "a", "stream_options": {"include_usage": true}}),
            400,
            "BadRequestError",
        ),
        ("/v1/chat/completions", json!({"messages": []}), 400, "BadRequestError"),
        ("/v1/chat/completions", json!({"model": "m"}), 400, "BadRequestError"),
    ];
    for (path, body, status, kind) in cases {
        let reply = post(&engine, path, body.clone()).await;
        assert_eq!(reply.status, status, "{body}");
        let error = &reply.json()["error"];
        assert_eq!((&error["type"], &error["code"]), (&json!(kind), &json!(status)), "{body}");
        assert!(error["message"].is_string() && error.get("param").is_some(), "{error}");
    }
    let broken = post_raw(engine.http_addr(), "/v1/completions", "{\"prompt\": ".into(), &[]).await;
    assert_eq!((broken.status, &broken.json()["error"]["code"]), (StatusCode::BAD_REQUEST, &json!(400)));
    let fits = post(&engine, "/v1/completions", json!({"prompt": tokens(1, 500), "max_tokens": 12})).await;
    assert_eq!(fits.status, 200, "exactly the model's length");
    for (rank, status) in [("0", 200), ("1", 400), ("none", 200)] {
        let body = json!({"prompt": "a", "max_tokens": 1});
        let reply = post_with(&engine, "/v1/completions", &body, &[("x-data-parallel-rank", rank)]).await;
        assert_eq!(reply.status, status, "rank {rank}");
    }
    let small = MockSettings { max_model_len: 2000, ..settings() };
    let error = MockEngine::start(small).await.expect_err("63 blocks of 16 hold 1008 tokens");
    assert!(matches!(error, MockError::Setting { field: "num_gpu_blocks", .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_the_endpoints_around_generation() {
    let engine = start().await;
    assert_eq!(get(&engine, "/nothing").await.json(), json!({"detail": "Not Found"}));
    assert_eq!(get(&engine, "/v1/completions").await.status, StatusCode::METHOD_NOT_ALLOWED);
    for path in ["/health", "/ping"] {
        let reply = get(&engine, path).await;
        assert_eq!((reply.status, reply.body.len()), (StatusCode::OK, 0), "{path}");
    }
    assert_eq!(get(&engine, "/version").await.json(), json!({"version": "0.32.0"}));
    let models = get(&engine, "/v1/models").await.json();
    assert_eq!((&models["data"][0]["id"], &models["data"][0]["max_model_len"]), (&json!("m"), &json!(512)));
    assert_eq!((&models["data"][1]["id"], &models["data"][1]["parent"]), (&json!("ad1"), &json!("m")));

    let text = post(&engine, "/tokenize", json!({"model": "m", "prompt": "ab", "add_special_tokens": false}))
        .await
        .json();
    let expected = Encoder::tiny().unwrap().encode_text("ab", false).unwrap().tokens;
    assert_eq!(
        text,
        json!({"count": expected.len(), "max_model_len": 512, "tokens": expected, "token_strs": null})
    );
    let back = post(&engine, "/detokenize", json!({"model": "m", "tokens": expected})).await.json();
    assert_eq!(back, json!({"prompt": "ab"}));
    let messages = json!([{"role": "user", "content": "hello"}]);
    let chat = post(&engine, "/tokenize", json!({"messages": messages})).await.json();
    let body = json!({"messages": messages, "max_tokens": 1, "return_token_ids": true});
    let generated = post(&engine, "/v1/chat/completions", body).await.json();
    assert_eq!(chat["tokens"], generated["prompt_token_ids"], "a router may count on it");

    let sources = get(&engine, "/kv_event_sources").await.json();
    // With a wildcard, as an engine that binds writes it.
    let port = |endpoint: Option<&str>| endpoint.unwrap().rsplit(':').next().unwrap().to_owned();
    assert_eq!(sources["0"]["endpoint"], format!("tcp://*:{}", port(engine.events_endpoint())));
    assert_eq!(sources["0"]["replay_endpoint"], format!("tcp://*:{}", port(engine.replay_endpoint())));
    assert_eq!((&sources["0"]["topic"], &sources["0"]["buffer_steps"]), (&json!(""), &json!(10_000)));

    let embed = |format: &str| json!({"input": ["a", "b"], "encoding_format": format});
    let floats = post(&engine, "/v1/embeddings", embed("float")).await.json();
    assert_eq!(floats["data"][0]["embedding"].as_array().unwrap().len(), 16);
    assert_ne!(floats["data"][0]["embedding"], floats["data"][1]["embedding"]);
    assert_eq!(post(&engine, "/v1/embeddings", embed("float")).await.json()["data"], floats["data"]);
    assert!(
        post(&engine, "/v1/embeddings", embed("base64")).await.json()["data"][1]["embedding"].is_string()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_frees_its_blocks_and_keeps_the_cache_warm() {
    let settings = MockSettings { speedup: 10.0, max_num_seqs: 1, ..settings() };
    let engine = MockEngine::start(settings).await.unwrap();
    let body = json!({"prompt": tokens(1, 100), "max_tokens": 400, "stream": true}).to_string();
    let request =
        format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let mut streaming = tokio::net::TcpStream::connect(engine.http_addr()).await.unwrap();
    streaming.write_all(request.as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    while !seen.windows(6).any(|window| window == b"data: ") {
        assert!(streaming.read_buf(&mut seen).await.unwrap() > 0, "{}", String::from_utf8_lossy(&seen));
    }
    // One that does not stream waits behind it.
    let mut waiting = tokio::net::TcpStream::connect(engine.http_addr()).await.unwrap();
    waiting.write_all(request.replace("true", "null").as_bytes()).await.unwrap();
    eventually("one runs, one waits", || (engine.running(), engine.waiting()) == (1, 1)).await;
    drop(waiting);
    eventually("the waiting one leaves", || engine.waiting() == 0).await;
    assert_eq!(engine.running(), 1);
    drop(streaming);
    eventually("the running one leaves", || engine.running() == 0).await;
    assert_eq!(engine.used_blocks(), 0);
    assert!(engine.cached_blocks() >= 6);
    assert_eq!(complete(&engine, &tokens(1, 100)).await, 96);
}

#[tokio::test(flavor = "multi_thread")]
async fn injected_failures_hit_one_request_each() {
    let engine = start().await;
    let body = json!({"prompt": "a", "max_tokens": 30, "stream": true});
    engine.fail_next(StatusCode::SERVICE_UNAVAILABLE);
    let failed = post(&engine, "/v1/completions", body.clone()).await;
    assert_eq!(
        (failed.status, &failed.json()["error"]["code"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!(503))
    );
    assert_eq!(post(&engine, "/v1/completions", body.clone()).await.chunks().len(), 30);

    engine.cut_next(5);
    let request = Request::post(format!("http://{}/v1/completions", engine.http_addr()));
    let response = client().request(request.body(Full::from(body.to_string())).unwrap()).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(response.into_body().collect().await.is_err(), "a cut stream does not look complete");
    eventually("the cut request leaves", || engine.running() == 0).await;
    assert_eq!(post(&engine, "/v1/completions", body).await.chunks().len(), 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn outputs_end_early_where_the_model_would_say_so() {
    let settings = MockSettings { mean_output_tokens: Some(10), ..settings() };
    let engine = MockEngine::start(settings).await.unwrap();
    let ask = |extra: Value| {
        let mut body = json!({"prompt": "a", "max_tokens": 40});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    for (extra, reason, lengths) in [
        (json!({}), "stop", 5..=15),
        (json!({"ignore_eos": true}), "length", 40..=40),
        (json!({"min_tokens": 20}), "stop", 20..=20),
        (json!({"max_tokens": 2}), "length", 2..=2),
    ] {
        let reply = post(&engine, "/v1/completions", ask(extra.clone())).await.json();
        assert_eq!(reply["choices"][0]["finish_reason"], reason, "{extra}");
        assert!(lengths.contains(&reply["usage"]["completion_tokens"].as_u64().unwrap()), "{extra}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_passes_from_a_prefill_engine_to_a_decode_engine() {
    let engine = async |role| MockEngine::start(MockSettings { role, ..settings() }).await.unwrap();
    let (prefill, decode) = (engine(Role::Prefill).await, engine(Role::Decode).await);
    let asked =
        json!({"prompt": tokens(1, 50), "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": true}});
    let first = post(&prefill, "/v1/completions", asked.clone()).await.json();
    let params = first["kv_transfer_params"].clone();
    assert_eq!((&params["do_remote_prefill"], &params["remote_request_id"]), (&json!(true), &first["id"]));
    assert_eq!(params["remote_block_ids"].as_array().unwrap().len(), 4);

    let take =
        |prompt: Vec<u32>| json!({"prompt": prompt, "max_tokens": 20, "kv_transfer_params": params.clone()});
    let taken = post(&decode, "/v1/completions", take(tokens(1, 50))).await.json();
    assert_eq!(taken["usage"]["prompt_tokens_details"]["cached_tokens"], 49);
    assert_eq!(
        (&taken["kv_transfer_params"], &taken["usage"]["completion_tokens"]),
        (&json!(null), &json!(20))
    );
    assert_eq!(complete(&decode, &tokens(1, 50)).await, 0, "what was taken over is not reused");
    let other = post(&decode, "/v1/completions", take(tokens(1, 80))).await;
    assert_eq!(other.status, 400, "{:?}", other.body);

    // Without the question there is no answer, and an engine without a connector reads neither.
    let plain = post(&prefill, "/v1/completions", json!({"prompt": tokens(1, 50), "max_tokens": 1})).await;
    assert!(plain.json()["kv_transfer_params"].is_null());
    let aggregated = start().await;
    assert!(post(&aggregated, "/v1/completions", asked).await.json()["kv_transfer_params"].is_null());
    let computed = post(&aggregated, "/v1/completions", take(tokens(1, 50))).await.json();
    assert_eq!(computed["usage"]["prompt_tokens_details"]["cached_tokens"], 48, "its own cache");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_that_the_model_ends_hands_nothing_over() {
    let settings = MockSettings { role: Role::Prefill, mean_output_tokens: Some(1), ..settings() };
    let engine = MockEngine::start(settings).await.unwrap();
    let asked = json!({"prompt": "a", "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": true}});
    let answer = post(&engine, "/v1/completions", asked).await.json();
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert!(answer["kv_transfer_params"].is_null());
}
