//! The URL of a server that requests are sent to: a worker, or a frontend.

use std::borrow::Cow;

use http::Uri;

/// `text` as such a URL, if it is one. A user and a password in it are refused: no request would carry them, and whoever reads a log or
/// `/v1/workers` would see them.
pub(crate) fn base_url(text: &str) -> Option<Uri> {
    let url: Uri = text.trim_end_matches('/').parse().ok()?;
    let authority = url.authority()?;
    let usable = matches!(url.scheme_str(), Some("http" | "https"))
        && !authority.host().is_empty()
        && !authority.as_str().contains('@')
        && url.query().is_none();
    usable.then_some(url)
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
        for text in ["", "h:8000", "ftp://h", "/v1", "http://h/?x", "http://u@h", "https://u:p@h:1/v1"] {
            assert!(base_url(text).is_none(), "{text}");
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
