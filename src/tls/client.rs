//! Whom we trust where we call others.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use rustls::{ClientConfig, RootCertStore, client::Resumption, crypto::ring::default_provider};
use tracing::{debug, warn};

use super::{
    error::TlsFileError,
    identity::{Identity, certificates},
};

/// How servers prove who they are, and what is shown to those that ask for a certificate. Clones share what is kept of
/// sessions. By default the certificates count that the system trusts (`SSL_CERT_FILE` and `SSL_CERT_DIR` name others),
/// which are read when they are first needed, and nothing is shown.
#[derive(Clone, Default)]
pub struct ClientTls(Arc<Parts>);

#[derive(Default)]
struct Parts {
    /// The authorities that count; the system's if there are none.
    authorities: Option<(PathBuf, RootCertStore)>,
    identity: Option<Arc<Identity>>,
    config: OnceLock<Option<Arc<ClientConfig>>>,
}

impl ClientTls {
    /// Trusts the authorities in the file `ca` alone, or the system's if there is none, and shows `identity` if there is
    /// one.
    ///
    /// # Errors
    /// The file cannot be read, or has no certificate of an authority.
    pub fn new(ca: Option<&Path>, identity: Option<Arc<Identity>>) -> Result<Self, TlsFileError> {
        let authorities =
            ca.map(|path| authorities(path).map(|roots| (path.to_owned(), roots))).transpose()?;
        Ok(Self(Arc::new(Parts { authorities, identity, config: OnceLock::new() })))
    }

    /// The file of the authorities.
    #[must_use]
    pub fn ca(&self) -> Option<&Path> {
        self.0.authorities.as_ref().map(|(path, _)| &**path)
    }

    /// What is shown.
    #[must_use]
    pub fn identity(&self) -> Option<&Arc<Identity>> {
        self.0.identity.as_ref()
    }

    /// The library's form; `None` if it refuses its own defaults.
    pub(crate) fn config(&self) -> Option<Arc<ClientConfig>> {
        self.0.config.get_or_init(|| self.0.build()).clone()
    }
}

impl Parts {
    fn build(&self) -> Option<Arc<ClientConfig>> {
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let config = config.with_safe_default_protocol_versions().ok()?;
        let config = config.with_root_certificates(match &self.authorities {
            Some((_, roots)) => roots.clone(),
            None => of_the_system(),
        });
        let mut config = match &self.identity {
            Some(identity) => config.with_client_cert_resolver(Arc::<Identity>::clone(identity)),
            None => config.with_no_client_auth(),
        };
        if self.identity.is_some() {
            // A session that is resumed goes on under the certificate that it began with, however old that has become.
            config.resumption = Resumption::disabled();
        }
        // Requests are cancelled by closing the connection, which HTTP/2 would share with others.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Some(Arc::new(config))
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls").field("ca", &self.ca()).field("identity", &self.identity()).finish()
    }
}

fn authorities(path: &Path) -> Result<RootCertStore, TlsFileError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        let added = roots.add(certificate);
        added.map_err(|error| {
            TlsFileError::new(path, format_args!("not a certificate of an authority: {error}"))
        })?;
    }
    Ok(roots)
}

fn of_the_system() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (taken, left) = roots.add_parsable_certificates(found.certs);
    debug!(taken, left, "authorities that the system trusts");
    if taken == 0 {
        let problem = found.errors.first().map_or_else(String::new, |error| format!(": {error}"));
        warn!(
            "the system trusts no authority{problem}; no server can be reached over https without a file of them"
        );
    }
    roots
}
