//! TLS: certificates and keys out of files, towards clients and towards workers.
//!
//! An [`Identity`] is what one end shows of itself, a chain of certificates and the key to it. It is read again while it
//! is in use, and connections made from then on show the new one. [`server`] makes a listener's side of it; [`ClientTls`]
//! says whom we trust where we call others, and what we show them if they ask.
//!
//! TLS 1.2 and 1.3, by rustls with ring. Names of flags are not known here: an error names the file.

mod client;
mod error;
mod identity;

use std::sync::Arc;

use rustls::{ServerConfig, crypto::ring::default_provider};
use tokio_rustls::TlsAcceptor;

pub use client::ClientTls;
pub use error::TlsFileError;
pub use identity::Identity;

/// A listener's side: it shows `identity`, and speaks HTTP/2 with clients that can and HTTP/1.1 with others. Clients are
/// not asked who they are.
///
/// # Errors
/// The library refuses its own defaults, which it does not.
pub(crate) fn server(identity: Arc<Identity>) -> Result<TlsAcceptor, TlsFileError> {
    let file = identity.certificate().to_owned();
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsFileError::new(&file, error))?;
    let mut config = config.with_no_client_auth().with_cert_resolver(identity);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
