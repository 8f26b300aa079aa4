//! The URL of a server that requests are sent to: a worker, or a frontend.

use std::borrow::Cow;

use http::{Uri, uri::Authority};

/// `text` as such a URL, if it is one. A user and a password in it are refused: no request would carry them, and whoever reads a log or
/// `/v1/workers` would see them.
pub(crate) fn base_url(text: &str) -> Option<Uri> {
    let url: Uri = text.trim_end_matches('/').parse().ok()?;
    let authority = url.authority()?;
    let usable = matches!(url.scheme_str(), Some("http" | "https"))
        && !authority.host().is_empty()
        && !authority.as_str().contains('@')
        && has_port(authority)
        && url.query().is_none()
        && !text.contains('#');
    usable.then_some(url)
}

/// Whether the port is one, where there is one: what is none would be passed over, and the scheme's taken.
fn has_port(authority: &Authority) -> bool {
    let given = authority.as_str().strip_prefix(authority.host());
    given.is_none_or(str::is_empty) || authority.port_u16().is_some_and(|port| port != 0)
}

/// `text` for a message: without the user and the password, if a URL in it has any. It may be none that reads, as where the password has a slash.
pub(crate) fn without_user(text: &str) -> Cow<'_, str> {
    let Some((before, host)) = text.rsplit_once('@') else { return Cow::Borrowed(text) };
    let scheme = before.split_once("//").map_or(String::new(), |(scheme, _)| format!("{scheme}//"));
    Cow::Owned(format!("{scheme}***@{host}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_url_has_a_host_and_neither_a_user_nor_a_query() {
        for text in ["http://h:8000", "https://h/", "http://[::1]:8000/pod/7", "http://h/a@b"] {
            assert!(base_url(text).is_some(), "{text}");
        }
        for text in
            ["", "h:8000", "ftp://h", "/v1", "http://h/?x", "http://u@h", "https://u:p@h:1/v1", "http://h/#x"]
        {
            assert!(base_url(text).is_none(), "{text}");
        }
        for port in ["65536", "99999", "0", "x", ""] {
            for host in ["h", "127.0.0.1", "[::1]"] {
                assert!(base_url(&format!("http://{host}:{port}")).is_none(), "{host}:{port}");
            }
        }
    }

    #[test]
    fn a_message_names_the_host_alone() {
        for (text, shown) in [
            ("http://h:8000", "http://h:8000"),
            ("http://u:s3cret@h:8000/v1", "http://***@h:8000/v1"),
            ("https://u:s3/c@ret@h", "https://***@h"),
            ("u:s3cret@h:1", "***@h:1"),
            ("url=http://u:s3cret@h:1,model=m", "url=http://***@h:1,model=m"),
        ] {
            assert_eq!(without_user(text), shown);
        }
    }
}
