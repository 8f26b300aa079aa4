#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]
#![cfg(feature = "server")]
//! The mock engine's cache: its invariants under random use, and its order of eviction against a recorded
//! vLLM.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kvroute::event::EngineHash;
use kvroute::worker::mock::{BlockManager, CacheEvent, Lora, Namespace, Naming, Sequence};
use proptest::prelude::*;

/// What a reader of the events believes: every name, and how many copies of it there are.
#[derive(Default, Debug)]
struct Replica {
    held: BTreeMap<u64, usize>,
}

impl Replica {
    fn apply(&mut self, events: Vec<CacheEvent>) {
        for event in events {
            match event {
                CacheEvent::Stored(run) => {
                    assert_eq!(run.tokens.len(), run.names.len() * run.block_size as usize);
                    if let Some(parent) = run.parent {
                        assert!(self.holds(parent), "stored under a parent that is not there");
                    }
                    for name in run.names {
                        *self.held.entry(name.0).or_default() += 1;
                    }
                }
                CacheEvent::Removed(name) => {
                    let copies = self.held.get_mut(&name.0).expect("removed what was never stored");
                    *copies -= 1;
                    if *copies == 0 {
                        self.held.remove(&name.0);
                    }
                }
                CacheEvent::Cleared => self.held.clear(),
            }
        }
    }

    fn holds(&self, name: EngineHash) -> bool {
        self.held.contains_key(&name.0)
    }
}

#[derive(Clone, Debug)]
enum Operation {
    /// A prompt: which family it belongs to, how much of the family's stem it has, and tokens of its own.
    Admit {
        family: u32,
        stem: usize,
        own: Vec<u32>,
        salted: bool,
    },
    /// Computes up to so many tokens of a running sequence, and adds a token when it has none left.
    Compute {
        index: usize,
        count: usize,
    },
    Release {
        index: usize,
    },
    Reset,
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        3 => (0..3_u32, 0..40_usize, prop::collection::vec(0..3_u32, 1..12), prop::bool::weighted(0.2))
            .prop_map(|(family, stem, own, salted)| Operation::Admit { family, stem, own, salted }),
        6 => (0..8_usize, 1..20_usize).prop_map(|(index, count)| Operation::Compute { index, count }),
        2 => (0..8_usize).prop_map(|index| Operation::Release { index }),
        1 => Just(Operation::Reset),
    ]
}

const BLOCK: usize = 4;

fn check(cache: &BlockManager, running: &[Sequence], replica: &Replica, num_gpu_blocks: u32) {
    assert_eq!(cache.used() + cache.free(), cache.capacity());
    assert_eq!(cache.capacity(), num_gpu_blocks as usize - 1);
    let mut owners: BTreeMap<u32, EngineHash> = BTreeMap::new();
    for sequence in running {
        let distinct: BTreeSet<u32> = sequence.blocks().iter().copied().collect();
        assert_eq!(distinct.len(), sequence.blocks().len(), "a sequence holds a block twice");
        for (index, block) in sequence.blocks().iter().enumerate() {
            // Two sequences may share a block only as the same full block of the same prefix.
            let Some(name) = sequence.names().get(index) else {
                assert!(owners.insert(*block, EngineHash(u64::MAX)).is_none(), "a partial block is shared");
                continue;
            };
            assert_eq!(
                *owners.entry(*block).or_insert(*name),
                *name,
                "a block is shared by different prefixes"
            );
        }
    }
    assert_eq!(owners.len(), cache.used(), "what sequences hold is what is in use");
    let held: BTreeMap<u64, usize> = cache.held().map(|(name, copies)| (name.0, copies)).collect();
    assert_eq!(held, replica.held, "the events tell exactly what the cache holds");
    assert_eq!(cache.cached(), held.values().sum::<usize>());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn the_events_tell_exactly_what_the_cache_holds(
        num_gpu_blocks in 4..30_u32,
        operations in prop::collection::vec(operation(), 1..120),
    ) {
        let mut cache = BlockManager::new(BLOCK, num_gpu_blocks);
        let mut replica = Replica::default();
        let mut running: Vec<Sequence> = Vec::new();
        for operation in operations {
            match operation {
                Operation::Admit { family, stem, own, salted } => {
                    let tokens: Vec<u32> = (0..stem as u32).map(|n| family * 1000 + n).chain(own).collect();
                    let namespace = Namespace { salt: salted.then(|| "s".into()), ..Namespace::default() };
                    let naming = Naming { seed: 1, block_size: BLOCK };
                    let mut sequence = Sequence::new(naming, Arc::new(namespace), tokens);
                    let reusable = (sequence.tokens().len() - 1) / BLOCK;
                    let names = &sequence.names()[..reusable];
                    let known = names.iter().take_while(|name| replica.holds(**name)).count();
                    if let Ok(cached) = cache.admit(&mut sequence) {
                        prop_assert_eq!(cached, known * BLOCK, "the longest prefix that was announced");
                        prop_assert!(sequence.uncomputed() > 0);
                        running.push(sequence);
                    } else {
                        prop_assert!(sequence.blocks().is_empty());
                    }
                }
                Operation::Compute { index, count } if index < running.len() => {
                    let sequence = &mut running[index];
                    let before = sequence.uncomputed();
                    if cache.compute(sequence, count).is_ok() {
                        prop_assert_eq!(sequence.uncomputed(), before.saturating_sub(count));
                    } else {
                        prop_assert_eq!((sequence.uncomputed(), cache.free()), (before, 0));
                    }
                    if sequence.uncomputed() == 0 {
                        sequence.push(sequence.tokens().len() as u32 % 3);
                    }
                }
                Operation::Release { index } if index < running.len() => {
                    cache.release(&mut running.swap_remove(index));
                }
                Operation::Reset => {
                    let idle = running.is_empty();
                    prop_assert_eq!(cache.reset(), idle);
                }
                _ => {}
            }
            replica.apply(cache.take_events());
            check(&cache, &running, &replica, num_gpu_blocks);
        }
        for mut sequence in running.drain(..) {
            cache.release(&mut sequence);
        }
        prop_assert_eq!(cache.used(), 0);
    }
}

