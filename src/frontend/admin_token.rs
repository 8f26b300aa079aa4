//! The token of the admin listener.

use http::{HeaderMap, HeaderValue, header};
use thiserror::Error;

/// What the admin listener asks for. It never shows itself: its `Debug` is `Sensitive`.
#[derive(Clone, Debug)]
pub struct AdminToken(HeaderValue);

/// A text that no request could carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the token has characters that no header carries; use visible ASCII characters")]
pub struct UnusableToken;

const SCHEME: &str = "Bearer ";

impl AdminToken {
    /// The token `text`.
    ///
    /// # Errors
    /// It has characters that no header carries.
    pub fn new(text: &str) -> Result<Self, UnusableToken> {
        let mut value = HeaderValue::try_from(format!("{SCHEME}{text}")).map_err(|_| UnusableToken)?;
        value.set_sensitive(true);
        Ok(Self(value))
    }

    /// The value of `Authorization` that shows it.
    #[must_use]
    pub const fn authorization(&self) -> &HeaderValue {
        &self.0
    }

    /// Whether a request shows it. Compares in a time that does not depend on where the texts differ, so that the
    /// token cannot be guessed a character at a time.
    pub(super) fn is_shown_in(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        let Some((scheme, given)) = given.and_then(|value| value.split_at_checked(SCHEME.len())) else {
            return false;
        };
        let token = &self.0.as_bytes()[SCHEME.len()..];
        let differing = given.iter().zip(token).fold(0, |acc, (a, b)| acc | (a ^ b));
        scheme.eq_ignore_ascii_case(SCHEME.as_bytes()) && given.len() == token.len() && differing == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontend::FrontendSettings;

    #[test]
    fn only_the_whole_token_counts_and_the_scheme_in_any_case() {
        let token = AdminToken::new("s3cret").unwrap();
        let shown = |text: &'static str| {
            token
                .is_shown_in(&HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_static(text))]))
        };
        assert!(shown("Bearer s3cret") && shown("bearer s3cret"));
        for other in ["", "s3cret", "Bearer ", "Bearer s3cre", "Bearer s3cret2", "Basic s3cret"] {
            assert!(!shown(other), "{other}");
        }
        assert!(!token.is_shown_in(&HeaderMap::new()));
    }

    #[test]
    fn a_token_is_never_shown() {
        let admin_token = AdminToken::new("s3cret").ok();
        let settings = FrontendSettings { admin_token, ..FrontendSettings::default() };
        let shown = format!("{settings:?} {settings:#?}");
        assert!(shown.contains("admin_token") && !shown.contains("s3cret"), "{shown}");
        assert_eq!(AdminToken::new("a\nb").unwrap_err(), UnusableToken);
    }
}
