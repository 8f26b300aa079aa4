//! The keys that clients show.
//!
//! A file has a key a line, and behind a key, if it is to have one, a name of its owner's:
//!
//! ```text
//! # search team, since March
//! sk-3f9c2b7a41d84e55  search
//! sk-8815d0ffeba0432c
//! ```
//!
//! Of the keys nothing is kept but their SHA-256. What a client shows is hashed too, and the digest looked up: how long that
//! takes depends on the digest, of which nobody can tell what shown key would bring it nearer to a known one.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use ahash::AHashMap;
use arc_swap::ArcSwap;
use http::{HeaderMap, header};
use ring::digest::{SHA256, digest};
use thiserror::Error;

/// The keys that count, as their file had them when it was last read.
pub struct ApiKeys {
    path: PathBuf,
    owners: ArcSwap<Owners>,
}

/// Who is who, by the digests of their keys.
type Owners = AHashMap<[u8; 32], Arc<str>>;

/// A file of keys that cannot be used. It never shows a key.
#[derive(Debug, Error)]
#[error("{path}{place}: {problem}")]
pub struct ApiKeysError {
    /// The file.
    pub path: PathBuf,
    /// `", line N"`, or nothing if it is about no line.
    place: String,
    /// What is wrong, and what is accepted.
    pub problem: String,
}

/// Why a request is nobody's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoKey {
    /// It shows none.
    Missing,
    /// It shows one that is not in the file.
    Unknown,
}

/// A shorter one can be guessed.
const SHORTEST: usize = 16;
const LONGEST: usize = 512;
const LONGEST_NAME: usize = 64;

const SCHEME: &[u8] = b"Bearer ";

impl ApiKeys {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, has a line that is none of the above, has a key twice, or has none.
    pub fn open(path: &Path) -> Result<Self, ApiKeysError> {
        Ok(Self { owners: ArcSwap::from_pointee(read(path)?), path: path.to_owned() })
    }

    /// Reads the file again. If it cannot be used, the keys that were read before count on.
    ///
    /// # Errors
    /// As [`ApiKeys::open`].
    pub fn reload(&self) -> Result<(), ApiKeysError> {
        self.owners.store(Arc::new(read(&self.path)?));
        Ok(())
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many keys there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.owners.load().len()
    }

    /// Whose key a request shows, in `Authorization: Bearer KEY`.
    pub(super) fn owner(&self, headers: &HeaderMap) -> Result<Arc<str>, NoKey> {
        let shown = headers.get(header::AUTHORIZATION).ok_or(NoKey::Missing)?.as_bytes();
        let (scheme, key) = shown.split_at_checked(SCHEME.len()).ok_or(NoKey::Missing)?;
        if !scheme.eq_ignore_ascii_case(SCHEME) {
            return Err(NoKey::Missing);
        }
        self.owners.load().get(&hashed(key.trim_ascii())).map(Arc::clone).ok_or(NoKey::Unknown)
    }
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiKeys")
            .field("path", &self.path)
            .field("count", &self.count())
            .finish_non_exhaustive()
    }
}

fn hashed(key: &[u8]) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, key).as_ref());
    bytes
}

fn read(path: &Path) -> Result<Owners, ApiKeysError> {
    let failed = |place: String, problem: String| ApiKeysError { path: path.to_owned(), place, problem };
    let text = fs::read_to_string(path).map_err(|error| failed(String::new(), error.to_string()))?;
    let mut owners = Owners::new();
    let mut lines: AHashMap<[u8; 32], usize> = AHashMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let here = |problem: String| failed(format!(", line {number}"), problem);
        let Some((key, name)) = entry(line).map_err(here)? else { continue };
        let digest = hashed(key.as_bytes());
        if let Some(first) = lines.insert(digest, number) {
            return Err(here(format!("the key of line {first} again; a key is one client's")));
        }
        // The start of a digest tells keys apart in logs, and tells nothing of the key.
        let name = name.map_or_else(|| unnamed(&digest), Into::into);
        owners.insert(digest, name);
    }
    if owners.is_empty() {
        let problem = format!("there is no key in it, and nobody could be served; {ACCEPTED}");
        return Err(failed(String::new(), problem));
    }
    Ok(owners)
}

const ACCEPTED: &str = "accepted is a key a line, of 16 to 512 visible ASCII characters, with a space and a name behind it \
                        or none; lines that begin with # are left out";

