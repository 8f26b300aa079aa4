//! TLS at the listeners.

use std::{fs, io::ErrorKind, sync::Arc, time::Duration};

use http::StatusCode;
use kvroute::{frontend::FrontendSettings, tls::Identity};
use rustls::{ClientConfig, crypto::ring::default_provider, version};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use crate::{
    authority::{Authority, Https},
    rig,
    rig::{Rig, chat, eventually, pools::CHAT},
};

async fn secured(authority: &Authority) -> Rig {
    let tls = Some(authority.identity("front"));
    rig(1, |settings| FrontendSettings { tls, ..settings }).await
}

/// How many handshakes failed so.
async fn failed(rig: &Rig, reason: &str) -> f64 {
    let labels = format!("listener=\"public\",reason=\"{reason}\"");
    rig.metric("kvroute_tls_handshakes_failed_total", &labels).await
}

/// The certificate that a client is shown, in DER.
async fn shown(rig: &Rig, client: &Https) -> Vec<u8> {
    let stream = client.connect(rig.frontend.public_addr()).await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn both_versions_of_http_are_spoken_over_both_versions_of_tls() {
    let authority = Authority::new();
    let rig = secured(&authority).await;
    let at = rig.frontend.public_addr();
    for (offered, agreed) in
        [(&["h2", "http/1.1"][..], Some("h2")), (&["http/1.1"], Some("http/1.1")), (&[], None)]
    {
        let client = authority.client(offered);
        let stream = client.connect(at).await.unwrap();
        let name = stream.get_ref().1.alpn_protocol().map(|name| String::from_utf8_lossy(name).into_owned());
        assert_eq!(name.as_deref(), agreed);
        let answer = client.post(at, CHAT, &[], &chat("be brief", "hello")).await;
        assert_eq!(answer.status, 200, "{offered:?}: {}", answer.text);
    }
    for version in [&version::TLS12, &version::TLS13] {
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let config = config.with_protocol_versions(&[version]).unwrap();
        let config = config.with_root_certificates(authority.roots()).with_no_client_auth();
        let tcp = TcpStream::connect(at).await.unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        let stream = connector.connect("localhost".try_into().unwrap(), tcp).await.unwrap();
        assert_eq!(stream.get_ref().1.protocol_version(), Some(version.version));
    }
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_that_fails_is_counted_by_its_reason_and_holds_up_nobody() {
    let authority = Authority::new();
    let tls = Some(authority.identity("front"));
    let read_timeout = Duration::from_millis(500);
    let rig = rig(1, |settings| FrontendSettings { tls, read_timeout, ..settings }).await;
    let at = rig.frontend.public_addr();
    let mut silent = TcpStream::connect(at).await.unwrap();

    let stranger = Authority::new().client(&["h2"]);
    assert!(stranger.connect(at).await.is_err());
    eventually("the stranger is counted", async || failed(&rig, "rejected").await == 1.0).await;

    let mut plain = TcpStream::connect(at).await.unwrap();
    plain.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "nothing is said in the clear");
    eventually("plain HTTP is counted", async || failed(&rig, "not_tls").await == 1.0).await;

    drop(TcpStream::connect(at).await.unwrap());
    eventually("one that leaves is counted", async || failed(&rig, "broken").await == 1.0).await;

    let closed = silent.read(&mut [0; 1]).await;
    assert!(matches!(closed, Ok(0)) || closed.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
    eventually("silence is counted", async || failed(&rig, "timeout").await >= 1.0).await;
    let client = authority.client(&["http/1.1"]);
    assert_eq!(client.get(at, "/health").await.status, StatusCode::OK);
    eventually("no connection is left", async || {
        rig.metric("kvroute_connections", "listener=\"public\"").await == 0.0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_is_replaced_is_shown_and_one_that_cannot_be_used_is_not() {
    let authority = Authority::new();
    let rig = secured(&authority).await;
    let client = authority.client(&["http/1.1"]);
    let first = shown(&rig, &client).await;
    // Open since before, and served to its end.
    let mut kept = client.connect(rig.frontend.public_addr()).await.unwrap();

    let [certificate, key] = authority.issue("front");
    eventually("the second certificate is shown", async || shown(&rig, &client).await != first).await;
    let second = shown(&rig, &client).await;

    fs::write(&key, fs::read(authority.issue("another").last().unwrap()).unwrap()).unwrap();
    eventually("a key of another is found to be bad", async || {
        rig.metric("kvroute_file_reload_failing", "file=\"tls_cert\"").await == 1.0
    })
    .await;
    assert_eq!(shown(&rig, &client).await, second);

    fs::remove_file(&certificate).unwrap();
    rig.frontend.reload().await;
    assert_eq!(shown(&rig, &client).await, second);
    authority.issue("front");
    rig.frontend.reload().await;
    assert_ne!(shown(&rig, &client).await, second);
    assert_eq!(rig.metric("kvroute_file_reload_failing", "file=\"tls_cert\"").await, 0.0);

    kept.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    kept.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_listener_speaks_tls_too() {
    let authority = Authority::new();
    let [certificate, key] = authority.issue("admin");
    let admin_tls = Some(Arc::new(Identity::open(&certificate, &key).unwrap()));
    let rig = Rig::start_plan(
        crate::planned(Vec::new(), |settings| FrontendSettings { admin_tls, ..settings }),
        Vec::new(),
    )
    .await;
    let answer = authority.client(&["h2"]).get(rig.frontend.admin_addr(), "/metrics").await;
    assert!(answer.text.contains("kvroute_connections{listener=\"admin\"} 1"), "{}", answer.text);
    let plain = rig.client.get(&format!("{}/health", rig.public())).await;
    assert_eq!(plain.status, 200);
}
