//! Requests that cannot be served, and what they are answered.

use fastrand::Rng;
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use crate::rig::{
    MODEL,
    pools::{CHAT, COMPLETIONS},
};

/// A request that nobody can serve.
pub(crate) struct Malformed {
    pub(crate) path: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) body: Vec<u8>,
    pub(crate) status: u16,
}

impl Malformed {
    pub(crate) fn any(rng: &mut Rng) -> Self {
        let chat =
            format!("{{\"model\":\"{MODEL}\",\"messages\":[{{\"role\":\"user\",\"content\":\"a\"}}]}}");
        let json =
            |status, path, body: String| Self { path, kind: "application/json", body: body.into(), status };
        match rng.u8(..9) {
            0 => json(400, CHAT, chat[..rng.usize(..chat.len())].to_owned()),
            1 => json(400, CHAT, chat.replace("\"model\"", "\"mode\"")),
            2 => json(404, CHAT, chat.replace(MODEL, "nobody")),
            3 => json(400, CHAT, chat.replace("[{", "{").replace("}]", "}")),
            4 => json(400, CHAT, chat.replace("\"messages\"", "\"max_tokens\":-1,\"messages\"")),
            5 => json(400, COMPLETIONS, format!("{{\"model\":\"{MODEL}\",\"prompt\":[4000000000]}}")),
            6 => Self { kind: "text/plain", ..json(415, "/v1/embeddings", chat) },
            7 => {
                let mut broken = json(400, CHAT, chat);
                let at = broken.body.len() - 6;
                broken.body[at] = 0xff;
                broken
            }
            _ => json(400, CHAT, "[".repeat(rng.usize(1..100_000))),
        }
    }
}

/// Sends half a body, and leaves.
pub(crate) async fn leave_halfway(address: &str, rng: &mut Rng) {
    let Ok(mut stream) = TcpStream::connect(address).await else { return };
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 5000\r\n\r\n"
    );
    let body = vec![b'{'; rng.usize(..4000)];
    let _ = stream.write_all(&[head.as_bytes(), &body].concat()).await;
}