/// The key and the name in a line, if it has any.
fn entry(line: &str) -> Result<Option<(&str, Option<&str>)>, String> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let mut words = line.split_ascii_whitespace();
    let key = words.next().unwrap_or_default();
    let (name, rest) = (words.next(), words.next());
    let visible = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    if !visible(key) {
        Err(format!("the key has characters that no header carries; {ACCEPTED}"))
    } else if !(SHORTEST..=LONGEST).contains(&key.len()) {
        Err(format!("the key has {} characters; {ACCEPTED}", key.len()))
    } else if rest.is_some() || name.is_some_and(|name| name.starts_with('#')) {
        Err(format!("there is more behind the key than a name; {ACCEPTED}"))
    } else if name.is_some_and(|name| !visible(name) || name.len() > LONGEST_NAME) {
        Err(format!("the name is not 1 to {LONGEST_NAME} visible ASCII characters; {ACCEPTED}"))
    } else {
        Ok(Some((key, name)))
    }
}

fn unnamed(digest: &[u8; 32]) -> Arc<str> {
    let [a, b, c, d, ..] = digest;
    format!("key-{a:02x}{b:02x}{c:02x}{d:02x}").into()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use tempfile::NamedTempFile;

    use super::*;

    const FIRST: &str = "sk-aaaaaaaaaaaaaaaa";
    const SECOND: &str = "sk-bbbbbbbbbbbbbbbb";

    fn file(text: &str) -> NamedTempFile {
        let file = NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        file
    }

    fn shows(text: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_str(text).unwrap())])
    }

    #[test]
    fn whoever_shows_a_key_of_the_file_is_its_owner() {
        let file = file(&format!("# keys\n\n  {FIRST} search \r\n{SECOND}\n"));
        let keys = ApiKeys::open(file.path()).unwrap();
        assert_eq!(keys.count(), 2);
        let owner = |text: &str| keys.owner(&shows(text));
        assert_eq!(owner(&format!("Bearer {FIRST}")).as_deref(), Ok("search"));
        assert_eq!(owner(&format!("bearer  {FIRST} ")).as_deref(), Ok("search"));
        let unnamed = owner(&format!("Bearer {SECOND}")).unwrap();
        assert!(unnamed.starts_with("key-") && unnamed.len() == 12 && !SECOND.contains(&unnamed[4..]));
        for (text, problem) in [
            ("", NoKey::Missing),
            (FIRST, NoKey::Missing),
            ("Basic sk-aaaaaaaaaaaaaaaa", NoKey::Missing),
            ("Bearer ", NoKey::Unknown),
            ("Bearer search", NoKey::Unknown),
            ("Bearer sk-aaaaaaaaaaaaaaa", NoKey::Unknown),
            ("Bearer sk-aaaaaaaaaaaaaaaaa", NoKey::Unknown),
        ] {
            assert_eq!(owner(text), Err(problem), "{text}");
        }
        assert_eq!(keys.owner(&HeaderMap::new()), Err(NoKey::Missing));
    }

    #[test]
    fn a_file_that_cannot_be_used_is_refused_with_its_line_and_without_its_keys() {
        let long = "k".repeat(LONGEST + 1);
        for (text, place, says) in [
            (String::new(), "", "no key in it"),
            ("# nothing\n".to_owned(), "", "no key in it"),
            ("\nshort".to_owned(), ", line 2", "5 characters"),
            (long, ", line 1", "513 characters"),
            (format!("{FIRST} a b"), ", line 1", "more behind the key"),
            (format!("{FIRST} # mine"), ", line 1", "more behind the key"),
            (format!("{FIRST} n\u{e9}"), ", line 1", "name"),
            (format!("{FIRST}\u{e9}"), ", line 1", "no header carries"),
            (format!("{FIRST} a\n{SECOND}\n{FIRST} b"), ", line 3", "line 1 again"),
        ] {
            let file = file(&text);
            let error = ApiKeys::open(file.path()).unwrap_err().to_string();
            let begins = format!("{}{place}: ", file.path().display());
            assert!(error.starts_with(&begins) && error.contains(says), "{error}");
            assert!(!error.contains("sk-"), "{error}");
        }
        assert!(ApiKeys::open(Path::new("/no/such/file")).unwrap_err().to_string().contains("No such file"));
    }

    #[test]
    fn a_bad_file_keeps_the_keys_and_a_good_one_replaces_them() {
        let file = file(FIRST);
        let keys = ApiKeys::open(file.path()).unwrap();
        let known = |key: &str| keys.owner(&shows(&format!("Bearer {key}"))).is_ok();
        fs::write(file.path(), "").unwrap();
        assert!(keys.reload().is_err() && known(FIRST));
        fs::write(file.path(), SECOND).unwrap();
        keys.reload().unwrap();
        assert!(known(SECOND) && !known(FIRST));
        assert!(!format!("{keys:?}").contains("sk-"));
    }
}
