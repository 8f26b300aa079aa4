//! Workers behind https, and those that want to know who calls.

use std::{fs, io::ErrorKind, net::SocketAddr, sync::Arc, time::Duration};

use kvroute::{
    fleet::WorkerSpec,
    frontend::FrontendSettings,
    proxy::PoolSettings,
    tls::{ClientTls, Identity},
    worker::mock::MockEngine,
};
use parking_lot::Mutex;
use rustls::{
    ServerConfig,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::AbortHandle,
};
use tokio_rustls::TlsAcceptor;

use crate::{
    authority::Authority,
    planned,
    rig::{Rig, chat, credit, engine_settings, eventually, pools::CHAT, stream_of, worker},
};

/// A mock engine behind TLS.
struct Terminated {
    engine: MockEngine,
    address: SocketAddr,
    /// The certificates that callers showed.
    callers: Arc<Mutex<Vec<Vec<u8>>>>,
    /// Of connections that are over, whether they were closed rather than cut off.
    closed: Arc<Mutex<Vec<bool>>>,
    server: AbortHandle,
}

impl Terminated {
    /// Shows a certificate of `authority`, and wants one of `asks`, if it asks.
    async fn start(authority: &Authority, asks: Option<&Authority>) -> Self {
        let engine = MockEngine::start(engine_settings()).await.unwrap();
        let provider = Arc::new(default_provider());
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = match asks {
            Some(asks) => config.with_client_cert_verifier(
                WebPkiClientVerifier::builder_with_provider(Arc::new(asks.roots()), provider)
                    .build()
                    .unwrap(),
            ),
            None => config.with_no_client_auth(),
        };
        let [certificate, key] = authority.issue("worker");
        let chain = vec![CertificateDer::from_pem_file(certificate).unwrap()];
        let config = config.with_single_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap()).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let callers = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let closed = Arc::<Mutex<Vec<bool>>>::default();
        let (behind, seen, ends) = (engine.http_addr(), Arc::clone(&callers), Arc::clone(&closed));
        let server = tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let (acceptor, seen, ends) = (acceptor.clone(), Arc::clone(&seen), Arc::clone(&ends));
                tokio::spawn(async move {
                    let Ok(mut tls) = acceptor.accept(tcp).await else { return };
                    if let Some([first, ..]) = tls.get_ref().1.peer_certificates() {
                        seen.lock().push(first.to_vec());
                    }
                    let mut plain = TcpStream::connect(behind).await.unwrap();
                    let copied = tokio::io::copy_bidirectional(&mut tls, &mut plain).await;
                    ends.lock().push(!copied.is_err_and(|error| error.kind() == ErrorKind::UnexpectedEof));
                });
            }
        });
        Self { engine, address, callers, closed, server: server.abort_handle() }
    }

    fn worker(&self, id: u64) -> WorkerSpec {
        WorkerSpec { url: format!("https://localhost:{}", self.address.port()), ..worker(id, &self.engine) }
    }
}

