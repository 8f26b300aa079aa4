//! The worker: it does as each test says, byte for byte.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::Arc,
    thread,
};

use http::Uri;

pub(crate) const EVENT: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hé 漢\"}}]}\n\n";
pub(crate) const LAST: &str = concat!(
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":200,\"completion_tokens\":3,",
    "\"prompt_tokens_details\":{\"cached_tokens\":192}}}\n\n",
    "data: [DONE]\n\n",
);
pub(crate) const STREAM_HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

/// A connection to the worker, as the worker sees it.
pub(crate) struct Connection {
    /// 0 for the first connection, 1 for the next.
    pub(crate) number: usize,
    pub(crate) stream: BufReader<TcpStream>,
}

impl Connection {
    /// Reads a request; `None` once the other side has closed.
    pub(crate) fn request(&mut self) -> Option<(String, Vec<u8>)> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.stream.read_line(&mut head).unwrap_or(0) == 0 {
                return None;
            }
        }
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        self.stream.read_exact(&mut body).ok()?;
        Some((head, body))
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        // The other side may be gone, which is what some tests are about.
        let _ = self.stream.get_mut().write_all(bytes.as_ref());
    }

    pub(crate) fn chunk(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        self.send(format!("{:x}\r\n", bytes.len()));
        self.send(bytes);
        self.send("\r\n");
    }

    /// Waits until the other side closes.
    pub(crate) fn closed(&mut self) {
        while self.stream.read(&mut [0; 64]).is_ok_and(|read| read > 0) {}
    }
}

/// Starts a worker that runs `script` on a thread of its own for each connection.
pub(crate) fn worker(script: impl Fn(Connection) + Send + Sync + 'static) -> Uri {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let script = Arc::new(script);
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let script = Arc::clone(&script);
            let stream = stream.unwrap();
            stream.set_nodelay(true).unwrap();
            thread::spawn(move || script(Connection { number, stream: BufReader::new(stream) }));
        }
    });
    uri
}
