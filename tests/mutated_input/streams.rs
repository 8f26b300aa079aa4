//! Answers of workers, as they come in pieces.

use std::{
    io::{self, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::Arc,
    thread,
};

use http::StatusCode;
use kvroute::{fleet::WorkerSpec, select::Mode};
use parking_lot::Mutex;
use serde_json::json;

use crate::{
    mutation::Inputs,
    rig::{MODEL, Rig, plan},
};

/// The body of the next answer, in the pieces that it is sent in.
type Next = Arc<Mutex<Vec<Vec<u8>>>>;

/// A worker that answers with whatever it is told.
fn parrot(next: Next) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let next = Arc::clone(&next);
            thread::spawn(move || drop(answer(stream, &next)));
        }
    });
    url
}

fn answer(mut stream: TcpStream, next: &Next) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut read = Vec::new();
    loop {
        // Every body that this test sends ends so, and nothing within it does.
        while !read.ends_with(b"\"end\":0}") {
            let mut piece = [0; 4096];
            match stream.read(&mut piece)? {
                0 => return Ok(()),
                length => read.extend_from_slice(&piece[..length]),
            }
        }
        read.clear();
        stream.write_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
        )?;
        for piece in std::mem::take(&mut *next.lock()) {
            stream.write_all(format!("{:x}\r\n", piece.len()).as_bytes())?;
            stream.write_all(&piece)?;
            stream.write_all(b"\r\n")?;
        }
        stream.write_all(b"0\r\n\r\n")?;
    }
}

fn corpus() -> Vec<Vec<u8>> {
    let event = |content: &str| {
        json!({ "id": "c", "object": "chat.completion.chunk", "model": MODEL, "created": 1,
            "choices": [{ "index": 0, "delta": { "content": content }, "finish_reason": null }] })
    };
    let usage = json!({ "id": "c", "choices": [], "usage": { "prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12,
        "prompt_tokens_details": { "cached_tokens": 4 } } });
    let stream = |line: &str, gap: &str| {
        let words = ["Größe", " 🦀🦀", " data: \\n\\n"].map(|word| format!("data: {}{gap}", event(word)));
        format!("{line}{}data: {usage}{gap}data: [DONE]{gap}", words.concat())
    };
    [
        stream("", "\n\n"),
        stream(": a comment\n\n", "\r\n\r\n"),
        stream("event: message\nid: 4\n", "\n\n").replace("data: {", "data:{"),
        stream("retry: 10\n\n: ping\n\n", "\n\n"),
        json!({ "choices": [], "usage": { "prompt_tokens": 1 } }).to_string(),
    ]
    .map(String::into_bytes)
    .to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_streams_pass_as_they_are_however_they_are_cut() {
    let next = Next::default();
    let rig = Rig::start_plan(
        plan(Mode::LeastLoaded, vec![WorkerSpec::new(&parrot(Arc::clone(&next)), MODEL)]),
        Vec::new(),
    )
    .await;
    let corpus = corpus();
    let body = json!({ "model": MODEL, "stream": true, "messages": [{ "role": "user", "content": "x" }] });
    let body = body.to_string().replacen('{', "{\"begin\":0,", 1);
    let body = format!("{},\"end\":0}}", body.strip_suffix('}').unwrap());
    let mut inputs = 0;
    for input in Inputs::of(&corpus) {
        let mut rng = fastrand::Rng::with_seed(input.bytes.len() as u64);
        let mut rest = input.bytes.as_slice();
        let mut pieces = Vec::new();
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rng.usize(1..=rest.len().min(60)));
            pieces.push(piece.to_vec());
            rest = after;
        }
        *next.lock() = pieces;
        let answer =
            rig.client.post_bytes(&format!("{}/v1/chat/completions", rig.public()), body.clone()).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        assert_eq!(answer.text, String::from_utf8_lossy(&input.bytes), "not what the worker sent");
        inputs += 1;
    }
    println!("{inputs} inputs");
    assert!(inputs > 0);
    rig.wait_for_idle().await;
}
