//! The name of a request: by what it is known to its client, to the worker, and wherever something is written of it.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

/// The header that carries it, both ways.
pub(super) const HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// The longest name of a client's that is taken over.
const LONGEST: usize = 128;

/// A request's name: visible ASCII.
#[derive(Clone, Debug)]
pub(super) struct RequestId(HeaderValue);

impl RequestId {
    /// The client's own, where it has one that is a name, else a new one. The headers have it afterwards, and no other.
    pub(super) fn put(headers: &mut HeaderMap) -> Self {
        let given = headers.get(HEADER).filter(|value| is_name(value.as_bytes())).cloned();
        let name = given.unwrap_or_else(made);
        headers.insert(HEADER, name.clone());
        Self(name)
    }

    /// Tells the client.
    pub(super) fn tell(self, headers: &mut HeaderMap) {
        headers.insert(HEADER, self.0);
    }

    pub(super) fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }
}

/// The name that a request's headers have; empty if it came by no way that gives names.
pub(super) fn named(headers: &HeaderMap) -> &str {
    headers.get(HEADER).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Names go into logs and URLs.
fn is_name(text: &[u8]) -> bool {
    (1..=LONGEST).contains(&text.len()) && text.iter().all(u8::is_ascii_graphic)
}

fn made() -> HeaderValue {
    let name = Bytes::from(format!("{:032x}", fastrand::u128(..)));
    // Digits are always a value.
    HeaderValue::from_maybe_shared(name).unwrap_or(HeaderValue::from_static("0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_s_name_is_taken_over_where_it_is_one() {
        let long = "x".repeat(LONGEST + 1);
        for (given, taken) in [
            ("job/7:a", true),
            (&long[1..], true),
            (&long, false),
            ("", false),
            ("two words", false),
            ("\u{e9}", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(HEADER, HeaderValue::from_str(given).unwrap());
            headers.append(HEADER, HeaderValue::from_static("second"));
            let name = RequestId::put(&mut headers);
            assert_eq!(name.as_str() == given, taken, "{given:?}");
            assert_eq!(headers.get_all(HEADER).iter().count(), 1);
            assert_eq!(named(&headers), name.as_str());
            if !taken {
                assert_eq!(name.as_str().len(), 32, "{given:?}");
            }
        }
    }

    #[test]
    fn a_request_without_a_name_gets_one_of_its_own() {
        let names = [(); 2].map(|()| RequestId::put(&mut HeaderMap::new()).as_str().to_owned());
        assert_ne!(names[0], names[1]);
        assert!(names.iter().all(|name| is_name(name.as_bytes())));
        assert_eq!(named(&HeaderMap::new()), "");
    }
}
