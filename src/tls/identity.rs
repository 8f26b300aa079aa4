//! What one end of a connection shows of itself.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;
use rustls::{
    SignatureScheme,
    client::ResolvesClientCert,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::Error as PemError, pem::PemObject as _},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use super::error::TlsFileError;

/// A chain of certificates and its key, as two files in PEM had them when they were last read. Its `Debug` shows the
/// files' names alone.
pub struct Identity {
    certificate: PathBuf,
    key: PathBuf,
    current: ArcSwap<CertifiedKey>,
}

impl Identity {
    /// Reads both files.
    ///
    /// # Errors
    /// One of them cannot be read, has not what it should, or the key is not that of the first certificate.
    pub fn open(certificate: &Path, key: &Path) -> Result<Self, TlsFileError> {
        let current = ArcSwap::from_pointee(read(certificate, key)?);
        Ok(Self { certificate: certificate.to_owned(), key: key.to_owned(), current })
    }

    /// Reads both files again. If they cannot be used, what was read before is shown on.
    ///
    /// # Errors
    /// As [`Identity::open`].
    pub fn reload(&self) -> Result<(), TlsFileError> {
        self.current.store(Arc::new(read(&self.certificate, &self.key)?));
        Ok(())
    }

    /// The file of the certificates.
    #[must_use]
    pub fn certificate(&self) -> &Path {
        &self.certificate
    }

    /// The file of the key.
    #[must_use]
    pub fn key(&self) -> &Path {
        &self.key
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("certificate", &self.certificate)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl ResolvesServerCert for Identity {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

fn read(certificate: &Path, key: &Path) -> Result<CertifiedKey, TlsFileError> {
    let chain = certificates(certificate)?;
    let secret = PrivateKeyDer::from_pem_slice(&contents(key)?).map_err(|error| {
        let accepted = "accepted is one in PEM, as PKCS #8, PKCS #1 or SEC 1, that is not encrypted";
        match error {
            PemError::NoItemsFound => {
                TlsFileError::new(key, format_args!("there is no private key in it; {accepted}"))
            }
            error => TlsFileError::new(key, format_args!("not a private key: {error}; {accepted}")),
        }
    })?;
    CertifiedKey::from_der(chain, secret, &default_provider()).map_err(|error| {
        let problem = format_args!("with the certificate in {}: {error}", certificate.display());
        TlsFileError::new(key, problem)
    })
}

/// The certificates of a file, at least one.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
    let text = contents(path)?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match read {
        Ok(found) if found.is_empty() => Err(TlsFileError::new(
            path,
            "there is no certificate in it; accepted is PEM, which begins with -----BEGIN CERTIFICATE-----",
        )),
        Ok(found) => Ok(found),
        Err(error) => Err(TlsFileError::new(path, format_args!("not certificates in PEM: {error}"))),
    }
}

fn contents(path: &Path) -> Result<Vec<u8>, TlsFileError> {
    fs::read(path).map_err(|error| TlsFileError::new(path, error))
}

#[cfg(test)]
mod tests {
    use rcgen::{KeyPair, generate_simple_self_signed};
    use tempfile::tempdir;

    use super::*;

    #[test]
    fn a_pair_that_fits_is_read_and_one_that_does_not_changes_nothing() {
        let folder = tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let made = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(path("cert"), made.cert.pem()).unwrap();
        fs::write(path("key"), made.signing_key.serialize_pem()).unwrap();
        let identity = Identity::open(&path("cert"), &path("key")).unwrap();
        let first = identity.current.load_full();
        assert_eq!(first.cert[0], *made.cert.der());

        fs::write(path("key"), KeyPair::generate().unwrap().serialize_pem()).unwrap();
        let error = identity.reload().unwrap_err();
        assert_eq!(error.path, path("key"));
        assert!(error.problem.contains("with the certificate in"), "{error}");
        assert!(Arc::ptr_eq(&first, &identity.current.load_full()));

        let next = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(path("cert"), next.cert.pem()).unwrap();
        fs::write(path("key"), next.signing_key.serialize_pem()).unwrap();
        identity.reload().unwrap();
        assert_eq!(identity.current.load_full().cert[0], *next.cert.der());
        assert!(!format!("{identity:?}").contains("PRIVATE"));
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named_with_what_is_accepted() {
        let folder = tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let made = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        for (name, text) in [
            ("cert", cert.as_str()),
            ("key", &key),
            ("empty", ""),
            ("cut", &cert[..cert.len() / 2]),
            ("garbled", "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n"),
        ] {
            fs::write(path(name), text).unwrap();
        }
        for (cert, key, at, says) in [
            ("none", "key", "none", "No such file"),
            ("cert", "none", "none", "No such file"),
            ("empty", "key", "empty", "-----BEGIN CERTIFICATE-----"),
            ("cut", "key", "cut", "PEM"),
            ("garbled", "key", "garbled", "PEM"),
            ("key", "key", "key", "no certificate"),
            ("cert", "cert", "cert", "no private key"),
            ("cert", "empty", "empty", "PKCS #8"),
        ] {
            let error = Identity::open(&path(cert), &path(key)).unwrap_err();
            assert_eq!(error.path, path(at), "{error}");
            assert!(error.problem.contains(says), "{error}");
        }
    }
}
