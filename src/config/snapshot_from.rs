//! Whose index a frontend begins with.

use std::path::PathBuf;

use super::{error::ConfigError, token::read_token};
use crate::{
    fleet::{base_url, without_user},
    frontend::{AdminToken, SnapshotSource},
};

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
    let Some(url) = base_url(text.trim()) else {
        return Err(ConfigError::SnapshotUrl(without_user(&text).into_owned()));
    };
    let token = match token_file {
        Some(path) => Some(token("--index-snapshot-token-file", path)?),
        None => own.cloned(),
    };
    Ok(Some(SnapshotSource { url, token }))
}
