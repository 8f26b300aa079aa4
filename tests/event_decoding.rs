//! What engines publish, decoded and normalised: recorded payloads, every encoding of the same batch, hostile
//! bytes, and each reason for which something is dropped.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

use kvroute::event::wire::{Batch, DecodeError, decode};
use kvroute::event::{EngineHash, Event, Normaliser, Rejection, Removed, Stored, StoredBlock, Tier};
use kvroute::hash::{BlockHash, BlockSize};
use proptest::prelude::*;
use rmpv::Value;
use serde_json::Value as Json;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const FRAMES: &str = include_str!("fixtures/kv_event_frames.jsonl");

// ---------------------------------------------------------------- reference and writing

/// The content hash of one block, from its definition.
fn content(tokens: &[u32], lora: Option<&str>, salt: Option<&str>, objects: &[u64]) -> BlockHash {
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

fn identifier(text: &str) -> u64 {
    xxh3_64_with_seed(text.as_bytes(), 0)
}

fn normaliser(block_size: u32) -> Normaliser {
    Normaliser::new(BlockSize::new(block_size).unwrap(), false)
}

fn decoded(payload: &[u8]) -> Batch {
    let mut batch = Batch::new();
    decode(payload, &mut batch).unwrap();
    batch
}

/// Feeds one payload to a normaliser.
fn feed(normaliser: &mut Normaliser, payload: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    normaliser.normalise(&decoded(payload), &mut events);
    events
}

/// What one payload comes to on a fresh rank with blocks of 2 tokens, with the reasons that were counted.
fn read(payload: &[u8]) -> (Vec<Event>, Vec<(&'static str, u64)>) {
    let mut normaliser = normaliser(2);
    let events = feed(&mut normaliser, payload);
    (events, counted(&normaliser))
}

fn counted(normaliser: &Normaliser) -> Vec<(&'static str, u64)> {
    normaliser.rejections().iter().filter(|(_, count)| *count > 0).collect()
}

fn bytes(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).unwrap();
    bytes
}

fn array(values: impl IntoIterator<Item = Value>) -> Value {
    Value::Array(values.into_iter().collect())
}

fn map<'a>(pairs: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    Value::Map(pairs.into_iter().map(|(key, value)| (key.into(), value)).collect())
}

fn numbers<N: Into<Value> + Copy>(values: &[N]) -> Value {
    array(values.iter().map(|&value| value.into()))
}

fn batch_of(events: impl IntoIterator<Item = Value>) -> Vec<u8> {
    bytes(&array([Value::F64(1.5), array(events), 0.into()]))
}

/// A store with blocks of two tokens, as a map, and more fields or other values for some.
fn store<'a>(
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

fn remove<'a>(hashes: &[u64], more: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    map([("type", "BlockRemoved".into()), ("block_hashes", numbers(hashes))].into_iter().chain(more))
}

/// A chain in the GPU's memory, block by block.
fn stored(parent: Option<u64>, blocks: &[(u64, BlockHash)]) -> Event {
    let blocks = blocks.iter().map(|&(engine, content)| (engine, Some(content))).collect::<Vec<_>>();
    stored_in(Tier::Gpu, parent, &blocks)
}

fn stored_in(tier: Tier, parent: Option<u64>, blocks: &[(u64, Option<BlockHash>)]) -> Event {
    let blocks =
        blocks.iter().map(|&(engine, content)| StoredBlock { engine: EngineHash(engine), content }).collect();
    Event::Stored(Stored { tier, parent: parent.map(EngineHash), blocks })
}

fn removed(tier: Tier, hashes: &[u64]) -> Event {
    let hashes = hashes.iter().copied().map(EngineHash).collect();
    Event::Removed(Removed { tier, hashes, remaining_copies: None })
}

fn plain(tokens: &[u32]) -> BlockHash {
    content(tokens, None, None, &[])
}

// ---------------------------------------------------------------- recorded payloads

