//! Whose index a frontend begins with.

use std::path::PathBuf;

use http::Uri;

use super::{error::ConfigError, token::read_token};
use crate::frontend::{AdminToken, SnapshotSource};

/// The token in the file that a flag names.
pub(super) fn token(flag: &'static str, path: PathBuf) -> Result<AdminToken, ConfigError> {
    read_token(&path).map_err(|problem| ConfigError::Token { flag, path, problem })
}

/// Whose index to begin with. Frontends of one fleet mostly have one token.
pub(super) fn snapshot_source(
    url: Option<String>,
    token_file: Option<PathBuf>,
    own: Option<&AdminToken>,
) -> Result<Option<SnapshotSource>, ConfigError> {
    let Some(text) = url else {
        return token_file.map_or(Ok(None), |path| Err(ConfigError::SnapshotToken(path)));
    };
    let url = text.trim().trim_end_matches('/').parse::<Uri>().ok();
    let usable = |url: &Uri| {
        matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some() && url.query().is_none()
    };
    let Some(url) = url.filter(usable) else { return Err(ConfigError::SnapshotUrl(text)) };
    let token = match token_file {
        Some(path) => Some(token("--index-snapshot-token-file", path)?),
        None => own.cloned(),
    };
    Ok(Some(SnapshotSource { url, token }))
}
