//! From a request to the tokens that its engine will see.
//!
//! An engine caches blocks of tokens, so a router can only know what is cached if it makes the
//! same tokens itself. The path has three steps, one file each:
//!
//! ```text
//! messages --conversation--> messages as the engine's server shapes them
//!          --template------> prompt text (Hugging Face chat template)
//!          --tokenizer-----> tokens
//! ```
//!
//! [`Encoder`] holds the loaded pieces of one model and runs the path. It is immutable, shared by
//! reference between threads, and takes no lock.
//!
//! Tokenising is by far the longest step. [`SegmentCache`] keeps the tokens of what stands between the special tokens of
//! a prompt, and a [`Draft`] is a prompt with those filled in, so that of a conversation only its last turn is tokenised.
//! Its tokens are the same as those made afresh, whatever was cached (`segments.rs` says why).
//!
//! The aim is the exact tokens of vLLM's OpenAI-compatible server. Where exactness cannot be had
//! (images and other parts that an engine expands by itself), the tokens stop before the first
//! doubtful one and [`Encoded::complete`] is false: a prefix that is too short costs some cache
//! hits, a wrong one sends requests to the wrong place.
//!
//! What this room is not: it knows no HTTP, no model weights and no hashes, and it never logs text.

mod content_format;
mod conversation;
mod draft;
mod encoder;
mod media;
mod model_files;
mod python;
mod segment_cache;
mod segments;
mod template;
mod time_format;
mod tiny;
mod tokenizer;

pub use draft::Draft;
pub use encoder::{ChatInput, Encoded, Encoder, LoadError, PromptError, Rendered};
pub use segment_cache::SegmentCache;
pub use tokenizer::Tokenizer;
