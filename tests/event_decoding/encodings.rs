//! One meaning, many encodings.

use kvroute::event::{EngineHash, Event, Normaliser, Removed, Tier};
use kvroute::hash::BlockSize;
use proptest::prelude::*;
use rmpv::Value;

use crate::engine::*;

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
pub(crate) struct Style(pub(crate) u32);

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

    pub(crate) fn batch(self, rank: Option<u32>, events: Vec<Value>) -> Vec<u8> {
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
}

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
        vec![Event::Removed(Removed { tier: Tier::Gpu, hashes: hashes.into(), remaining_copies })]
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
