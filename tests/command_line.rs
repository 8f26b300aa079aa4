//! The binary as people and supervisors meet it: what it prints, what it refuses, how it stops.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod process;
mod rig;

use std::{
    fs::File,
    io::{BufRead as _, BufReader},
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
};

use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::{
    process::{FREE_PORTS, Process, file, send_signal},
    rig::{Http, MODEL, TINY, chat, eventually, lasting_port, prose},
};

/// The last line of what `up` prints.
const WELCOMED: &str = "Ctrl-C stops everything.";

/// The URL in the line that begins with `name`.
fn url<'a>(welcome: &'a str, name: &str) -> &'a str {
    let line = welcome.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
    line.split_whitespace().find(|word| word.starts_with("http://")).unwrap()
}

/// A printed `curl -s URL ... -d 'BODY'`, in parts; the body is `Null` if there is none.
fn curl(line: &str) -> Option<(&str, Value)> {
    let rest = line.trim().strip_prefix("curl -s ")?;
    let url = rest.split_whitespace().next()?;
    let body = rest.split_once("-d '").map_or(Value::Null, |(_, body)| {
        serde_json::from_str(body.strip_suffix('\'').expect("a closing quote")).expect("JSON")
    });
    Some((url, body))
}

/// The mode that `kvroute frontend` with these arguments and variables routes by.
async fn mode_of(args: &[&str], environment: &[(&str, &str)]) -> Value {
    let args = [&["frontend", "--port", "0", "--admin-port", "0"], args].concat();
    let frontend = Process::start_with(&args, environment);
    frontend.logged("frontend is up").await["mode"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_up_prints_works_when_it_is_tried() {
    let up = Process::start(&["up", "--port", "0", "--admin-port", "0"]);
    let welcome = up.printed(WELCOMED).await;
    assert_eq!(welcome.matches("KV events tcp://").count(), 4, "{welcome}");
    let lines: Vec<_> = welcome.lines().filter_map(curl).collect();
    let [(chat, body), (explain, asked), (metrics, Value::Null)] = lines.as_slice() else {
        panic!("not a chat, a question and a page: {welcome}");
    };
    assert!(chat.starts_with(url(&welcome, "clients")) && explain.starts_with(url(&welcome, "admin")));
    let http = Http::new();

    let first = http.post(chat, body).await;
    assert_eq!((first.status.as_u16(), first.cached_tokens()), (200, 0), "{}", first.text);
    let full_blocks = (first.prompt_tokens() - 1) / 16;
    assert!(full_blocks >= 4, "too short a prompt to show anything: {full_blocks} blocks");
    eventually("explain knows of the cached blocks", async || {
        let choice = http.post(explain, asked).await.json["choice"].clone();
        choice["overlap_blocks"] == full_blocks && choice["worker_id"] == first.worker()
    })
    .await;

    let second = http.post(chat, body).await;
    assert_eq!(second.cached_tokens(), full_blocks * 16, "{}", second.text);
    assert_eq!(second.worker(), first.worker());
    let page = http.get(metrics).await;
    assert_eq!(rig::metric(&page.text, "kvroute_requests_total", "outcome=\"ok\""), 2.0);

    up.signal("INT");
    assert_eq!(up.end().code, Some(0));
}

/// Opens a stream of `tokens` tokens at 20 a second, and hands it over with its beginning read.
async fn open_stream(up: &Process, tokens: u32) -> (hyper::body::Incoming, String) {
    let welcome = up.printed(WELCOMED).await;
    let mut body = chat("short", "count");
    body["stream"] = json!(true);
    body["max_tokens"] = json!(tokens);
    let url = format!("{}/v1/chat/completions", url(&welcome, "clients"));
    let mut stream = Http::new().open(&url, &body).await.into_body();
    let first = stream.frame().await.unwrap().unwrap().into_data().unwrap();
    (stream, String::from_utf8_lossy(&first).into_owned())
}

const SLOW: [&str; 7] = ["up", "--port", "0", "--admin-port", "0", "--decode-tokens-per-second", "20"];

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_lets_an_open_stream_finish() {
    for signal in ["TERM", "INT"] {
        let up = Process::start(&SLOW);
        let (mut stream, mut text) = open_stream(&up, 20).await;
        up.signal(signal);
        up.logged("stopping: no new requests; a second signal does not wait for the open ones").await;
        assert!(!text.contains("[DONE]"), "over before the signal came");
        while let Some(frame) = stream.frame().await {
            text += &String::from_utf8_lossy(frame.unwrap().data_ref().unwrap());
        }
        assert!(text.trim_end().ends_with("data: [DONE]"), "{signal}: {text}");
        assert!(text.contains(r#""finish_reason":"length""#), "{signal}: {text}");
        let ended = up.end();
        assert_eq!(ended.code, Some(0), "{signal}: {}", ended.stderr);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_does_not_wait() {
    let up = Process::start(&SLOW);
    // Ten minutes, if anybody waited.
    let (mut stream, mut text) = open_stream(&up, 12_000).await;
    up.signal("TERM");
    up.logged("stopping: no new requests; a second signal does not wait for the open ones").await;
    up.signal("TERM");
    assert_eq!(up.end().code, Some(0));
    while let Some(Ok(frame)) = stream.frame().await {
        text += &String::from_utf8_lossy(frame.data_ref().unwrap());
    }
    assert!(!text.contains("[DONE]"), "a cut stream looks complete");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_a_start_that_waits_for_a_snapshot() {
    for signal in ["TERM", "INT"] {
        // It is connected to, and says nothing.
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = format!("http://{}", silent.local_addr().unwrap());
        let flags = ["frontend", "--port", "0", "--admin-port", "0", "--index-snapshot-from", &peer];
        let frontend = Process::start(&flags);
        let _asked = silent.accept().await.unwrap();
        frontend.signal(signal);
        let ended = tokio::task::spawn_blocking(move || frontend.end()).await.unwrap();
        assert_eq!(ended.code, Some(0), "{signal}: {}", ended.stderr);
        assert!(ended.stderr.contains("stopped before the frontend was up"), "{signal}: {}", ended.stderr);
        assert!(!ended.stderr.contains("no snapshot of the index"), "{signal}: {}", ended.stderr);
    }
}

#[test]
fn a_reader_that_goes_away_stops_nothing() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kvroute"))
        .args(["up", "--port", "0", "--admin-port", "0", "--engines", "1"])
        .env_clear()
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(log.any(|line| line.unwrap().contains("frontend is up")));
    // What it prints comes before it looks for signals, so it has printed into the closed pipe when it ends.
    send_signal(child.id(), "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Runs to the end and expects an error that says all of `parts`; all that it says.
fn refused(args: &[&str], parts: &[&str]) -> String {
    let ended = Process::run(args);
    assert!(matches!(ended.code, Some(1 | 2)), "{args:?} ended with {:?}: {}", ended.code, ended.stderr);
    for part in parts {
        assert!(ended.stderr.contains(part), "{args:?} does not say '{part}': {}", ended.stderr);
    }
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    ended.stderr
}

#[test]
fn a_taken_port_names_its_flag() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    refused(&["up", "--port", &port, "--admin-port", "0"], &[&port, "taken", "--port"]);
    refused(&["up", "--port", "0", "--admin-port", &port], &[&port, "taken", "--admin-port"]);
    refused(&["mock", "--http", &format!("127.0.0.1:{port}")], &[&port, "--http"]);
}

#[test]
fn a_mistake_on_the_command_line_is_named_with_what_is_accepted() {
    let worker = |text| ["frontend", "--worker", text];
    refused(&["frontend", "--tokenizer", "/none"], &["--tokenizer", "/none", "tokenizer.json", "directory"]);
    refused(&worker("http://a:1"), &["--worker", "http://a:1", "url=http://HOST:PORT,model=NAME"]);
    refused(&worker("url=http://a:1,model=m,prot=3"), &["--worker", "prot", "block_size"]);
    refused(&worker("url=a:1,model=m"), &["a:1", "http://HOST:PORT"]);
    let secret = "http://u:s3cret@a:1";
    for (args, parts) in [
        (&["frontend", "--worker", "url=http://u:s3cret@a:1,model=m"][..], ["url", "--worker-api-key-file"]),
        (&["frontend", "--worker", "url=http://u:s3cret@a:1,model=m,prot=3"], ["--worker", "prot"]),
        (&["frontend", "--index-snapshot-from", secret], ["--index-snapshot-from", "without a user"]),
        (&["worker", "vllm", "--frontend", secret], ["--frontend", "without a user"]),
        (&["worker", "vllm", "--engine-url", secret], ["--engine-url", "without a user"]),
        (&["doctor", "--engine-url", secret], ["url", "--worker-api-key-file"]),
        (&["config", "show", "--admin", secret], ["--admin", "http://HOST:PORT"]),
    ] {
        let said = refused(args, &parts);
        assert!(said.contains("//***@a:1") && !said.contains("s3cret"), "{args:?}: {said}");
    }
    let twice = ["frontend", "--worker", "url=http://a:1,model=m", "--worker", "url=http://a:1,model=m"];
    refused(&twice, &["http://a:1", "twice"]);
    refused(&["up", "--router-mode", "kvv"], &["--router-mode", "kvv", "round-robin"]);
    refused(&["up", "--router-temperature", "-1"], &["--router-temperature", "non-negative"]);
    refused(&["--log", "verbose", "up"], &["--log", "verbose", "debug"]);
    refused(&["up", "--portal", "1"], &["--portal"]);
    // An abbreviation would change its meaning with the next flag that begins alike.
    refused(&["up", "--admin-p", "0"], &["--admin-p"]);
    refused(&["frontend", "--admin-host", "0.0.0.0"], &["--admin-host", "--admin-token-file"]);
    refused(&["up", "--engine-speedup", "0"], &["--engine-speedup", "above 0"]);
    refused(&["up", "--block-size", "0"], &["--block-size"]);
}

/// A file that neither makes a configuration nor passes the check, both of which say why.
fn file_refused(text: &str, parts: &[&str]) {
    let file = file(text);
    let path = file.path().to_str().unwrap();
    refused(&["config", "show", "--config", path], parts);
    let ended = Process::run(&["config", "check", path]);
    assert_eq!(ended.code, Some(1), "{text}: {}", ended.stdout);
    for part in parts {
        assert!(ended.stdout.contains(part), "{text} does not say '{part}': {}", ended.stdout);
    }
}

/// A worker that keeps a frontend from starting.
fn worker_refused(worker: &str, parts: &[&str]) {
    refused(&["frontend", "--port", "0", "--admin-port", "0", "--worker", worker], parts);
}

#[test]
fn a_name_that_nobody_can_have_is_refused() {
    const ACCEPTED: &str = "1 to 256 bytes without control characters";
    let show = ["config", "show", "--tokenizer", "=/models/m"];
    refused(&show, &["--tokenizer", "'=/models/m'", "empty", ACCEPTED]);
    let model = |name: &str| format!("[[model]]\nname = \"{name}\"\ntokenizer = '/m'");
    file_refused(&model(""), &["[[model]]", "name = \"\"", "empty", ACCEPTED]);
    file_refused(&model("a\\u001b[31m"), &["[[model]]", "U+001B", ACCEPTED]);
    let worker = file("[[worker]]\nurl = 'http://a:1'\nmodel = \"a\\nb\"");
    let ended = Process::run(&["config", "check", worker.path().to_str().unwrap()]);
    assert!(ended.stdout.contains("model has the control character U+000A"), "{}", ended.stdout);
    worker_refused("url=http://a:1,model=a\u{1b}[31m", &["model", "U+001B", ACCEPTED]);
    refused(&[&["mock", "--model-name", ""], &FREE_PORTS[..]].concat(), &["--model-name", "empty", ACCEPTED]);
}

#[test]
fn a_number_that_can_never_work_is_refused() {
    refused(&["config", "show", "--max-body-bytes", "0"], &["--max-body-bytes 0", "1 or more"]);
    file_refused("[frontend]\nmax_body_bytes = 0", &["--max-body-bytes 0", "1 or more"]);
    refused(
        &["config", "show", "--decision-log", "d,sample=1,sample=0.5"],
        &["--decision-log", "sample is given twice", "FILE[,sample=SHARE]"],
    );
    worker_refused("url=http://a:1,model=m,max_model_len=0", &["max_model_len = 0", "1 or more"]);
}

#[test]
fn a_context_that_the_mock_engine_s_cache_does_not_hold_is_refused() {
    let sizes = ["--engine-cache-tokens", "1000", "--max-model-len", "2000"];
    let parts = ["2000", "--max-model-len", "--engine-cache-tokens"];
    refused(&[&["mock"], &FREE_PORTS[..], &sizes].concat(), &parts);
    refused(&[&["up", "--port", "0", "--admin-port", "0"], &sizes[..]].concat(), &parts);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_cache_has_a_context_that_fits_it() {
    let engine = Process::start(&[&["mock", "--engine-cache-tokens", "1000"], &FREE_PORTS[..]].concat());
    let at = engine.logged("mock engine is up").await;
    let models = Http::new().get(&format!("http://{}/v1/models", at["http"].as_str().unwrap())).await;
    assert_eq!(models.json["data"][0]["max_model_len"], 1008, "{}", models.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_replay_socket_listens_whatever_its_address_looks_like() {
    let port = lasting_port();
    let replay = format!("tcp://127.0.0.1:{port}");
    let args = [&["mock"], &FREE_PORTS[..4], &["--kv-replay-endpoint", &replay]].concat();
    let engine = Process::start(&args);
    assert_eq!(engine.logged("mock engine is up").await["replay"], replay);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_ok(), "nobody listens at {replay}");
    engine.signal("TERM");
    assert_eq!(engine.end().code, Some(0));
    // Where it cannot, it says so.
    let taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
    refused(&args, &[&replay, "--kv-replay-endpoint"]);
    drop(taken);
}

#[test]
fn a_page_that_cannot_be_printed_is_a_failure() {
    for args in [&["config", "show"][..], &["gpus"], &["config", "check", "/dev/null"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvroute"));
        command.args(args).env_clear().stderr(Stdio::piped());
        let full = File::options().write(true).open("/dev/full").unwrap();
        let ended = command.stdout(full).output().unwrap();
        let says = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{args:?}: {says}");
        assert!(says.contains("stdout"), "{args:?}: {says}");
        // A reader that went away is none.
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&ended.stderr));
    }
}

#[test]
fn a_file_that_cannot_be_written_is_found_out_before_the_work() {
    for flag in ["--json", "--svg"] {
        let args = ["simulate", "--workload", "burst", "--seconds", "20", "--engines", "2", "--seeds", "1"];
        let args = [&args[..], &[flag, "/nonexistent/x"]].concat();
        refused(&args, &[flag, "/nonexistent/x"]);
        assert_eq!(Process::run(&args).stdout, "", "{flag}: it was simulated all the same");
    }
}

#[test]
fn a_mistake_in_a_file_is_named_with_its_place() {
    let cases = [
        ("[frontend]\nport = 1\nrouter = 'kv'\n", "line 3", "router"),
        ("[frontend]\nport = 'eight'\n", "line 2", "eight"),
        ("[[worker]]\nurl = 'http://a:1'\n", "line 1", "model"),
        ("[router]\n\nrouter_temperature = 'hot'\n", "line 3", "hot"),
        ("[frontend\n", "line 1", ""),
    ];
    for (text, line, key) in cases {
        let file = file(text);
        let path = file.path().to_str().unwrap();
        refused(&["frontend", "--config", path], &[path, line, key]);
    }
    refused(&["frontend", "--config", "/none.toml"], &["/none.toml"]);
}

#[test]
fn a_trace_that_cannot_be_used_is_named_with_its_line() {
    refused(&["drive", "--trace", "/none.jsonl"], &["--trace", "/none.jsonl"]);
    let good = trace_line(0, &[1]);
    let broken = file(format!("{good}\n{good}\n{{\"timestamp\": 1}}\n"));
    let path = broken.path().to_str().unwrap();
    refused(&["drive", "--trace", path], &[path, "line 3", "input_length"]);
    let fine = file(&good);
    let path = fine.path().to_str().unwrap();
    refused(&["drive", "--trace", path, "--compare", "kv,kvv"], &["--compare", "kvv", "round-robin"]);
    refused(&["drive", "--trace", path, "--url", "localhost:1"], &["--url", "http://HOST:PORT"]);
    refused(&["drive", "--trace", path, "--url", "http://a", "--engines", "2"], &["--url", "--engines"]);
    refused(&["drive", "--trace", path, "--rate", "0"], &["--rate", "above 0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flag_wins_over_a_variable_and_a_variable_over_the_file() {
    let file = file("[router]\nrouter_mode = 'random'\n");
    let config = ["--config", file.path().to_str().unwrap()];
    let variable = [("DYN_ROUTER_MODE", "least-loaded")];
    assert_eq!(mode_of(&[], &[]).await, "round-robin");
    assert_eq!(mode_of(&config, &[]).await, "random");
    assert_eq!(mode_of(&config, &variable).await, "least-loaded");
    let flagged = [&config[..], &["--router-mode", "kv"]].concat();
    assert_eq!(mode_of(&flagged, &variable).await, "kv");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_setting_is_logged_with_where_it_came_from() {
    let file = file("[router]\nrouter_prefill_load_scale = 20\n");
    let path = file.path().to_str().unwrap();
    let args = ["frontend", "--port", "0", "--admin-port", "0", "--config", path];
    let args = [&args[..], &["--router-temperature", "0.5", "--kv-events"]].concat();
    let frontend = Process::start_with(&args, &[("DYN_ROUTER_MODE", "kv")]);
    frontend.logged("frontend is up").await;
    let warning = frontend.logged("--kv-events is an old name; use --router-kv-events").await;
    assert_eq!(warning["level"], "WARN");
    frontend.signal("TERM");
    let lines = frontend.end().stderr;
    let lines = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let fields = lines.map(|line| line["fields"].clone());
    let logged: Vec<_> = fields
        .filter(|fields| fields["message"] == "router setting")
        .map(|fields| ["setting", "value", "from"].map(|field| fields[field].as_str().unwrap().to_owned()))
        .collect();
    assert_eq!(
        logged,
        [
            ["router-mode", "kv", "DYN_ROUTER_MODE"],
            ["router-prefill-load-scale", "20.0", path],
            ["router-temperature", "0.5", "--router-temperature"],
            ["router-kv-events", "true", "--kv-events"],
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_variable_is_an_unset_one() {
    let empty = [("KVROUTE_MAX_BODY_BYTES", ""), ("DYN_ROUTER_MODE", ""), ("DYN_ROUTER_TEMPERATURE", "")];
    assert_eq!(mode_of(&[], &empty).await, "round-robin");
    let ended = Process::start_with(&["frontend"], &[("DYN_ROUTER_TEMPERATURE", "hot")]).end();
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("DYN_ROUTER_TEMPERATURE=hot: 'hot' is not a number"), "{}", ended.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_does_not_answer_is_said_once_and_the_frontend_starts() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let worker = format!("url=http://{closed},model=m");
    let frontend = Process::start(&[
        "frontend",
        "--port",
        "0",
        "--admin-port",
        "0",
        "--host",
        "127.0.0.1",
        "--worker",
        &worker,
    ]);
    let up = frontend.logged("frontend is up").await;
    let warning =
        frontend.logged("worker does not answer; requests that meet it go elsewhere until it does").await;
    assert_eq!(warning["level"], "WARN");
    assert_eq!(warning["url"], format!("http://{closed}/"));
    let health = format!("http://{}/health", up["public"].as_str().unwrap());
    assert_eq!(Http::new().get(&health).await.status, 200);
    frontend.signal("TERM");
    let ended = frontend.end();
    assert_eq!(
        (ended.code, ended.stderr.matches("does not answer").count()),
        (Some(0), 1),
        "{}",
        ended.stderr
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mock_engine_and_a_frontend_find_each_other_as_processes() {
    let any = "tcp://127.0.0.1:*";
    let engine = Process::start(&[
        "mock",
        "--http",
        "127.0.0.1:0",
        "--kv-events-endpoint",
        any,
        "--kv-replay-endpoint",
        any,
        "--engine-speedup",
        "50",
    ]);
    let at = engine.logged("mock engine is up").await;
    let part = |name: &str| at[name].as_str().unwrap().to_owned();
    let worker = format!(
        "url=http://{},model={MODEL},kv-events-endpoint={},kv-replay-endpoint={},block-size=16",
        part("http"),
        part("events"),
        part("replay")
    );
    let tokenizer = format!("{MODEL}={TINY}");
    let frontend = Process::start(&[
        "frontend",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--admin-port",
        "0",
        "--router-mode",
        "kv",
        "--tokenizer",
        &tokenizer,
        "--worker",
        &worker,
    ]);
    let up = frontend.logged("frontend is up").await;
    let url = |part: &str, path: &str| format!("http://{}{path}", up[part].as_str().unwrap());
    let http = Http::new();
    let body = chat(&prose(7, 60), "who is there?");
    let first = http.post(&url("public", "/v1/chat/completions"), &body).await;
    assert_eq!(first.status, 200, "{}", first.text);
    let full_blocks = (first.prompt_tokens() - 1) / 16;
    eventually("the frontend has heard of the blocks", async || {
        http.post(&url("admin", "/v1/route/explain"), &body).await.json["choice"]["overlap_blocks"]
            == full_blocks
    })
    .await;
    let second = http.post(&url("public", "/v1/chat/completions"), &body).await;
    assert_eq!(second.cached_tokens(), full_blocks * 16);
    for process in [frontend, engine] {
        process.signal("TERM");
        let ended = process.end();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(
            !ended.stderr.contains("\"WARN\"") && !ended.stderr.contains("\"ERROR\""),
            "{}",
            ended.stderr
        );
    }
}

fn trace_line(at_ms: u64, ids: &[u64]) -> String {
    json!({ "timestamp": at_ms, "input_length": ids.len() * 512, "output_length": 5, "hash_ids": ids })
        .to_string()
}

/// Twenty requests of five conversations, each with a prefix of its own.
fn small_trace() -> NamedTempFile {
    let lines: Vec<_> = (0..20).map(|n| trace_line(n * 1000, &[n % 5, 100 + n])).collect();
    file(lines.join("\n"))
}

#[tokio::test(flavor = "multi_thread")]
async fn drive_compares_modes_and_drives_a_frontend_that_runs() {
    let trace = small_trace();
    let path = trace.path().to_str().unwrap();
    let drive = ["drive", "--trace", path, "--rate", "50"];
    let own = ["--engine-speedup", "50", "--engines", "3", "--compare", "round-robin,kv"];
    let ended = Process::run(&[&drive[..], &own].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let row = |mode: &str| {
        let line = ended.stdout.lines().find(|line| line.starts_with(&format!("| {mode} | 20 | 0 |")));
        let cells: Vec<_> = line.expect(&ended.stdout).split('|').map(str::trim).collect();
        (cells[4].parse::<u64>().unwrap(), cells[5].parse::<u64>().unwrap())
    };
    let ((sent, spread), (again, kept)) = (row("round-robin"), row("kv"));
    assert_eq!((sent, again), (20 * 1024, 20 * 1024));
    // At best every conversation's prefix is computed once, and then found fifteen times.
    assert!(kept <= 15 * 512 && spread <= kept, "{}", ended.stdout);
    assert!(ended.stdout.contains("| mode | worker | requests | prompt tokens computed | share |"));
    assert!(ended.stdout.contains("times the cached tokens of round-robin."), "{}", ended.stdout);

    let up = Process::start(&["up", "--port", "0", "--admin-port", "0", "--engine-speedup", "50"]);
    let welcome = up.printed(WELCOMED).await;
    let ended = Process::run(&[&drive[..], &["--url", url(&welcome, "clients")]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("| given | 20 | 0 |"), "{}", ended.stdout);

    // Figures of nothing are no success.
    let ended = Process::run(&[&drive[..], &["--url", url(&welcome, "clients"), "--model", "nope"]].concat());
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stdout.contains("| given | 20 | 20 |"), "{}", ended.stdout);
    assert!(ended.stderr.contains("all 20 requests failed"), "{}", ended.stderr);
}

#[test]
fn help_names_every_command_and_ends_well() {
    let help = Process::run(&["--help"]);
    assert_eq!(help.code, Some(0));
    for command in ["frontend", "worker", "mock", "up", "drive"] {
        assert!(help.stdout.contains(&format!("\n  {command}")), "{}", help.stdout);
        assert_eq!(Process::run(&[command, "--help"]).code, Some(0));
    }
}
