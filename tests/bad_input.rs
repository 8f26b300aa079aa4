//! Whatever a client sends gets the right status and an error that OpenAI's clients can read, says nothing of
//! the prompt, and leaves the next request unharmed.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod log_capture;
mod rig;

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::OnceLock,
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use kvroute::select::Mode;
use serde_json::{Value, json};

use crate::{
    log_capture::Log,
    rig::{Answer, Http, MODEL, Rig, chat, engine_settings, plan, prose, worker},
};

/// Stands wherever a prompt could stand by mistake.
const SECRET: &str = "dolphinsecret";

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

struct Case {
    name: &'static str,
    method: Method,
    path: &'static str,
    headers: Vec<(&'static str, &'static str)>,
    body: Vec<u8>,
    status: u16,
    /// What the message must name.
    names: &'static str,
    param: Option<&'static str>,
}

fn case(name: &'static str, path: &'static str, body: impl Into<Vec<u8>>, status: u16) -> Case {
    let headers = vec![("content-type", "application/json")];
    Case { name, method: Method::POST, path, headers, body: body.into(), status, names: "", param: None }
}

impl Case {
    fn names(self, names: &'static str) -> Self {
        Self { names, ..self }
    }

    fn param(self, param: &'static str) -> Self {
        Self { param: Some(param), names: param, ..self }
    }

    fn method(self, method: Method) -> Self {
        Self { method, ..self }
    }

    fn headers(self, headers: &[(&'static str, &'static str)]) -> Self {
        Self { headers: headers.to_vec(), ..self }
    }
}

fn good() -> String {
    chat("be brief", &format!("{SECRET}?")).to_string()
}

/// A chat with `fields` on top.
fn with(fields: &str) -> String {
    format!("{},{fields}}}", good().strip_suffix('}').unwrap())
}

