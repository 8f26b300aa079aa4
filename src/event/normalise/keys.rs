//! Which of a block's extra keys is a salt, and which names an object.
//!
//! An engine hashes into a block more than its tokens, and lists it as `extra_keys`: the adapter's name, identifiers
//! of images, the request's salt, digests of embeddings, in that order and without saying which is which. SGLang and
//! newer forms say it, in fields of their own. The rules, first match first:
//!
//! * A text equal to the event's `lora_name` is the adapter; once a block, so that a salt may have the same name.
//! * `cache_salt` in the event is the salt. The same text among the first block's keys is no object.
//! * A text on the first block that starts with `dynamo-cache-salt:` marks the salt: it is what follows.
//! * An identifier with an offset beside it is an object, and so is the form that a router-aware frontend gives
//!   identifiers: 16 hexadecimal digits and 48 zeros.
//! * At the head of a prompt (no parent), the first block's last text is the salt, as vLLM writes it, unless another
//!   block of the event repeats it: a salt is on the first block only, an image tends to span several.
//! * Any other text is an object's identifier. A digest of bytes makes its block unlike plain text as well.
//!
//! The limit: releases of vLLM that list an image without its offset, for an image that lies within the first block
//! of a prompt. Its identifier passes for a salt, the prompt's blocks go under that salt, and a prompt with the same
//! image misses them. No prompt is ever credited with another's blocks by this.

use crate::event::wire::{Batch, BlockKey, BlockObject, Key, Span, StoredRecord};
use crate::hash::object_hash;

const SALT_MARK: &str = "dynamo-cache-salt:";

/// What a store's extra keys come to.
pub(super) struct Keys<'a> {
    pub(super) salt: Option<&'a str>,
    /// In the order of the blocks.
    pub(super) objects: Vec<BlockObject>,
}

/// Sorts out the keys of a store. Allocates only if there are objects.
pub(super) fn read<'a>(batch: &'a Batch, record: &StoredRecord) -> Keys<'a> {
    let own = record.cache_salt.map(|span| batch.text(span));
    let marked = first_block(batch, record).find_map(|(_, text)| text.strip_prefix(SALT_MARK));
    let native = match (own, marked, record.parent) {
        (None, None, None) => native_salt(batch, record),
        _ => None,
    };
    let salt = own.or(marked).or(native.map(|span| batch.text(span))).filter(|salt| !salt.is_empty());

    let mut objects = batch.objects(record.objects).to_vec();
    let told = objects.len();
    for &BlockKey { block, key } in identifiers(batch, record) {
        let hash = match key {
            Key::Digest(digest) => Some(digest),
            // The event tells the block's objects by their hashes: the identifiers are the same objects again.
            _ if objects[..told].binary_search_by_key(&block, |object| object.block).is_ok() => None,
            Key::Object(span) => object_hash(batch.text(span)),
            Key::Text(span) => {
                let text = batch.text(span);
                let is_salt = native == Some(span) || (block == 0 && own == Some(text));
                if is_salt || text.starts_with(SALT_MARK) { None } else { object_hash(text) }
            }
        };
        objects.extend(hash.map(|hash| BlockObject { block, hash }));
    }
    objects.sort_by_key(|object| object.block);
    Keys { salt, objects }
}

/// The keys of all blocks but for the adapter's name, once a block.
fn identifiers<'a>(batch: &'a Batch, record: &StoredRecord) -> impl Iterator<Item = &'a BlockKey> {
    let lora = record.lora_name.map(|span| batch.text(span));
    let mut named_in = None;
    batch.keys(record.keys).iter().filter(move |key| {
        let is_name = matches!(key.key, Key::Text(span) if lora == Some(batch.text(span)));
        if is_name && named_in != Some(key.block) {
            named_in = Some(key.block);
            return false;
        }
        true
    })
}

/// The texts on the first block.
fn first_block<'a>(batch: &'a Batch, record: &StoredRecord) -> impl Iterator<Item = (Span, &'a str)> {
    identifiers(batch, record).take_while(|key| key.block == 0).filter_map(|key| match key.key {
        Key::Text(span) => Some((span, batch.text(span))),
        _ => None,
    })
}

fn native_salt(batch: &Batch, record: &StoredRecord) -> Option<Span> {
    let (span, last) = first_block(batch, record).last()?;
    let repeated = || {
        identifiers(batch, record)
            .any(|key| key.block > 0 && matches!(key.key, Key::Text(span) if batch.text(span) == last))
    };
    if is_router_object(last) || repeated() { None } else { Some(span) }
}

/// 16 hexadecimal digits and 48 zeros.
fn is_router_object(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() == 64
        && bytes[..16].iter().all(u8::is_ascii_hexdigit)
        && bytes[16..].iter().all(|&byte| byte == b'0')
}