/// The payloads of the fixture; its first line says where they come from.
fn frames() -> Vec<Json> {
    FRAMES.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn payload(frame: &Json) -> Vec<u8> {
    hex::decode(frame["payload"].as_str().unwrap()).unwrap()
}

fn u64s(list: &Json) -> Vec<u64> {
    list.as_array().unwrap().iter().map(|value| value.as_u64().unwrap()).collect()
}

fn tier(name: &Json) -> Tier {
    Tier::ALL.into_iter().find(|tier| Some(tier.name()) == name.as_str()).unwrap()
}

fn expected(event: &Json) -> Event {
    if event == "cleared" {
        return Event::Cleared(None);
    }
    if let Some(gone) = event.get("removed") {
        return removed(tier(&gone["tier"]), &u64s(&gone["hashes"]));
    }
    let fact = &event["stored"];
    let tokens: Vec<u32> = u64s(&fact["tokens"]).iter().map(|&token| u32::try_from(token).unwrap()).collect();
    let size = usize::try_from(fact["block_size"].as_u64().unwrap()).unwrap();
    let blocks: Vec<_> = u64s(&fact["hashes"])
        .into_iter()
        .zip(tokens.chunks(size))
        .enumerate()
        .map(|(at, (engine, tokens))| {
            let objects = fact["objects"].get(at.to_string());
            let objects = objects.map_or_else(Vec::new, |list| {
                list.as_array().unwrap().iter().map(|id| identifier(id.as_str().unwrap())).collect()
            });
            let hash = content(tokens, fact["lora"].as_str(), fact["salt"].as_str(), &objects);
            (engine, Some(hash))
        })
        .collect();
    stored_in(tier(&fact["tier"]), fact["parent"].as_u64(), &blocks)
}

#[test]
fn recorded_payloads_say_what_they_are_known_to_say() {
    let frames = frames();
    assert!(frames.len() >= 24, "the fixture lost lines");
    for frame in frames {
        let from = &frame["from"];
        let batch = decoded(&payload(&frame));
        assert_eq!(batch.timestamp_ms, frame["timestamp_ms"].as_u64().unwrap(), "{from}");
        assert_eq!(batch.rank.map(u64::from), frame["rank"].as_u64(), "{from}");
        assert!(!batch.truncated, "{from}");

        let facts = frame["events"].as_array().unwrap();
        let block_size = facts.iter().find_map(|event| event["stored"]["block_size"].as_u64()).unwrap_or(2);
        let mut normaliser = normaliser(u32::try_from(block_size).unwrap());
        let mut events = vec![Event::Cleared(None)];
        normaliser.normalise(&batch, &mut events);
        assert_eq!(events, facts.iter().map(expected).collect::<Vec<_>>(), "{from}");

        let reasons: Vec<_> =
            counted(&normaliser).into_iter().map(|(name, n)| (name.to_owned(), n)).collect();
        let known: Vec<_> = frame.get("rejected").and_then(Json::as_object).map_or_else(Vec::new, |map| {
            map.iter().map(|(name, count)| (name.clone(), count.as_u64().unwrap())).collect()
        });
        assert_eq!(reasons, known, "{from}");
    }
}

#[test]
fn a_chain_told_over_several_batches_keeps_the_salt_it_began_with() {
    let mut rank = normaliser(2);
    let salted = |tokens: &[u32]| content(tokens, None, Some("s1"), &[]);
    let head =
        store(&[1, 2], None, &[1, 2, 3, 4], [("extra_keys", array([array(["s1".into()]), Value::Nil]))]);
    let head = feed(&mut rank, &batch_of([head]));
    assert_eq!(head, [stored(None, &[(1, salted(&[1, 2])), (2, salted(&[3, 4]))])]);
    let child =
        feed(&mut rank, &batch_of([store(&[3], Some(2), &[5, 6], [("extra_keys", array([Value::Nil]))])]));
    assert_eq!(child, [stored(Some(2), &[(3, salted(&[5, 6]))])]);
    assert_eq!(rank.salted_blocks(), 3);

    rank.reset();
    let child = feed(&mut rank, &batch_of([store(&[4], Some(2), &[5, 6], [])]));
    assert_eq!(
        child,
        [stored(Some(2), &[(4, plain(&[5, 6]))])],
        "a new incarnation knows nothing of the old"
    );
}

// ---------------------------------------------------------------- one batch, many encodings

#[derive(Clone, Debug)]
enum Said {
    Stored {
        hashes: Vec<u64>,
        parent: Option<u64>,
        tokens: Vec<u32>,
        lora: Option<String>,
        salt: Option<String>,
    },
    Removed {
        hashes: Vec<u64>,
        tier: Tier,
    },
    Cleared,
}

/// Which of the encodings in use, as bits: map or array, digest or number, and so on.
#[derive(Clone, Copy, Debug)]
struct Style(u32);

impl Style {
    const fn is(self, bit: u32) -> bool {
        self.0 >> bit & 1 == 1
    }

    fn hash(self, hash: u64) -> Value {
        match self.0 & 3 {
            0 => hash.into(),
            1 => hash.cast_signed().into(),
            2 => Value::Binary([[0xab; 24].as_slice(), &hash.to_be_bytes()].concat()),
            _ => Value::Binary(hash.to_be_bytes().to_vec()),
        }
    }

    fn hashes(self, hashes: &[u64]) -> Value {
        array(hashes.iter().map(|&hash| self.hash(hash)))
    }

    fn medium(self, tier: Tier) -> Value {
        match tier {
            Tier::Gpu if self.is(2) => Value::Nil,
            Tier::Gpu => "GPU".into(),
            Tier::Host => "CPU_PINNED".into(),
            Tier::Disk => "DISK".into(),
            Tier::External => "EXTERNAL".into(),
        }
    }

    /// As a map, keys in either order, with a key that nobody knows.
    fn named(self, tag: &str, mut pairs: Vec<(&'static str, Value)>) -> Value {
        pairs.push(("of_tomorrow", map([("x", array([Value::Nil]))])));
        pairs.push(("type", tag.into()));
        if self.is(3) {
            pairs.reverse();
        }
        map(pairs)
    }

    /// As an array, with more elements than anybody knows.
    fn positional(self, tag: &str, fields: Vec<Value>) -> Value {
        let more = if self.is(3) { vec![array([1.into()]), Value::Boolean(true)] } else { Vec::new() };
        array([tag.into()].into_iter().chain(fields).chain(more))
    }

    fn event(self, said: &Said) -> Value {
        let by_name = self.is(4);
        match said {
            Said::Cleared if by_name => self.named("AllBlocksCleared", Vec::new()),
            Said::Cleared => array(["AllBlocksCleared".into()]),
            Said::Removed { hashes, tier } => {
                let (hashes, medium) = (self.hashes(hashes), self.medium(*tier));
                if by_name {
                    self.named("BlockRemoved", vec![("block_hashes", hashes), ("medium", medium)])
                } else {
                    let rest = [const { Value::Nil }; 6];
                    self.positional("BlockRemoved", [hashes, medium].into_iter().chain(rest).collect())
                }
            }
            Said::Stored { hashes, parent, tokens, lora, salt } => {
                let lora_name = lora.as_deref().map_or(Value::Nil, Value::from);
                let lora_id = if lora.is_some() { 1.into() } else { Value::Nil };
                let parent = parent.map_or(Value::Nil, |hash| self.hash(hash));
                let (hashes, tokens) = (self.hashes(hashes), numbers(tokens));
                if by_name {
                    let mut pairs = vec![
                        ("block_hashes", hashes),
                        ("parent_block_hash", parent),
                        ("token_ids", tokens),
                        ("block_size", 2.into()),
                        ("lora_id", lora_id),
                        ("lora_name", lora_name),
                    ];
                    pairs.extend(salt.as_deref().map(|salt| ("cache_salt", salt.into())));
                    return self.named("BlockStored", pairs);
                }
                let keys = salt.as_deref().map_or(Value::Nil, |salt| {
                    let marked = format!("dynamo-cache-salt:{salt}");
                    array([array(lora.as_deref().map(Value::from).into_iter().chain([marked.into()]))])
                });
                let fields =
                    vec![hashes, parent, tokens, 2.into(), lora_id, self.medium(Tier::Gpu), lora_name, keys];
                let rest = [0.into(), Value::Nil, Value::Nil, "LOCAL".into(), Value::Nil];
                self.positional("BlockStored", fields.into_iter().chain(rest).collect())
            }
        }
    }

    fn batch(self, rank: Option<u32>, events: Vec<Value>) -> Vec<u8> {
        let rank = rank.map(Value::from);
        let seconds = if self.is(5) { Value::F64(7.0) } else { 7.into() };
        bytes(&if self.is(6) {
            map([
                ("ts", seconds),
                ("events", array(events)),
                ("data_parallel_rank", rank.unwrap_or(Value::Nil)),
            ])
        } else if self.is(7) {
            array([seconds, array(events), rank.unwrap_or(Value::Nil), "of tomorrow".into()])
        } else {
            array([seconds, array(events)].into_iter().chain(rank))
        })
    }
}

/// What the sayings come to, without any wire between. Salts are told on every store, so none is carried.
fn events_of(said: &[Said]) -> Vec<Event> {
    said.iter()
        .map(|said| match said {
            Said::Cleared => Event::Cleared(None),
            Said::Removed { hashes, tier } => removed(*tier, hashes),
            Said::Stored { hashes, parent, tokens, lora, salt } => {
                let content =
                    tokens.chunks(2).map(|tokens| content(tokens, lora.as_deref(), salt.as_deref(), &[]));
                stored(*parent, &hashes.iter().copied().zip(content).collect::<Vec<_>>())
            }
        })
        .collect()
}

fn name() -> impl Strategy<Value = Option<String>> {
    proptest::option::of("[a-z]{1,9}")
}

fn said() -> impl Strategy<Value = Said> {
    let store = (1..6_usize, any::<u64>(), any::<bool>(), name(), name()).prop_flat_map(
        |(blocks, first, has_parent, lora, salt)| {
            proptest::collection::vec(any::<u32>(), blocks * 2).prop_map(move |tokens| Said::Stored {
                hashes: (1..=blocks as u64).map(|at| first.wrapping_add(at)).collect(),
                // Without a parent a salt would be told apart from none only by the store itself, which is the
                // same; with one it would be inherited, so a parent is one that was never stored.
                parent: has_parent.then_some(first),
                tokens,
                lora: lora.clone(),
                salt: salt.clone(),
            })
        },
    );
    let remove = (proptest::collection::vec(any::<u64>(), 1..5), 0..4_usize)
        .prop_map(|(hashes, tier)| Said::Removed { hashes, tier: Tier::ALL[tier] });
    prop_oneof![4 => store, 2 => remove, 1 => Just(Said::Cleared)]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_encoding_of_a_batch_says_the_same(
        said in proptest::collection::vec((said(), any::<u32>()), 0..12),
        envelope in any::<u32>(),
        rank in proptest::option::of(any::<u32>()),
    ) {
        let events = said.iter().map(|(said, style)| Style(*style).event(said)).collect();
        let batch = decoded(&Style(envelope).batch(rank, events));
        prop_assert_eq!((batch.rank, batch.timestamp_ms, batch.len()), (rank, 7000, said.len()));
        let mut normaliser = normaliser(2);
        let mut events = Vec::new();
        normaliser.normalise(&batch, &mut events);
        let said: Vec<_> = said.into_iter().map(|(said, _)| said).collect();
        prop_assert_eq!(events, events_of(&said));
        prop_assert_eq!(normaliser.rejections().total(), 0);
    }

    #[test]
    fn random_bytes_do_no_harm(payload in proptest::collection::vec(any::<u8>(), 0..400)) {
        survive(&payload);
    }

    #[test]
    fn damaged_payloads_do_no_harm(
        frame in any::<prop::sample::Index>(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        cut_it in any::<bool>(),
    ) {
        let frames = frames();
        let mut payload = payload(frame.get(&frames));
        for (at, byte) in damage {
            *at.get_mut(&mut payload) = byte;
        }
        if cut_it {
            payload.truncate(cut.index(payload.len()));
        }
        survive(&payload);
    }

    #[test]
    fn a_cut_batch_gives_the_events_before_the_cut(cut in 1..1000_usize) {
        let whole = batch_of((0..20).map(|at| remove(&[at], [])));
        let cut = cut.min(whole.len() - 1);
        let mut batch = Batch::new();
        match decode(&whole[..cut], &mut batch) {
            // Head, timestamp and the length of the list of events.
            Err(error) => prop_assert!(cut < 13 && error == DecodeError::Truncated),
            Ok(()) => {
                prop_assert!(batch.truncated);
                let mut normaliser = normaliser(2);
                let mut events = Vec::new();
                normaliser.normalise(&batch, &mut events);
                let all: Vec<_> = (0..20).map(|at| removed(Tier::Gpu, &[at])).collect();
                prop_assert!(all.starts_with(&events));
                // Only the rank can be cut off without a loss among the events.
                prop_assert_eq!(normaliser.rejections().get(Rejection::Truncated), u64::from(events.len() < 20));
            }
        }
    }
}

/// Decodes and normalises whatever it is: no panic, and no more out of it than its bytes can hold.
fn survive(payload: &[u8]) {
    let mut batch = Batch::new();
    if decode(payload, &mut batch).is_err() {
        assert!(batch.is_empty() && batch.rejected.total() == 0);
        return;
    }
    assert!(batch.reserved_bytes() <= 64 * payload.len() + 4096, "{} bytes", batch.reserved_bytes());
    for block_size in [1, 2, 8, 32] {
        let mut events = Vec::new();
        normaliser(block_size).normalise(&batch, &mut events);
        assert!(events.len() <= batch.len());
    }
}

#[test]
fn a_length_that_lies_reserves_nothing() {
    let mut payload = vec![0x92, 0xc0, 0x91, 0x96, 0xab];
    payload.extend(b"BlockStored");
    payload.extend([0xdd, 0xff, 0xff, 0xff, 0xff, 1, 2, 3]);
    let batch = decoded(&payload);
    assert!(batch.truncated && batch.is_empty());
    assert_eq!(batch.rejected.get(Rejection::Truncated), 1);
    assert!(batch.reserved_bytes() < 4096);
}

#[test]
fn the_buffers_of_a_batch_are_reused() {
    let mut batch = Batch::new();
    let large = batch_of([store(&(0..500).collect::<Vec<_>>(), None, &(0..1000).collect::<Vec<_>>(), [])]);
    decode(&large, &mut batch).unwrap();
    let reserved = batch.reserved_bytes();
    for _ in 0..3 {
        decode(&large, &mut batch).unwrap();
        assert_eq!((batch.len(), batch.reserved_bytes()), (1, reserved));
    }
    decode(&batch_of([]), &mut batch).unwrap();
    assert!(batch.is_empty());
}

// ---------------------------------------------------------------- versions and shapes

#[test]
fn releases_that_append_fields_say_the_same() {
    let (hashes, tokens) = (numbers(&[1_u64, 2]), numbers(&[1_u32, 2, 3, 4]));
    let oldest = ["BlockStored".into(), hashes, Value::Nil, tokens, 2.into(), Value::Nil];
    let appended: [(&str, Vec<Value>); 7] = [
        ("no medium", vec![]),
        ("0.11", vec!["GPU".into()]),
        ("0.16", vec!["GPU".into(), Value::Nil]),
        ("0.20", vec!["GPU".into(), Value::Nil, array([Value::Nil, Value::Nil]), 0.into()]),
        (
            "0.23",
            vec![
                "GPU".into(),
                Value::Nil,
                Value::Nil,
                0.into(),
                "full_attention".into(),
                Value::Nil,
                "LOCAL".into(),
                Value::Nil,
            ],
        ),
        ("metadata map", vec!["GPU".into(), map([("session_id", "x".into())])]),
        (
            "objects before the group",
            vec![
                "GPU".into(),
                Value::Nil,
                Value::Nil,
                Value::Nil,
                0.into(),
                "full_attention".into(),
                64.into(),
                "LOCAL".into(),
            ],
        ),
    ];
    let expected = [stored(None, &[(1, plain(&[1, 2])), (2, plain(&[3, 4]))])];
    for (release, fields) in appended {
        let event = array(oldest.iter().cloned().chain(fields));
        assert_eq!(read(&batch_of([event])), (expected.to_vec(), vec![]), "{release}");
    }
}

#[test]
fn salts_are_found_where_each_engine_puts_them() {
    let of = |lora: Option<&str>, salt: Option<&str>, objects: [&[u64]; 2]| {
        let block = |at: usize, tokens: &[u32]| content(tokens, lora, salt, objects[at]);
        vec![stored(None, &[(1, block(0, &[1, 2])), (2, block(1, &[3, 4]))])]
    };
    let salted = |lora| of(lora, Some("s"), [&[], &[]]);
    let keys = |first: &[Value], second: &[Value]| {
        ("extra_keys", array([array(first.to_vec()), array(second.to_vec())]))
    };
    let text = |text: &str| Value::from(text);
    let router = format!("0123456789abcdef{}", "0".repeat(48));
    let digest = "ab".repeat(32);
    let image = || array([text("image"), (-3).into()]);
    let lora = ("lora_name", text("ad1"));
    type Case<'a> = (&'a str, Vec<(&'a str, Value)>, Vec<Event>);
    let cases: Vec<Case<'_>> = vec![
        ("field", vec![("cache_salt", text("s"))], salted(None)),
        ("field and key", vec![("cache_salt", text("s")), keys(&[text("s")], &[])], salted(None)),
        ("empty field", vec![("cache_salt", text(""))], of(None, None, [&[], &[]])),
        ("marked", vec![keys(&[text("dynamo-cache-salt:s")], &[])], salted(None)),
        ("native", vec![keys(&[text("s")], &[])], salted(None)),
        ("key alone", vec![("extra_keys", array([text("s"), Value::Nil]))], salted(None)),
        (
            "adapter",
            vec![lora.clone(), keys(&[text("ad1")], &[text("ad1")])],
            of(Some("ad1"), None, [&[], &[]]),
        ),
        (
            "adapter, native",
            vec![lora.clone(), keys(&[text("ad1"), text("s")], &[text("ad1")])],
            salted(Some("ad1")),
        ),
        (
            "salt named as the adapter",
            vec![lora, keys(&[text("ad1"), text("ad1")], &[text("ad1")])],
            of(Some("ad1"), Some("ad1"), [&[], &[]]),
        ),
        (
            "image, native",
            vec![keys(&[image(), text("s")], &[])],
            of(None, Some("s"), [&[identifier("image")], &[]]),
        ),
        ("images only", vec![keys(&[image()], &[image()])], of(None, None, [&[identifier("image")]; 2])),
        (
            "an image without offset that spans blocks",
            vec![keys(&[text("i")], &[text("i")])],
            of(None, None, [&[identifier("i")]; 2]),
        ),
        (
            "an image without offset, native",
            vec![keys(&[text("i"), text("s")], &[text("i")])],
            of(None, Some("s"), [&[identifier("i")]; 2]),
        ),
        (
            "the router's own form",
            vec![keys(&[text(&router)], &[])],
            of(None, None, [&[0x0123_4567_89ab_cdef], &[]]),
        ),
        ("a digest as salt", vec![keys(&[text(&digest)], &[])], of(None, Some(&digest), [&[], &[]])),
        (
            "objects told by hash",
            vec![
                keys(&[image(), text("s")], &[]),
                (
                    "block_mm_infos",
                    array([map([("mm_objects", array([map([("mm_hash", 9.into())])]))]), Value::Nil]),
                ),
            ],
            of(None, Some("s"), [&[9], &[]]),
        ),
        (
            "embeddings",
            vec![keys(&[text("s"), Value::Binary(vec![1, 2])], &[Value::Binary(vec![3])])],
            of(None, Some("s"), [&[0x0102], &[3]]),
        ),
        (
            "keys that nobody knows",
            vec![keys(&[7.into(), Value::F64(1.0), true.into(), array([array([])]), Value::Nil], &[])],
            of(None, None, [&[], &[]]),
        ),
    ];
    for (name, more, expected) in cases {
        let event = store(&[1, 2], None, &[1, 2, 3, 4], more);
        assert_eq!(read(&batch_of([event])), (expected, vec![]), "{name}");
    }
}

#[test]
fn a_text_below_a_parent_is_an_object_and_not_a_salt() {
    let event = store(&[2], Some(1), &[1, 2], [("extra_keys", array([array(["image".into()])]))]);
    let expected = stored(Some(1), &[(2, content(&[1, 2], None, None, &[identifier("image")]))]);
    assert_eq!(read(&batch_of([event])), (vec![expected], vec![]));
}

#[test]
fn sglangs_metadata_map_stands_where_the_adapters_name_does() {
    let event = |metadata: Value| {
        let hashes = numbers(&[1_u64]);
        array([
            "BlockStored".into(),
            hashes,
            Value::Nil,
            numbers(&[1_u32, 2]),
            2.into(),
            Value::Nil,
            "GPU".into(),
            metadata,
        ])
    };
    let salted = map([("session_id", "x".into()), ("cache_salt", "s".into())]);
    let expected = stored(None, &[(1, content(&[1, 2], None, Some("s"), &[]))]);
    assert_eq!(read(&batch_of([event(salted)])), (vec![expected], vec![]));
    let expected = stored(None, &[(1, plain(&[1, 2]))]);
    assert_eq!(read(&batch_of([event(map([("session_id", "x".into())]))])), (vec![expected], vec![]));
}

#[test]
fn pairs_of_tokens_are_hashed_with_a_token_of_look_ahead() {
    let pairs = array([[1, 2], [2, 3], [3, 4], [4, 5]].map(|pair| numbers(&pair)));
    let event = store(&[1, 2], None, &[], [("token_ids", pairs)]);
    let expected = stored(None, &[(1, plain(&[1, 2, 3])), (2, plain(&[3, 4, 5]))]);
    assert_eq!(read(&batch_of([event])), (vec![expected.clone()], vec![]));

    let mut eagle = Normaliser::new(BlockSize::new(2).unwrap(), true);
    let flat = store(&[1, 2], None, &[1, 2, 3, 4, 5], []);
    assert_eq!(feed(&mut eagle, &batch_of([flat])), [expected], "the same from flat tokens, when configured");
}

#[test]
fn lower_tiers_may_name_blocks_only() {
    for (medium, tier) in [("CPU", Tier::Host), ("DISK", Tier::Disk), ("SHARED", Tier::External)] {
        for block_size in [Value::Nil, 0.into(), (-1).into()] {
            let more = [("medium", medium.into()), ("block_size", block_size)];
            let expected = stored_in(tier, Some(9), &[(1, None), (2, None)]);
            assert_eq!(read(&batch_of([store(&[1, 2], Some(9), &[], more)])), (vec![expected], vec![]));
        }
    }
}

#[test]
fn copies_that_remain_and_tiers_that_clear_are_passed_on() {
    let removal = |counts: Value| batch_of([remove(&[1, 2], [("remaining_copy_counts", counts)])]);
    let told = |remaining_copies| {
        let hashes = vec![EngineHash(1), EngineHash(2)];
        vec![Event::Removed(Removed { tier: Tier::Gpu, hashes, remaining_copies })]
    };
    assert_eq!(read(&removal(numbers(&[0, 3]))).0, told(Some(vec![0, 3])));
    for odd in [numbers(&[1]), Value::Nil, array(["x".into(), 1.into()])] {
        assert_eq!(read(&removal(odd)), (told(None), vec![]));
    }
    let cleared = |more: Vec<(&str, Value)>| {
        read(&batch_of([map([("type", "AllBlocksCleared".into())].into_iter().chain(more))])).0
    };
    assert_eq!(cleared(vec![]), [Event::Cleared(None)]);
    assert_eq!(cleared(vec![("medium", "CPU".into())]), [Event::Cleared(Some(Tier::Host))]);
}

#[test]
fn groups_are_known_by_the_stores_that_named_their_kind() {
    let mut rank = normaliser(2);
    let of_group = |group: i64, kind: Option<&str>| {
        let kind = kind.map(|kind| ("kv_cache_spec_kind", kind.into()));
        [("group_idx", group.into())].into_iter().chain(kind).collect::<Vec<_>>()
    };
    let batch = batch_of([
        remove(&[1], of_group(0, None)),
        remove(&[2], of_group(1, None)),
        store(&[3], None, &[1, 2], of_group(1, Some("mla_attention"))),
        store(&[4], None, &[1, 2], of_group(0, Some("sliding_window"))),
        store(&[5], None, &[1, 2], of_group(2, Some("a_kind_of_tomorrow"))),
        remove(&[3], of_group(1, None)),
        remove(&[4], of_group(0, None)),
        remove(&[6], []),
        store(&[7], None, &[], [("medium", "DISK".into()), ("group_idx", 9.into())]),
    ]);
    assert_eq!(
        feed(&mut rank, &batch),
        [
            removed(Tier::Gpu, &[1]),
            stored(None, &[(3, plain(&[1, 2]))]),
            removed(Tier::Gpu, &[3]),
            removed(Tier::Gpu, &[6]),
            stored_in(Tier::Disk, None, &[(7, None)]),
        ]
    );
    assert_eq!(
        counted(&rank),
        [
            ("non_main_attention_kind", 1),
            ("unknown_kind", 1),
            ("non_main_attention_group", 1),
            ("unlearned_group_idx", 1)
        ]
    );
}

// ---------------------------------------------------------------- what is dropped, and what is not

#[test]
fn a_bad_event_costs_itself_only() {
    let bad: Vec<(&str, Value)> = vec![
        ("malformed", Value::Nil),
        ("malformed", 7.into()),
        ("malformed", array([])),
        ("malformed", array([1.into()])),
        ("malformed", map([("block_hashes", numbers(&[1]))])),
        ("malformed", array(["BlockStored".into()])),
        ("malformed", store(&[1], None, &[], [("token_ids", numbers(&[-1]))])),
        ("malformed", store(&[1], None, &[], [("token_ids", numbers(&[1_u64 << 32]))])),
        ("malformed", store(&[1], None, &[], [("token_ids", array([numbers(&[1, 2]), 3.into()]))])),
        ("malformed", store(&[1], None, &[], [("token_ids", array([numbers(&[1, 2, 3])]))])),
        ("malformed", store(&[], None, &[1, 2], [("block_hashes", array([Value::Nil]))])),
        ("malformed", store(&[1], None, &[1, 2], [("lora_name", array([]))])),
        (
            "malformed",
            store(
                &[1],
                None,
                &[1, 2],
                [("block_mm_infos", array([map([("mm_objects", array([map([])]))])]))],
            ),
        ),
        ("short_hash", store(&[], None, &[1, 2], [("block_hashes", array([Value::Binary(vec![1; 7])]))])),
        ("short_hash", store(&[1], None, &[1, 2], [("parent_block_hash", Value::Binary(vec![]))])),
        ("unknown_tag", array(["BlockInactive".into(), 1.into()])),
        ("unknown_tag", map([("block_hashes", "odd".into()), ("type", "BlockInactive".into())])),
        ("ignored_event", array(["Ignored".into()])),
    ];
    for (reason, event) in bad {
        let good = || store(&[8], None, &[1, 2], [("lora_name", "ad1".into())]);
        let payload = batch_of([remove(&[5], []), event.clone(), good()]);
        let survivors =
            vec![removed(Tier::Gpu, &[5]), stored(None, &[(8, content(&[1, 2], Some("ad1"), None, &[]))])];
        assert_eq!(read(&payload), (survivors, vec![(reason, 1)]), "{event}");
        assert_eq!(decoded(&payload).rank, Some(0), "{event}");
    }
}

#[test]
fn each_reason_to_drop_a_readable_event_is_counted() {
    let dropped: Vec<(&str, Value)> = vec![
        ("unsupported_ownership", store(&[1], None, &[1, 2], [("ownership", "kvcr".into())])),
        ("unknown_ownership", remove(&[1], [("ownership", "someone".into())])),
        ("unknown_ownership", array(["AllBlocksCleared".into(), "someone".into()])),
        ("non_local_locality", store(&[1], None, &[1, 2], [("locality", "REMOTE".into())])),
        ("non_local_locality", remove(&[1], [("locality", 7.into())])),
        ("unknown_medium", store(&[1], None, &[1, 2], [("medium", "TAPE".into())])),
        ("unknown_medium", remove(&[1], [("medium", 7.into())])),
        ("unknown_medium", map([("type", "AllBlocksCleared".into()), ("medium", "TAPE".into())])),
        ("non_main_attention_kind", store(&[1], None, &[1, 2], [("kv_cache_spec_kind", "mamba".into())])),
        ("unknown_kind", store(&[1], None, &[1, 2], [("kv_cache_spec_kind", "other".into())])),
        ("unlearned_group_idx", remove(&[1], [("group_idx", 3.into())])),
        ("empty_store", store(&[], None, &[1, 2], [])),
        ("repeated_block", store(&[1, 2, 1], None, &[1, 2, 3, 4, 5, 6], [])),
        ("repeated_block", store(&[1, 2], Some(2), &[1, 2, 3, 4], [])),
        ("unnamed_lora", store(&[1], None, &[1, 2], [("lora_id", 1.into())])),
        ("block_size_mismatch", store(&[1], None, &[1, 2], [("block_size", 4.into())])),
        ("block_size_mismatch", store(&[1], None, &[1, 2], [("block_size", Value::Nil)])),
        ("tokens_run_out", store(&[1], None, &[1], [])),
        ("tokens_run_out", store(&[1], None, &[], [])),
    ];
    for (reason, event) in dropped {
        assert_eq!(read(&batch_of([event.clone()])), (vec![], vec![(reason, 1)]), "{event}");
    }
}

#[test]
fn blocks_before_the_tokens_run_out_are_kept() {
    let event = store(&[1, 2, 3], None, &[1, 2, 3, 4, 5], []);
    let kept = stored(None, &[(1, plain(&[1, 2])), (2, plain(&[3, 4]))]);
    assert_eq!(read(&batch_of([event])), (vec![kept], vec![("tokens_run_out", 1)]));
}

#[test]
fn a_salt_too_large_to_remember_is_used_and_counted() {
    let huge = "x".repeat(64 << 20);
    let mut rank = normaliser(2);
    let event = store(&[1], None, &[1, 2], [("cache_salt", huge.as_str().into())]);
    let expected = stored(None, &[(1, content(&[1, 2], None, Some(&huge), &[]))]);
    assert_eq!(feed(&mut rank, &batch_of([event])), [expected]);
    assert_eq!((counted(&rank), rank.salted_blocks()), (vec![("salt_memory_full", 1)], 0));
}

#[test]
fn a_block_cached_under_two_salts_has_no_unsalted_children() {
    let mut rank = normaliser(2);
    let salt = |salt: &str| [("cache_salt", Value::from(salt))];
    feed(
        &mut rank,
        &batch_of([store(&[1], None, &[1, 2], salt("s")), store(&[1], None, &[1, 2], salt("t"))]),
    );
    let child = || store(&[2], Some(1), &[3, 4], []);
    assert_eq!(feed(&mut rank, &batch_of([child()])), []);
    assert_eq!(counted(&rank), [("ambiguous_cache_namespace", 1)]);
    let own = feed(&mut rank, &batch_of([store(&[2], Some(1), &[3, 4], salt("s"))]));
    assert_eq!(own, [stored(Some(1), &[(2, content(&[3, 4], None, Some("s"), &[]))])]);

    let gone = feed(&mut rank, &batch_of([array(["AllBlocksCleared".into()]), child()]));
    assert_eq!(gone, [Event::Cleared(None), stored(Some(1), &[(2, plain(&[3, 4]))])]);
}

#[test]
fn only_a_payload_that_is_no_batch_is_an_error() {
    let mut batch = Batch::new();
    for (payload, error) in [
        (vec![], DecodeError::Truncated),
        (bytes(&"x".into()), DecodeError::NotABatch { found: "a string" }),
        (bytes(&array([])), DecodeError::NoEvents),
        (bytes(&array([1.into()])), DecodeError::NoEvents),
        (bytes(&map([("ts", 1.into())])), DecodeError::NoEvents),
        (bytes(&array([1.into(), 2.into()])), DecodeError::EventsNotAnArray { found: "an integer" }),
        (
            bytes(&map([("events", true.into())])),
            DecodeError::EventsNotAnArray { found: "a boolean or an extension value" },
        ),
    ] {
        assert_eq!(decode(&payload, &mut batch), Err(error));
        assert!(batch.is_empty());
    }
    for odd in [Value::Nil, (-3).into(), "x".into(), Value::F64(f64::NAN), Value::F64(-1.0), map([])] {
        decode(&bytes(&array([odd.clone(), array([]), odd.clone()])), &mut batch).unwrap();
        assert_eq!((batch.timestamp_ms, batch.rank), (0, None), "{odd}");
    }
}
