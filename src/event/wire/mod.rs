//! The wire format of KV events: msgpack over ZMQ, as vLLM, SGLang and TensorRT-LLM publish it.
//!
//! No two releases of an engine write quite the same bytes. A batch is an array of two, three or more elements
//! or a map; an event is an array whose fields go by position or a map, both in one batch if need be; a block is
//! named by a number, signed or not, or by a digest. [`decode`] takes all of it, steps over what it does not
//! know, and treats each event on its own: one that cannot be read is counted in [`Batch::rejected`] and its
//! siblings are kept. [`Batch::lost_removal`] says when it may have taken blocks away. Only a payload that is no batch at all is a
//! [`DecodeError`].
//!
//! The bytes are not trusted. Lengths are checked against what is left before anything is reserved, and nothing
//! recurses over the input, so a payload costs memory and time in proportion to its size whatever it says.
//!
//! What an event means (which cache, which salt, which tokens hash to what) is not decided here but in
//! [`Normaliser`](super::Normaliser).

mod batch;
mod digests;
mod envelope;
mod field;
mod keys;
mod reader;
mod record;

pub use batch::Batch;
pub(super) use batch::{
    AttentionKind, BlockKey, BlockObject, Key, Locality, Medium, Ownership, Record, RemovedRecord, Scope,
    Span, StoredRecord,
};
pub use digests::digests;
pub use envelope::{DecodeError, decode};
