//! Where an operator wants the traces.

use std::{fmt, str::FromStr};

use http::Uri;
use serde::{Deserialize, Deserializer, de::Error as _};
use thiserror::Error;

/// The base URL of a collector's OTLP receiver over HTTP, such as `http://localhost:4318`. Traces go to `v1/traces` below it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OtlpEndpoint(Uri);

/// What a receiver of traces is called below it.
pub(super) const TRACES: &str = "/v1/traces";

/// A URL that is none of a collector.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "'{0}' is no collector's URL; it begins with http:// or https://, and has a host and neither a user nor a query, as http://localhost:4318"
)]
pub struct NotAnEndpoint(String);

impl OtlpEndpoint {
    /// The URL without what is below it.
    #[cfg_attr(not(feature = "otel"), expect(dead_code, reason = "for the SDK"))]
    pub(super) const fn base(&self) -> &Uri {
        &self.0
    }

    /// Where traces go, in full.
    #[cfg_attr(not(feature = "otel"), expect(dead_code, reason = "for the SDK"))]
    pub(super) fn traces(&self) -> String {
        format!("{self}{TRACES}")
    }
}

impl FromStr for OtlpEndpoint {
    type Err = NotAnEndpoint;

    fn from_str(text: &str) -> Result<Self, NotAnEndpoint> {
        let usable = |uri: &Uri| {
            let known = matches!(uri.scheme_str(), Some("http" | "https"));
            let host = uri.authority().is_some_and(|of| !of.host().is_empty() && !of.as_str().contains('@'));
            known && host && uri.query().is_none()
        };
        let uri = text.parse().ok().filter(usable);
        uri.map(Self).ok_or_else(|| NotAnEndpoint(text.to_owned()))
    }
}

impl<'de> Deserialize<'de> for OtlpEndpoint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// As it can be given.
impl fmt::Display for OtlpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_string().trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_base_url() {
        for (text, shown) in [
            ("http://localhost:4318", "http://localhost:4318"),
            ("https://collector/", "https://collector"),
            ("http://[::1]:4318/otlp/", "http://[::1]:4318/otlp"),
        ] {
            assert_eq!(text.parse::<OtlpEndpoint>().unwrap().to_string(), shown);
        }
        for text in [
            "",
            "localhost:4318",
            "grpc://collector:4317",
            "http://",
            "/v1/traces",
            "http://a:b@c",
            "http://c?x",
        ] {
            let error = text.parse::<OtlpEndpoint>().unwrap_err();
            assert!(error.to_string().contains(text) && error.to_string().contains("http://localhost:4318"));
        }
    }
}