#[test]
fn a_fully_cached_prompt_computes_its_last_block_again_into_a_second_copy() {
    let mut cache = BlockManager::new(4, 9);
    let naming = Naming { seed: 1, block_size: 4 };
    let mut run = |tokens: u32| {
        let mut sequence = Sequence::new(naming, Arc::default(), (0..tokens).collect());
        let cached = cache.admit(&mut sequence).unwrap();
        cache.compute(&mut sequence, 99).unwrap();
        cache.release(&mut sequence);
        (cached, sequence.names().to_vec(), cache.take_events(), cache.cached())
    };
    assert_eq!(run(8).0, 0);
    let (cached, names, events, copies) = run(8);
    assert_eq!((cached, copies), (4, 3));
    let [CacheEvent::Stored(again)] = &events[..] else { panic!("one store, got {events:?}") };
    assert_eq!((again.parent, &again.names[..]), (Some(names[0]), &names[1..]));
}

/// The recorded batches, as (prompt, events): a store's token list and hashes, or a removed hash.
fn recording() -> Vec<(String, Vec<Recorded>)> {
    let lines = include_str!("fixtures/vllm_0_32_eviction.hex").lines().filter(|line| !line.starts_with('#'));
    let parse = |line: &str| {
        let (prompt, payload) = line.split_once(' ').unwrap();
        let batch = rmpv::decode::read_value(&mut &hex::decode(payload).unwrap()[..]).unwrap();
        let events = batch[1].as_array().unwrap().iter().map(recorded).collect();
        (prompt.to_owned(), events)
    };
    lines.map(parse).collect()
}

#[derive(Clone, PartialEq, Debug)]
enum Recorded {
    Stored { parent: Option<u64>, hashes: Vec<u64>, tokens: Vec<u32> },
    Removed(u64),
}

fn recorded(event: &rmpv::Value) -> Recorded {
    let hashes: Vec<u64> =
        event["block_hashes"].as_array().unwrap().iter().map(|hash| hash.as_u64().unwrap()).collect();
    if event["type"].as_str() == Some("BlockRemoved") {
        assert_eq!(hashes.len(), 1);
        return Recorded::Removed(hashes[0]);
    }
    let tokens =
        event["token_ids"].as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as u32).collect();
    Recorded::Stored { parent: event["parent_block_hash"].as_u64(), hashes, tokens }
}

#[test]
fn evicts_in_the_order_of_a_recorded_vllm() {
    let mut cache = BlockManager::new(32, 48);
    let recording = recording();
    let Some((_, first)) = recording.first() else { panic!("an empty recording") };
    let [Recorded::Stored { tokens: prompt_a, .. }] = &first[..] else { panic!("A is stored cold") };
    // vLLM's hash for each of ours, and that no two of ours have the same one.
    let mut theirs: BTreeMap<u64, u64> = BTreeMap::new();
    let mut removed = 0;
    for (prompt, expected) in &recording {
        let lora = prompt.contains("lora").then(|| Lora { id: 1, name: "ad1".into() });
        let salt = prompt.contains("salt").then(|| "s2".into());
        let namespace = Namespace { lora, salt, session: None };
        let stored = expected.iter().find_map(|event| match event {
            Recorded::Stored { tokens, .. } => Some(tokens),
            Recorded::Removed(_) => None,
        });
        let full_blocks = if prompt.starts_with('A') { prompt_a } else { stored.unwrap() };
        // The tail is in no event; what it is does not matter, that it takes a block does.
        let tail = match prompt.as_str() {
            "A-192" => 0,
            "A" | "A-lora" | "A-lora-salt" => 200 - 192,
            _ => 600 - 576,
        };
        let tokens = full_blocks.iter().copied().chain((0..tail).map(|n| 2900 + n)).collect();
        let naming = Naming { seed: 1, block_size: 32 };
        let mut sequence = Sequence::new(naming, Arc::new(namespace), tokens);
        cache.admit(&mut sequence).unwrap();
        cache.compute(&mut sequence, 600).unwrap();
        cache.release(&mut sequence);

        let events = cache.take_events();
        assert_eq!(events.len(), expected.len(), "{prompt}");
        for (ours, theirs_event) in events.iter().zip(expected) {
            match (ours, theirs_event) {
                (CacheEvent::Removed(name), Recorded::Removed(hash)) => {
                    assert_eq!(theirs[&name.0], *hash, "{prompt}: removal {removed}");
                    removed += 1;
                }
                (CacheEvent::Stored(run), Recorded::Stored { parent, hashes, tokens }) => {
                    assert_eq!((&run.tokens, run.names.len()), (tokens, hashes.len()), "{prompt}");
                    for (name, hash) in run.names.iter().zip(hashes) {
                        assert_eq!(*theirs.entry(name.0).or_insert(*hash), *hash, "{prompt}");
                    }
                    assert_eq!(run.parent.map(|name| theirs[&name.0]), *parent, "{prompt}");
                }
                pair => panic!("{prompt}: {pair:?}"),
            }
        }
    }
    assert_eq!(theirs.values().collect::<BTreeSet<_>>().len(), theirs.len());
    assert_eq!(removed, 9 + 18 + 18 + 6, "the recording overflows the cache");
}