fn text_with(fields: &str) -> String {
    format!(r#"{{"model":"{MODEL}","max_tokens":2,{fields}}}"#)
}

fn nested(depth: usize) -> String {
    "[".repeat(depth) + &"]".repeat(depth)
}

fn bodies() -> Vec<Case> {
    let open = good().strip_suffix('}').unwrap().to_owned();
    let no_model = format!(r#"{{"messages":[{{"role":"user","content":"{SECRET}"}}]}}"#);
    let no_prompt = format!(r#"{{"model":"{MODEL}"}}"#);
    let mut not_utf8 = good().into_bytes();
    let at = not_utf8.windows(SECRET.len()).position(|part| part == SECRET.as_bytes()).unwrap();
    not_utf8[at] = 0xff;
    vec![
        case("no body", CHAT, "", 400).names("empty"),
        case("malformed", CHAT, open, 400).names("JSON"),
        case("two values", CHAT, format!("{} {{}}", good()), 400).names("JSON"),
        case("a string for a body", CHAT, format!("\"{SECRET}\""), 400)
            .names("expected an object, found string"),
        case("a list for a body", CHAT, nested(10_000), 400).names("expected an object, found sequence"),
        case("null for a body", CHAT, "null", 400).names("object"),
        case("not UTF-8", CHAT, not_utf8, 400).names("UTF-8"),
        case("a raw NUL", CHAT, good().replace(SECRET, "\0"), 400).names("control character"),
        case("model a number", CHAT, with(r#""model":7"#), 400).param("model"),
        case("model missing", CHAT, no_model, 400).param("model"),
        case("model empty", CHAT, with(r#""model":"""#), 400).param("model"),
        case("model unknown", CHAT, with(r#""model":"llama""#), 404).param("model"),
        case("messages a string", CHAT, with(&format!(r#""messages":"{SECRET}""#)), 400).param("messages"),
        case("messages of strings", CHAT, with(&format!(r#""messages":["{SECRET}"]"#)), 400)
            .param("messages"),
        case("messages empty", CHAT, with(r#""messages":[]"#), 400).param("messages"),
        case("messages missing", CHAT, no_prompt.clone(), 400).param("messages"),
        case("messages nested", CHAT, with(&format!(r#""messages":{}"#, nested(10_000))), 400)
            .param("messages"),
        case("tools nested", CHAT, with(&format!(r#""tools":{}"#, nested(10_000))), 400).param("tools"),
        case("stream a string", CHAT, with(&format!(r#""stream":"yes {SECRET}""#)), 400).param("stream"),
        case("cache_salt a number", CHAT, with(r#""cache_salt":5"#), 400).param("cache_salt"),
        case("nvext a string", CHAT, with(&format!(r#""nvext":"{SECRET}""#)), 400).param("nvext"),
        case("nvext nested", CHAT, with(&format!(r#""nvext":{}"#, nested(10_000))), 400).param("nvext"),
        case("a pin in words", CHAT, with(&format!(r#""nvext":{{"decode_worker_id":"{SECRET}"}}"#)), 400)
            .param("nvext.decode_worker_id"),
        case(
            "a rank too large",
            CHAT,
            with(r#""nvext":{"backend_instance_id":1,"dp_rank":4294967296}"#),
            400,
        )
        .param("nvext.dp_rank"),
        case("prompt missing", TEXT, no_prompt, 400).param("prompt"),
        case("prompt an object", TEXT, text_with(&format!(r#""prompt":{{"{SECRET}":1}}"#)), 400)
            .param("prompt"),
        case("prompt mixed", TEXT, text_with(&format!(r#""prompt":[1,"{SECRET}"]"#)), 400).param("prompt"),
        case("prompt empty", TEXT, text_with(r#""prompt":"""#), 400).param("prompt"),
        case("prompt an empty list", TEXT, text_with(r#""prompt":[]"#), 400).param("prompt"),
        case("prompt an empty list of tokens", TEXT, text_with(r#""prompt":[[]]"#), 400).param("prompt"),
        case("a token too large", TEXT, text_with(r#""prompt":[4294967296]"#), 400).param("prompt"),
        case("embeddings without a model", "/v1/embeddings", r#"{"input":"x"}"#, 400).param("model"),
        case("embeddings of an unknown model", "/v1/embeddings", r#"{"model":"llama"}"#, 404).param("model"),
        // What only the engine can judge comes back as the engine's own error.
        case("a limit too large", CHAT, with(r#""max_tokens":1e999"#), 400),
        case("an unknown field nested", CHAT, with(&format!(r#""extra":{}"#, nested(10_000))), 400),
    ]
}

fn requests() -> Vec<Case> {
    vec![
        case("GET of a chat", CHAT, "", 405).method(Method::GET).names("POST"),
        case("PUT of a completion", TEXT, good(), 405).method(Method::PUT).names("POST"),
        case("DELETE of a model", "/v1/models/mock", "", 405).method(Method::DELETE).names("GET"),
        case("POST to health", "/health", good(), 405).names("GET"),
        case("an unknown path", "/metrics", "", 404).method(Method::GET).names("/metrics"),
        case("an unknown POST", "/generate", good(), 404).names("/generate"),
        case("a GET that no route has", "/v1/embeddings", "", 404)
            .method(Method::GET)
            .names("/v1/embeddings"),
        case("a model that is not UTF-8", "/v1/models/%ff", "", 400).method(Method::GET).names("UTF-8"),
        case("an unknown model's card", "/v1/models/llama", "", 404).method(Method::GET).param("model"),
        case("gzip", CHAT, b"\x1f\x8b\x08\x00\x00".to_vec(), 415)
            .headers(&[("content-type", "application/json"), ("content-encoding", "gzip")])
            .names("content-encoding"),
        case("a form for embeddings", "/v1/embeddings", good(), 415)
            .headers(&[("content-type", "multipart/form-data; boundary=x")])
            .names("application/json"),
    ]
}

/// Odd, and right.
fn accepted() -> Vec<Case> {
    vec![
        case("no content-type", CHAT, good(), 200).headers(&[]),
        case("another content-type", CHAT, good(), 200).headers(&[("content-type", "text/plain")]),
        case("an identity encoding", CHAT, good(), 200).headers(&[("content-encoding", "identity")]),
        case("an escaped NUL", CHAT, good().replace(SECRET, "a\\u0000b"), 200),
        case("nulls", CHAT, with(r#""stream":null,"nvext":null,"cache_salt":null,"tools":null"#), 200),
        case(
            "nulls in nvext",
            CHAT,
            with(r#""nvext":{"dp_rank":null,"extra_fields":null,"annotations":null,"cache_salt":null}"#),
            200,
        ),
        case("spaces", CHAT, format!(" \r\n\t{} \n", good()), 200),
        case(
            "a long list of unknown fields",
            CHAT,
            with(&(0..2000).map(|n| format!("\"x{n}\":{n}")).collect::<Vec<_>>().join(",")),
            200,
        ),
    ]
}

fn assert_shape(name: &str, answer: &Answer) {
    let error = &answer.json["error"];
    assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()), "{name}: {}", answer.text);
    assert!(error["type"].is_string(), "{name}: {}", answer.text);
    for key in ["param", "code"] {
        assert!(error.get(key).is_some(), "{name}: no {key}: {}", answer.text);
    }
    assert!(!answer.text.contains(SECRET), "{name}: {}", answer.text);
}

async fn run(rig: &Rig, base: &str, case: Case) {
    let Case { name, method, path, headers, body, status, names, param } = case;
    let mut request = Request::builder().method(method).uri(format!("{base}{path}"));
    for (header, value) in headers {
        request = request.header(header, value);
    }
    let answer = rig.client.send(request.body(Full::new(Bytes::from(body))).unwrap()).await;
    assert_eq!(answer.status.as_u16(), status, "{name}: {}", answer.text);
    if status >= 400 {
        assert_shape(name, &answer);
        let error = &answer.json["error"];
        assert!(error["message"].as_str().unwrap().contains(names), "{name}: {}", answer.text);
        if let Some(param) = param {
            assert_eq!(error["param"], param, "{name}");
        }
    }
    if status == 405 {
        assert!(answer.headers.contains_key("allow"), "{name}");
    }
    assert_works(rig, name).await;
}

async fn assert_works(rig: &Rig, after: &str) {
    let answer = rig.client.post_bytes(&format!("{}{CHAT}", rig.public()), good()).await;
    assert_eq!(answer.status, 200, "after {after}: {}", answer.text);
}

/// Everything this crate logs, in all tests of this file.
fn log() -> &'static Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    LOG.get_or_init(|| Log::start("kvroute=trace"))
}

fn assert_silent(log: &Log) {
    let text = log.text();
    assert!(text.contains("frontend is up"), "the log was not caught");
    assert!(!text.contains(SECRET), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_bad_request_is_told_what_is_wrong_and_the_next_one_is_served() {
    let log = log();
    let rig = Rig::start(Mode::Kv, 2).await;
    for case in bodies().into_iter().chain(requests()).chain(accepted()) {
        run(&rig, &rig.public(), case).await;
    }
    rig.wait_for_idle().await;
    assert!(rig.metric("kvroute_requests_total", "outcome=\"client_error\"").await > 20.0);
    assert_eq!(rig.metric("kvroute_requests_total", "outcome=\"server_error\"").await, 0.0);
    assert_silent(log);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_listener_answers_in_the_same_shape() {
    let rig = Rig::start(Mode::Kv, 1).await;
    for case in [
        case("an unknown path", "/v1/nothing", "", 404),
        case("POST to metrics", "/metrics", "", 405).names("allow"),
        case("PUT of a worker", "/v1/workers/1", "", 405).method(Method::PUT).names("allow"),
        case("a worker in words", "/v1/workers/one", "", 400).method(Method::GET).names("number"),
        case("a heartbeat in words", "/v1/workers/-1/heartbeat", "", 400).names("number"),
        case("an unknown worker", "/v1/workers/9", "", 404).method(Method::GET).names("9"),
        case("an empty registration", "/v1/workers", "", 400).names("empty"),
        case("a list registered", "/v1/workers", nested(10_000), 400).names("object"),
        case("an empty explain", "/v1/route/explain", "{}", 400).param("model"),
        case("30 MB of registration", "/v1/workers", vec![b' '; 30 << 20], 413).names("--max-body-bytes"),
        case("a chat without the annotation", CHAT, good(), 400).names("query_instance_id"),
    ] {
        run(&rig, &rig.admin(), case).await;
    }
}

/// 30 MB of a chat.
fn large() -> Vec<u8> {
    good().replace(SECRET, &"word ".repeat(6 << 20)).into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_beyond_the_limit_is_a_413_that_arrives() {
    let rig = Rig::start(Mode::Kv, 1).await;
    // More than once: an answer that a reset overtakes is lost only sometimes.
    for _ in 0..3 {
        run(&rig, &rig.public(), case("30 MB", CHAT, large(), 413).names("20971520")).await;
        for (path, status, names) in [
            ("/chat/completions", 404, "/v1/chat/completions"),
            ("/health", 405, "GET"),
            ("/v1/models", 405, "GET"),
        ] {
            run(&rig, &rig.public(), case("where nobody reads it", path, large(), status).names(names)).await;
        }
        run(&rig, &rig.admin(), case("where nobody reads it", "/generate", large(), 404)).await;
    }
    let head = |fields: &str| format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\n{fields}\r\n\r\n");
    let mut chunked = head("transfer-encoding: chunked\r\nconnection: close").into_bytes();
    for chunk in large().chunks(1 << 20) {
        chunked.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
        chunked.extend(chunk);
        chunked.extend(b"\r\n");
    }
    chunked.extend(b"0\r\n\r\n");
    assert_status(&exchange(&rig, &chunked), 413);
    assert_works(&rig, "30 MB in chunks").await;

    // A client that waits for a word is told before it sends anything.
    let waiting = head("content-length: 30000000\r\nexpect: 100-continue\r\nconnection: close");
    assert_status(&exchange(&rig, waiting.as_bytes()), 413);
    assert_works(&rig, "30 MB announced").await;
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_beyond_the_context_is_refused_here_if_known_and_by_the_engine_if_not() {
    let log = log();
    let tokens: Vec<u32> = (0..200_000).map(|token| 300 + token % 1000).collect();
    let words = format!("{SECRET} {}", prose(3, 100_000));
    let as_tokens = json!({ "model": MODEL, "prompt": tokens });
    let as_text = json!({ "model": MODEL, "prompt": words });
    let as_chat = chat("be brief", &words);

    let engine = kvroute::worker::mock::MockEngine::start(engine_settings()).await.unwrap();
    let spec = kvroute::fleet::WorkerSpec { max_model_len: Some(8192), ..worker(1, &engine) };
    let rig = Rig::assemble(plan(Mode::Kv, vec![spec]), vec![engine]).await;
    for (path, body, param) in
        [(TEXT, &as_tokens, "prompt"), (TEXT, &as_text, "prompt"), (CHAT, &as_chat, "messages")]
    {
        let answer = rig.post(path, body).await;
        assert_eq!(answer.status, 400, "{}", answer.text);
        assert_shape(path, &answer);
        let error = &answer.json["error"];
        assert_eq!((&error["code"], &error["param"]), (&json!("context_length_exceeded"), &json!(param)));
        assert!(error["message"].as_str().unwrap().contains("8192"), "{error}");
        assert_works(&rig, path).await;
    }
    let chosen = rig.metric("kvroute_worker_chosen_total", "").await;
    assert_eq!(chosen, 3.0, "a refused prompt reached the engine");

    let unknowing = Rig::start(Mode::Kv, 1).await;
    for (path, body) in [(TEXT, &as_tokens), (TEXT, &as_text), (CHAT, &as_chat)] {
        let relayed = unknowing.post(path, body).await;
        let engine = format!("http://{}{path}", unknowing.engines[0].http_addr());
        let direct = unknowing.client.post(&engine, body).await;
        assert_eq!((relayed.status, &relayed.text), (direct.status, &direct.text));
        assert_eq!(relayed.status, 400);
        assert_shape(path, &relayed);
        assert_works(&unknowing, path).await;
    }
    unknowing.wait_for_idle().await;
    assert_silent(log);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_what_a_client_sent_no_more_is_quoted_than_a_person_reads() {
    let rig = Rig::start(Mode::Kv, 1).await;
    let name = "é".repeat(1 << 20);
    let body = json!({ "model": name, "prompt": "x" });
    let thresholds = json!({ "model": MODEL, name.as_str(): 1 });
    let path = format!("/v1/models/{}", "x".repeat(20_000));
    let (public, admin) = (rig.public(), rig.admin());
    let post = async |url: String, body: &Value| rig.client.post(&url, body).await;
    let get = async |url: String| rig.client.get(&url).await;
    for (what, status, answer) in [
        ("a completion", 404, post(format!("{public}{TEXT}"), &body).await),
        ("an embedding", 404, post(format!("{public}/v1/embeddings"), &body).await),
        ("explain", 404, post(format!("{admin}/v1/route/explain"), &body).await),
        ("a model of a threshold", 404, post(format!("{admin}/busy_threshold"), &body_of(&name)).await),
        ("a threshold", 400, post(format!("{admin}/busy_threshold"), &thresholds).await),
        ("a registration", 400, post(format!("{admin}/v1/workers"), &thresholds).await),
        ("a model's card", 404, get(format!("{public}{path}")).await),
        ("a path", 404, get(format!("{public}/{}", "x".repeat(20_000))).await),
        ("an admin path", 404, get(format!("{admin}/{}", "x".repeat(20_000))).await),
        ("a method", 405, post(format!("{public}{path}"), &body).await),
    ] {
        let text = &answer.text[..answer.text.len().min(300)];
        assert_eq!(answer.status.as_u16(), status, "{what}: {text}");
        assert!(answer.text.len() < 6000, "{what}: {} bytes: {text}", answer.text.len());
        assert_shape(what, &answer);
        let message = answer.json["error"]["message"].as_str().unwrap();
        assert!(message.contains("... (") && message.contains(" bytes in all)"), "{what}: {text}");
    }
    assert_works(&rig, "a long name").await;
}

fn body_of(model: &str) -> Value {
    json!({ "model": model })
}

/// Of a field given twice the last counts: for the router as for the engines, whose parsers keep the last.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_field_given_twice_the_last_counts() {
    let rig = Rig::start(Mode::Kv, 1).await;
    let twice = format!(r#"{{"model":"{MODEL}",{}"#, &with(r#""model":"llama""#)[1..]);
    let answer = rig.client.post_bytes(&format!("{}{CHAT}", rig.public()), twice).await;
    assert_eq!(answer.status, 404, "{}", answer.text);
    let explain = format!("{}/v1/route/explain", rig.admin());
    let twice = format!(r#"{{"model":"llama","prompt":[1],{}"#, &text_with(r#""prompt":[1,2,3]"#)[1..]);
    let answer = rig.client.post_bytes(&explain, twice).await;
    assert_eq!(answer.json["prompt_tokens"], 3, "{}", answer.text);
    assert_works(&rig, "a field given twice").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn old_and_new_http_is_spoken() {
    let rig = Rig::start(Mode::Kv, 1).await;
    let body = good();
    let length = body.len();

    // HTTP/1.0 closes, unless asked not to.
    let closing = format!("POST {CHAT} HTTP/1.0\r\ncontent-length: {length}\r\n\r\n{body}");
    let answer = exchange(&rig, closing.as_bytes());
    assert_status(&answer, 200);
    assert!(answer.starts_with("HTTP/1.0 ") && !answer.contains("transfer-encoding"), "{answer}");
    assert_works(&rig, "HTTP/1.0").await;

    let keeping =
        format!("POST {CHAT} HTTP/1.0\r\nconnection: keep-alive\r\ncontent-length: {length}\r\n\r\n{body}");
    let mut connection = BufReader::new(connect(rig.frontend.public_addr()));
    for _ in 0..2 {
        connection.get_mut().write_all(keeping.as_bytes()).unwrap();
        let (head, answer) = tokio::task::block_in_place(|| read_answer(&mut connection));
        assert!(head.contains(" 200 ") && head.contains("connection: keep-alive"), "{head}");
        assert!(serde_json::from_slice::<Value>(&answer).unwrap()["choices"].is_array());
    }
    let bad = "POST /v1/chat/completions HTTP/1.0\r\ncontent-length: 2\r\n\r\n[]";
    assert_status(&exchange(&rig, bad.as_bytes()), 400);
    assert_works(&rig, "HTTP/1.0 with keep-alive").await;

    // A streamed answer to HTTP/1.0 has no chunks: it ends with the connection.
    let body = with(r#""stream":true"#);
    let streaming = format!("POST {CHAT} HTTP/1.0\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let answer = exchange(&rig, streaming.as_bytes());
    assert!(answer.ends_with("data: [DONE]\n\n") && !answer.contains("transfer-encoding"), "{answer}");

    let body = good();
    let chunked = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n\
         5\r\n{}\r\n{:x}\r\n{}\r\n0\r\n\r\n",
        &body[..5],
        length - 5,
        &body[5..]
    );
    assert_status(&exchange(&rig, chunked.as_bytes()), 200);

    let expecting = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    let mut connection = BufReader::new(connect(rig.frontend.public_addr()));
    connection.get_mut().write_all(expecting.as_bytes()).unwrap();
    let answer = tokio::task::block_in_place(|| {
        let mut word = String::new();
        connection.read_line(&mut word).unwrap();
        assert!(word.starts_with("HTTP/1.1 100"), "{word}");
        connection.read_line(&mut word).unwrap();
        connection.get_mut().write_all(body.as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answer
    });
    assert_status(&answer, 200);
    assert_works(&rig, "100-continue").await;

    let http2 = Http::over_http2();
    let url = format!("{}{CHAT}", rig.public());
    assert_eq!(http2.post_bytes(&url, good()).await.status, 200);
    let refused = http2.post_bytes(&url, "[]").await;
    assert_eq!(refused.status, 400);
    assert_shape("HTTP/2", &refused);
    let large = http2.post_bytes(&url, large()).await;
    assert_eq!(large.status, 413);
    assert_eq!(http2.post_bytes(&url, good()).await.status, 200);

    // What is no HTTP at all is hung up on.
    let answer = exchange(&rig, b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1 what is this\r\n\r\n");
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert_works(&rig, "what is no HTTP").await;
    rig.wait_for_idle().await;
}

fn connect(address: SocketAddr) -> TcpStream {
    let connection = TcpStream::connect(address).unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    connection
}

/// Sends bytes and reads until the other side closes.
fn exchange(rig: &Rig, bytes: &[u8]) -> String {
    let mut connection = connect(rig.frontend.public_addr());
    tokio::task::block_in_place(|| {
        connection.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        connection.read_to_end(&mut answer).unwrap();
        String::from_utf8(answer).unwrap()
    })
}

fn read_answer(connection: &mut BufReader<TcpStream>) -> (String, Vec<u8>) {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(connection.read_line(&mut head).unwrap() > 0, "closed after {head:?}");
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    connection.read_exact(&mut body).unwrap();
    (head, body)
}

fn assert_status(answer: &str, status: u16) {
    let line = answer.lines().next().unwrap_or_default();
    assert!(line.contains(&format!(" {status} ")), "expected {status}: {answer}");
    if status >= 400 {
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        let body = body.find('{').map_or(body, |at| &body[at..=body.rfind('}').unwrap()]);
        let error: Value = serde_json::from_str(body).unwrap();
        assert!(error["error"]["message"].is_string(), "{answer}");
    }
}
