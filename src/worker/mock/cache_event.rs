//! What the block manager says, and how vLLM 0.32 puts it on the wire.
//!
//! A batch is an array `[ts, events, rank]`; an event is a map. Fields that are at their default are left
//! out, those without a default are sent even when nil, in the order that vLLM sends them.

use std::sync::Arc;

use rmp::encode::{self, buffer::ByteBuf};

use super::sequence::Namespace;
use super::settings::Omissions;
use crate::event::EngineHash;

/// One change of the cache, in the order in which it happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CacheEvent {
    /// Full blocks became reusable.
    Stored(StoredRun),
    /// One physical copy of a block was reused for something else.
    Removed(EngineHash),
    /// Every block was forgotten.
    Cleared,
}

/// A run of consecutive blocks of one sequence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredRun {
    /// The block that the first one follows; `None` at the start of a sequence.
    pub parent: Option<EngineHash>,
    /// The names, in order.
    pub names: Vec<EngineHash>,
    /// All the blocks' tokens: `names.len() * block_size` of them.
    pub tokens: Vec<u32>,
    /// Tokens per block.
    pub block_size: u32,
    /// What separates the sequence from others with the same tokens.
    pub namespace: Arc<Namespace>,
}

/// One batch as msgpack. `seconds` is the time since the epoch.
pub(super) fn encode_batch(seconds: f64, rank: u32, events: &[CacheEvent], omissions: Omissions) -> Vec<u8> {
    let mut out = Writer(ByteBuf::with_capacity(64 + events.iter().map(size_hint).sum::<usize>()));
    let told = |event: &&CacheEvent| !omissions.removals || matches!(event, CacheEvent::Stored(_));
    out.array(3);
    out.float(seconds);
    out.array(events.iter().filter(told).count());
    for event in events.iter().filter(told) {
        match event {
            CacheEvent::Stored(run) => stored(&mut out, run, omissions),
            CacheEvent::Removed(name) => removed(&mut out, *name),
            CacheEvent::Cleared => {
                out.map(1);
                out.tag("AllBlocksCleared");
            }
        }
    }
    out.uint(rank.into());
    out.0.into_vec()
}

fn size_hint(event: &CacheEvent) -> usize {
    match event {
        CacheEvent::Stored(run) => 256 + run.names.len() * 16 + run.tokens.len() * 5,
        CacheEvent::Removed(_) | CacheEvent::Cleared => 80,
    }
}

fn stored(out: &mut Writer, run: &StoredRun, omissions: Omissions) {
    let namespace = &*run.namespace;
    let lora = namespace.lora.as_ref();
    let omitted = u32::from(omissions.extra_keys) + u32::from(omissions.lora_names);
    out.map(if namespace.session.is_some() { 12 } else { 11 } - omitted);
    out.tag("BlockStored");
    out.key("block_hashes");
    out.array(run.names.len());
    for name in &run.names {
        out.uint(name.0);
    }
    out.key("parent_block_hash");
    out.optional(run.parent, |out, parent| out.uint(parent.0));
    out.key("token_ids");
    out.array(run.tokens.len());
    for &token in &run.tokens {
        out.uint(token.into());
    }
    out.key("block_size");
    out.uint(run.block_size.into());
    out.key("lora_id");
    out.optional(lora, |out, lora| out.uint(lora.id.into()));
    out.key("medium");
    out.text("GPU");
    if !omissions.lora_names {
        out.key("lora_name");
        out.optional(lora, |out, lora| out.text(&lora.name));
    }
    if !omissions.extra_keys {
        extra_keys(out, run);
    }
    out.key("group_idx");
    out.uint(0);
    out.key("kv_cache_spec_kind");
    out.text("full_attention");
    if let Some(session) = &namespace.session {
        out.key("session_id");
        out.text(session);
    }
}

fn extra_keys(out: &mut Writer, run: &StoredRun) {
    let namespace = &*run.namespace;
    out.key("extra_keys");
    out.array(run.names.len());
    for index in 0..run.names.len() {
        // The salt goes with the first block of a sequence and with no other.
        let salt = if index == 0 && run.parent.is_none() { namespace.salt.as_deref() } else { None };
        let keys: Vec<&str> =
            namespace.lora.as_ref().map(|lora| &*lora.name).into_iter().chain(salt).collect();
        out.optional(Some(keys).filter(|keys| !keys.is_empty()), |out, keys| {
            out.array(keys.len());
            keys.iter().for_each(|key| out.text(key));
        });
    }
}

fn removed(out: &mut Writer, name: EngineHash) {
    out.map(4);
    out.tag("BlockRemoved");
    out.key("block_hashes");
    out.array(1);
    out.uint(name.0);
    out.key("medium");
    out.text("GPU");
    out.key("group_idx");
    out.uint(0);
}

/// Msgpack into memory. Its error type has no values, so results are dropped here, once.
struct Writer(ByteBuf);

impl Writer {
    fn array(&mut self, len: usize) {
        let _ = encode::write_array_len(&mut self.0, u32::try_from(len).unwrap_or(u32::MAX));
    }

    fn map(&mut self, len: u32) {
        let _ = encode::write_map_len(&mut self.0, len);
    }

    fn tag(&mut self, name: &str) {
        self.key("type");
        self.text(name);
    }

    fn key(&mut self, name: &str) {
        self.text(name);
    }

    fn text(&mut self, text: &str) {
        let _ = encode::write_str(&mut self.0, text);
    }

    fn uint(&mut self, value: u64) {
        let _ = encode::write_uint(&mut self.0, value);
    }

    fn float(&mut self, value: f64) {
        let _ = encode::write_f64(&mut self.0, value);
    }

    fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match value {
            Some(value) => write(self, value),
            None => {
                let _ = encode::write_nil(&mut self.0);
            }
        }
    }
}