impl Drop for Terminated {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn behind(workers: Vec<WorkerSpec>, tls: ClientTls) -> Rig {
    // Unused connections go soon, so that new ones are made; and what one worker says is what the client hears.
    let keep_alive = Duration::from_millis(50);
    let upstream = PoolSettings { tls, keep_alive, ..PoolSettings::default() };
    let retries = u32::from(workers.len() > 1);
    let plan = planned(workers, |settings| FrontendSettings { upstream, retries, ..settings });
    Rig::start_plan(plan, Vec::new()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_is_reached_over_https_and_its_events_as_ever() {
    let authority = Authority::new();
    let worker = Terminated::start(&authority, None).await;
    let rig = behind(vec![worker.worker(1)], ClientTls::new(Some(&authority.ca()), None).unwrap()).await;
    rig.wait_for_streams("live").await;
    let body = chat(&"Answer in a few words. ".repeat(20), "hello");
    let first = rig.post(CHAT, &body).await;
    assert_eq!(first.status, 200, "{}", first.text);
    eventually("its events are followed", async || credit(&rig.explain(&body).await, 1) > 0).await;
    assert!(rig.post(CHAT, &body).await.cached_tokens() > 0);
    let streamed = rig.post("/v1/completions", &stream_of("once upon a time", 8)).await;
    assert!(streamed.text.ends_with("data: [DONE]\n\n"), "{}", streamed.text);
    rig.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_nobody_needs_any_more_are_closed_and_not_cut_off() {
    let authority = Authority::new();
    let worker = Terminated::start(&authority, None).await;
    let rig = behind(vec![worker.worker(1)], ClientTls::new(Some(&authority.ca()), None).unwrap()).await;
    assert_eq!(rig.post(CHAT, &chat("a", "b")).await.status, 200);
    eventually("the kept connections are over", async || !worker.closed.lock().is_empty()).await;
    assert_eq!(rig.post(CHAT, &chat("a", "b")).await.status, 200);
    // Those that are kept when the router goes, too.
    let Rig { frontend, .. } = rig;
    assert!(frontend.stop().await);
    eventually("all connections are over", async || worker.closed.lock().len() > 1).await;
    assert!(!worker.closed.lock().contains(&false));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_nobody_vouches_for_gets_nothing_and_the_next_one_is_tried() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let trusted = ClientTls::new(Some(&authority.ca()), None).unwrap();
    let imposter = Terminated::start(&stranger, None).await;
    let alone = behind(vec![imposter.worker(1)], trusted.clone()).await;
    let answer = alone.post(CHAT, &chat("a", "b")).await;
    assert_eq!(answer.status, 502, "{}", answer.text);
    assert_eq!(answer.json["error"]["code"], "worker_tls_failed");
    assert!(!answer.text.contains(&imposter.address.port().to_string()), "{}", answer.text);
    assert_eq!(imposter.engine.running() + imposter.engine.waiting(), 0);

    let plain = MockEngine::start(engine_settings()).await.unwrap();
    let https_to_plain = WorkerSpec { url: format!("https://{}", plain.http_addr()), ..worker(1, &plain) };
    let answer = behind(vec![https_to_plain], trusted.clone()).await.post(CHAT, &chat("a", "b")).await;
    assert_eq!(answer.json["error"]["code"], "worker_tls_failed", "{}", answer.text);

    let known = Terminated::start(&authority, None).await;
    let both = behind(vec![imposter.worker(1), known.worker(2)], trusted).await;
    for _ in 0..4 {
        assert_eq!(both.post(CHAT, &chat("a", "b")).await.status, 200);
    }
    both.wait_for_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_asks_is_shown_the_certificate_of_the_moment() {
    let (authority, of_routers) = (Authority::new(), Authority::new());
    let worker = Terminated::start(&authority, Some(&of_routers)).await;
    let nobody = behind(vec![worker.worker(1)], ClientTls::new(Some(&authority.ca()), None).unwrap()).await;
    // TLS 1.3 tells a client of this only after its request.
    let refused = nobody.post(CHAT, &chat("a", "b")).await;
    assert_eq!(refused.status, 502, "{}", refused.text);

    let [certificate, key] = of_routers.issue("router");
    let shown = |path| CertificateDer::from_pem_file(path).unwrap().to_vec();
    let first = shown(&certificate);
    let identity = Arc::new(Identity::open(&certificate, &key).unwrap());
    let known = ClientTls::new(Some(&authority.ca()), Some(identity)).unwrap();
    let rig = behind(vec![worker.worker(1)], known).await;
    assert_eq!(rig.post(CHAT, &chat("a", "b")).await.status, 200);
    assert!(worker.callers.lock().contains(&first));

    let [next, next_key] = of_routers.issue("next");
    let second = shown(&next);
    fs::copy(&next, &certificate).unwrap();
    fs::copy(&next_key, &key).unwrap();
    rig.frontend.reload().await;
    // Connections that are kept were made before, and go on.
    eventually("a new connection shows the new certificate", async || {
        tokio::time::sleep(Duration::from_millis(200)).await;
        rig.post(CHAT, &chat("a", "b")).await.status == 200 && worker.callers.lock().contains(&second)
    })
    .await;
}
