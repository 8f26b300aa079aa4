//! What an engine would write, and what it means by definition.

use kvroute::event::wire::{Batch, decode};
use kvroute::event::{EngineHash, Event, Normaliser, Removed, Stored, StoredBlock, Tier};
use kvroute::hash::{BlockHash, BlockSize};
use rmpv::Value;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The content hash of one block, from its definition.
pub(crate) fn content(tokens: &[u32], lora: Option<&str>, salt: Option<&str>, objects: &[u64]) -> BlockHash {
    let part = |text: Option<&str>, seed| text.map_or(0, |text| xxh3_64_with_seed(text.as_bytes(), seed));
    let seed = 1337_u64.wrapping_add(part(lora, 0)).wrapping_add(part(salt, 1));
    let mut objects = objects.to_vec();
    objects.sort_unstable();
    let bytes: Vec<u8> = tokens
        .iter()
        .flat_map(|token| token.to_le_bytes())
        .chain(objects.iter().flat_map(|object| object.to_le_bytes()))
        .collect();
    BlockHash(xxh3_64_with_seed(&bytes, seed))
}

pub(crate) fn identifier(text: &str) -> u64 {
    xxh3_64_with_seed(text.as_bytes(), 0)
}

pub(crate) fn normaliser(block_size: u32) -> Normaliser {
    Normaliser::new(BlockSize::new(block_size).unwrap(), false)
}

pub(crate) fn decoded(payload: &[u8]) -> Batch {
    let mut batch = Batch::new();
    decode(payload, &mut batch).unwrap();
    batch
}

/// Feeds one payload to a normaliser.
pub(crate) fn feed(normaliser: &mut Normaliser, payload: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    normaliser.normalise(&decoded(payload), &mut events);
    events
}

/// What one payload comes to on a fresh rank with blocks of 2 tokens, with the reasons that were counted.
pub(crate) fn read(payload: &[u8]) -> (Vec<Event>, Vec<(&'static str, u64)>) {
    let mut normaliser = normaliser(2);
    let events = feed(&mut normaliser, payload);
    (events, counted(&normaliser))
}

pub(crate) fn counted(normaliser: &Normaliser) -> Vec<(&'static str, u64)> {
    normaliser.rejections().iter().filter(|(_, count)| *count > 0).collect()
}

pub(crate) fn bytes(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).unwrap();
    bytes
}

pub(crate) fn array(values: impl IntoIterator<Item = Value>) -> Value {
    Value::Array(values.into_iter().collect())
}

pub(crate) fn map<'a>(pairs: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    Value::Map(pairs.into_iter().map(|(key, value)| (key.into(), value)).collect())
}

pub(crate) fn numbers<N: Into<Value> + Copy>(values: &[N]) -> Value {
    array(values.iter().map(|&value| value.into()))
}

pub(crate) fn batch_of(events: impl IntoIterator<Item = Value>) -> Vec<u8> {
    bytes(&array([Value::F64(1.5), array(events), 0.into()]))
}

/// A store with blocks of two tokens, as a map, and more fields or other values for some.
pub(crate) fn store<'a>(
    hashes: &[u64],
    parent: Option<u64>,
    tokens: &[u32],
    more: impl IntoIterator<Item = (&'a str, Value)>,
) -> Value {
    let mut fields = vec![
        ("type", Value::from("BlockStored")),
        ("block_hashes", numbers(hashes)),
        ("parent_block_hash", parent.map_or(Value::Nil, Value::from)),
        ("token_ids", numbers(tokens)),
        ("block_size", 2.into()),
    ];
    for (key, value) in more {
        fields.retain(|(known, _)| *known != key);
        fields.push((key, value));
    }
    map(fields)
}

pub(crate) fn remove<'a>(hashes: &[u64], more: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    map([("type", "BlockRemoved".into()), ("block_hashes", numbers(hashes))].into_iter().chain(more))
}

/// A chain in the GPU's memory, block by block.
pub(crate) fn stored(parent: Option<u64>, blocks: &[(u64, BlockHash)]) -> Event {
    let blocks = blocks.iter().map(|&(engine, content)| (engine, Some(content))).collect::<Vec<_>>();
    stored_in(Tier::Gpu, parent, &blocks)
}

pub(crate) fn stored_in(tier: Tier, parent: Option<u64>, blocks: &[(u64, Option<BlockHash>)]) -> Event {
    let blocks =
        blocks.iter().map(|&(engine, content)| StoredBlock { engine: EngineHash(engine), content }).collect();
    Event::Stored(Stored { tier, parent: parent.map(EngineHash), blocks })
}

pub(crate) fn removed(tier: Tier, hashes: &[u64]) -> Event {
    let hashes = hashes.iter().copied().map(EngineHash).collect();
    Event::Removed(Removed { tier, hashes, remaining_copies: None })
}

pub(crate) fn plain(tokens: &[u32]) -> BlockHash {
    content(tokens, None, None, &[])
}
