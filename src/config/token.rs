//! Tokens, which are read from files so that no process list shows them.

use std::{fs, path::Path};

use crate::frontend::AdminToken;

/// The token in a file; the error says what is wrong with the file.
pub(crate) fn read_token(path: &Path) -> Result<AdminToken, String> {
    match fs::read_to_string(path) {
        Ok(text) if text.trim().is_empty() => {
            Err("the file is empty; put the token on its first line".to_owned())
        }
        Ok(text) => AdminToken::new(text.trim()).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}
