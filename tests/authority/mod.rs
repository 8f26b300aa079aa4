//! Certificates of an authority of the scenario's own, and a client that speaks TLS.

#![allow(dead_code, reason = "each test file that includes this uses its part of it")]

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kvroute::tls::Identity;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::{ClientConfig, RootCertStore, crypto::ring::default_provider, pki_types::ServerName};
use serde_json::Value;
use tempfile::{TempDir, tempdir};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::rig::Answer;

/// An authority with a folder for what it issues.
pub(crate) struct Authority {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
    der: rustls::pki_types::CertificateDer<'static>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, format!("authority {}", fastrand::u32(..)));
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let folder = tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), certificate.pem()).unwrap();
        Self { folder, der: certificate.der().clone(), issuer: Issuer::new(params, key) }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The file with its certificate.
    pub(crate) fn ca(&self) -> PathBuf {
        self.path("ca.pem")
    }

    /// Writes `NAME.crt` and `NAME.key`, for this machine and the common name `NAME`.
    pub(crate) fn issue(&self, name: &str) -> [PathBuf; 2] {
        self.issue_for(name, name)
    }

    /// The same, by another common name than that of the files.
    pub(crate) fn issue_for(&self, name: &str, common_name: &str) -> [PathBuf; 2] {
        let mut params = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, common_name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let files = ["crt", "key"].map(|end| self.path(&format!("{name}.{end}")));
        std::fs::write(&files[0], certificate.pem()).unwrap();
        std::fs::write(&files[1], key.serialize_pem()).unwrap();
        files
    }

    /// A new pair, read.
    pub(crate) fn identity(&self, name: &str) -> Arc<Identity> {
        let [certificate, key] = self.issue(name);
        Arc::new(Identity::open(&certificate, &key).unwrap())
    }

    /// A store with its certificate alone.
    pub(crate) fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.der.clone()).unwrap();
        roots
    }

    /// A client that trusts it and offers these protocols.
    pub(crate) fn client(&self, alpn: &[&str]) -> Https {
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap();
        let mut config = config.with_root_certificates(self.roots()).with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Https(TlsConnector::from(Arc::new(config)))
    }
}

/// A client with a connection for each request.
pub(crate) struct Https(TlsConnector);

impl Https {
    /// Shakes hands with whoever listens there, as `localhost`.
    pub(crate) async fn connect(&self, address: SocketAddr) -> std::io::Result<TlsStream<TcpStream>> {
        let tcp = TcpStream::connect(address).await?;
        self.0.connect(ServerName::try_from("localhost").unwrap(), tcp).await
    }

    /// Sends a request for a path by the protocol that was agreed on.
    pub(crate) async fn send(&self, address: SocketAddr, request: Request<Full<Bytes>>) -> Answer {
        let stream = self.connect(address).await.unwrap();
        let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let io = TokioIo::new(stream);
        let response = if http2 {
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
            tokio::spawn(connection);
            sender.send_request(request).await.unwrap()
        } else {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
            tokio::spawn(connection);
            sender.send_request(request).await.unwrap()
        };
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let json = serde_json::from_str(&text).unwrap_or(Value::Null);
        Answer { status: head.status, headers: head.headers, text, json }
    }

    /// Posts a body to a path.
    pub(crate) async fn post(
        &self,
        address: SocketAddr,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Answer {
        let mut request = Request::post(format!("https://localhost{path}")).header("host", "localhost");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.header("content-type", "application/json");
        self.send(address, request.body(Full::new(Bytes::from(body.to_string()))).unwrap()).await
    }

    pub(crate) async fn get(&self, address: SocketAddr, path: &str) -> Answer {
        let request = Request::get(format!("https://localhost{path}")).header("host", "localhost");
        self.send(address, request.body(Full::default()).unwrap()).await
    }
}
