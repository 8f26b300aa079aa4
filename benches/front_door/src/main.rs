//! A worker that answers every chat with the same words, faster than any router asks: a thread for each connection,
//! two system calls for each request.
//!
//! `kvroute-front-door PORT...` listens on the ports on 127.0.0.1 until it is killed. What is asked for piece by piece, which is a
//! body that begins with `{"stream":true`, is answered so, in eight events.

use std::{
    env,
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::ExitCode,
    sync::Arc,
    thread,
};

const ANSWER: &str = r#"{"id":"chatcmpl-0","object":"chat.completion","created":1700000000,"model":"bench","choices":[{"index":0,"message":{"role":"assistant","content":"Eight words are quite enough for an answer."},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":16,"completion_tokens":8,"total_tokens":24}}"#;
const MODELS: &str =
    r#"{"object":"list","data":[{"id":"bench","object":"model","created":1700000000,"owned_by":"bench"}]}"#;
const WORDS: [&str; 8] = ["Eight", " words", " are", " quite", " enough", " for", " an", " answer"];

/// The answers, ready to be written.
struct Answers {
    whole: Vec<u8>,
    streamed: Vec<u8>,
    models: Vec<u8>,
}

impl Answers {
    fn new() -> Self {
        let json = |body: &str| {
            let length = body.len();
            format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
            )
            .into_bytes()
        };
        let mut streamed =
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                .to_owned();
        let mut chunk = |event: &str| {
            let event = format!("data: {event}\n\n");
            streamed.push_str(&format!("{:x}\r\n{event}\r\n", event.len()));
        };
        for word in WORDS {
            chunk(&format!(
                r#"{{"id":"chatcmpl-0","object":"chat.completion.chunk","created":1700000000,"model":"bench","choices":[{{"index":0,"delta":{{"content":"{word}"}},"finish_reason":null}}]}}"#
            ));
        }
        chunk("[DONE]");
        streamed.push_str("0\r\n\r\n");
        Self { whole: json(ANSWER), streamed: streamed.into_bytes(), models: json(MODELS) }
    }

    fn to(&self, request: &Request<'_>) -> &[u8] {
        if !request.head.starts_with(b"POST") {
            &self.models
        } else if request.body_begins.starts_with(br#"{"stream":true"#) {
            &self.streamed
        } else {
            &self.whole
        }
    }
}

/// A request that has arrived.
struct Request<'b> {
    head: &'b [u8],
    /// As much of the body as there was room for.
    body_begins: &'b [u8],
}

fn main() -> ExitCode {
    let ports: Option<Vec<u16>> = env::args().skip(1).map(|port| port.parse().ok()).collect();
    let Some(ports) = ports.filter(|ports| !ports.is_empty()) else {
        eprintln!("kvroute-front-door PORT...: the ports to listen on");
        return ExitCode::FAILURE;
    };
    let answers = Arc::new(Answers::new());
    let mut listeners = Vec::new();
    for port in ports {
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(listener) => listeners.push(listener),
            Err(error) => {
                eprintln!("port {port}: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    let threads: Vec<_> = listeners
        .into_iter()
        .map(|listener| {
            let answers = Arc::clone(&answers);
            thread::spawn(move || listen(&listener, &answers))
        })
        .collect();
    for thread in threads {
        drop(thread.join());
    }
    ExitCode::SUCCESS
}

fn listen(listener: &TcpListener, answers: &Arc<Answers>) {
    for stream in listener.incoming().flatten() {
        let answers = Arc::clone(answers);
        // A router that goes away ends its connections, and with them the threads.
        thread::spawn(move || drop(serve(stream, &answers)));
    }
}

fn serve(mut stream: TcpStream, answers: &Answers) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 256 << 10];
    let mut filled = 0;
    loop {
        let head = loop {
            if let Some(at) = buffer[..filled].windows(4).position(|end| end == b"\r\n\r\n") {
                break at + 4;
            }
            filled += some(stream.read(&mut buffer[filled..])?)?;
        };
        let body = match length(&buffer[..head])? {
            Some(length) => {
                while filled < head + length {
                    let room = buffer.len();
                    if head + length > room {
                        buffer.resize(head + length, 0);
                    }
                    filled += some(stream.read(&mut buffer[filled..])?)?;
                }
                length
            }
            None => {
                while !buffer[head..filled].ends_with(b"0\r\n\r\n") {
                    if filled == buffer.len() {
                        buffer.resize(2 * filled, 0);
                    }
                    filled += some(stream.read(&mut buffer[filled..])?)?;
                }
                filled - head
            }
        };
        let begins = &buffer[head..head + body];
        // After the length of a first chunk, where there is one.
        let at = begins.iter().take(16).position(|&byte| byte == b'{').unwrap_or(0);
        let request = Request { head: &buffer[..head], body_begins: &begins[at..] };
        stream.write_all(answers.to(&request))?;
        buffer.copy_within(head + body..filled, 0);
        filled -= head + body;
    }
}

/// What was read, unless that is the end.
fn some(read: usize) -> io::Result<usize> {
    if read == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(read) }
}

/// The length of the body that a head announces; `None` for one that comes in chunks.
fn length(head: &[u8]) -> io::Result<Option<usize>> {
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    let value =
        |name: &str| head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim));
    if value("transfer-encoding").is_some_and(|coding| coding.ends_with("chunked")) {
        return Ok(None);
    }
    let length = value("content-length").unwrap_or("0");
    length.parse().map(Some).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "content-length"))
}
