//! The project's own small model, embedded: for tests, demos and the mock engine.

use std::path::Path;

use super::encoder::{Encoder, LoadError};
use super::model_files::{Templates, special_tokens};
use super::template::ChatTemplates;
use super::tokenizer::Tokenizer;

const TOKENIZER: &[u8] = include_bytes!("../../assets/tiny/tokenizer.json");
const CONFIG: &[u8] = include_bytes!("../../assets/tiny/tokenizer_config.json");

impl Encoder {
    /// A byte-level tokenizer of 2,400 tokens with a ChatML-like template (`assets/tiny/`). It
    /// represents any text, and decoding undoes encoding.
    ///
    /// # Errors
    /// None in practice: the files are part of the program.
    pub fn tiny() -> Result<Self, LoadError> {
        let config_path = Path::new("assets/tiny/tokenizer_config.json");
        let config = serde_json::from_slice(CONFIG)
            .map_err(|error| LoadError::File { path: config_path.to_owned(), reason: error.to_string() })?;
        let tokenizer = Tokenizer::from_json(TOKENIZER, Path::new("assets/tiny/tokenizer.json"))?;
        let templates = Templates::from_json(config_path.to_owned(), &config)?;
        Ok(Self::from_parts(tokenizer, ChatTemplates::compile(&templates, special_tokens(&config))?))
    }
}
