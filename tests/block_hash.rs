//! Block hashes are plain XXH3-64: published vectors, and a literal reference over random prompts.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

use kvroute::hash::{
    BatchHasher, BatchPrompt, BlockHash, BlockHasher, BlockObjects, BlockSize, CpuBatchHasher, HashedBatch,
    Identity, Prompt, SequenceHash, chain, object_hash, pad_token,
};
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64_with_seed;

fn size(tokens: u32) -> BlockSize {
    BlockSize::new(tokens).unwrap()
}

fn hash(block_size: u32, identity: Identity, prompt: &Prompt<'_>) -> Vec<u64> {
    let mut out = Vec::new();
    BlockHasher::new(size(block_size), identity).hash(prompt, &mut out);
    out.into_iter().map(|hash| hash.0).collect()
}

fn sequence(blocks: &[u64]) -> Vec<u64> {
    let blocks: Vec<BlockHash> = blocks.iter().copied().map(BlockHash).collect();
    let mut out = vec![SequenceHash(99)];
    chain(&blocks, &mut out);
    out.into_iter().map(|hash| hash.0).collect()
}

/// A published vector: what goes in, and the hashes that must come out.
#[derive(Default)]
struct Vector {
    name: &'static str,
    tokens: Vec<u32>,
    block_size: u32,
    lora: Option<&'static str>,
    salt: Option<&'static str>,
    objects: &'static [(usize, &'static [u64])],
    eagle: bool,
    blocks: &'static [u64],
    /// Empty where the sequence hashes are the block hashes.
    sequence: &'static [u64],
}

fn vectors() -> Vec<Vector> {
    let base = |name, tokens: std::ops::Range<u32>, block_size| Vector {
        name,
        tokens: tokens.collect(),
        block_size,
        ..Vector::default()
    };
    vec![
        Vector { blocks: &[9143094415614847814], ..base("V1", 0..4, 4) },
        Vector {
            blocks: &[9143094415614847814, 12124091508212882195],
            sequence: &[9143094415614847814, 9510318385840434533],
            ..base("V2", 0..11, 4)
        },
        Vector {
            blocks: &[14643705804678351452, 16777012769546811212, 483935686894639516],
            sequence: &[14643705804678351452, 4945711292740353085, 12583592247330656132],
            ..base("V3", 1..13, 4)
        },
        Vector {
            blocks: &[15310707395893867146, 15292316782987903195],
            sequence: &[15310707395893867146, 13769157705258532664],
            ..base("V4", 0..32, 16)
        },
        Vector { blocks: &[3480597578098033343], ..base("V5", 0..64, 64) },
        Vector {
            lora: Some("adapter-a"),
            blocks: &[6665157333201000639, 11721812545976571723],
            sequence: &[6665157333201000639, 13351519314849170528],
            ..base("V6", 0..8, 4)
        },
        Vector {
            salt: Some("tenant-a"),
            blocks: &[17009624042690211646, 10000672136415158886],
            sequence: &[17009624042690211646, 18279821067719767880],
            ..base("V7", 0..8, 4)
        },
        Vector {
            lora: Some("adapter-a"),
            salt: Some("tenant-a"),
            blocks: &[8269515957840517240, 11937877779520612889],
            sequence: &[8269515957840517240, 16913744751721653295],
            ..base("V8", 0..8, 4)
        },
        Vector {
            lora: Some(""),
            salt: Some(""),
            blocks: &[9143094415614847814, 12124091508212882195],
            sequence: &[9143094415614847814, 9510318385840434533],
            ..base("V9", 0..8, 4)
        },
        Vector {
            objects: &[(1, &[0xdead_beef])],
            blocks: &[9143094415614847814, 439460541833340312],
            sequence: &[9143094415614847814, 12021695618249120196],
            ..base("V10", 0..8, 4)
        },
        Vector { objects: &[(0, &[7, 3])], blocks: &[12534961123884847936], ..base("V11", 0..4, 4) },
        Vector { objects: &[(0, &[3, 7])], blocks: &[12534961123884847936], ..base("V11 sorted", 0..4, 4) },
        Vector { objects: &[(0, &[])], blocks: &[9143094415614847814], ..base("V11c", 0..4, 4) },
        Vector {
            eagle: true,
            blocks: &[14562210786876287112, 15916330181359808192],
            sequence: &[14562210786876287112, 11643125693293304894],
            ..base("V12", 0..9, 4)
        },
        Vector { eagle: true, blocks: &[14562210786876287112], ..base("V12b", 0..8, 4) },
        Vector { tokens: vec![u32::MAX; 4], blocks: &[12410542959481710713], ..base("V13", 0..0, 4) },
        Vector {
            blocks: &[17311669453583354541, 11958596045112940425, 11011797887259449313],
            sequence: &[17311669453583354541, 7696675355037062093, 17059776239958289268],
            ..base("V14", 5..8, 1)
        },
    ]
}

#[test]
fn published_vectors() {
    for vector in vectors() {
        let objects: Vec<_> =
            vector.objects.iter().map(|&(block, objects)| BlockObjects { block, objects }).collect();
        let prompt = Prompt { tokens: &vector.tokens, multimodal: &objects, eagle: vector.eagle };
        let blocks = hash(vector.block_size, Identity::new(vector.lora, vector.salt), &prompt);
        assert_eq!(blocks, vector.blocks, "blocks of {}", vector.name);
        let expected = if vector.sequence.is_empty() { vector.blocks } else { vector.sequence };
        assert_eq!(sequence(&blocks), expected, "sequence of {}", vector.name);
    }
}

#[test]
fn the_reference_itself_is_xxh3() {
    // V15: guards the crate that the other tests compare with.
    assert_eq!(xxh3_64_with_seed(b"test data", 1337), 13226331709069118873);
    assert_eq!(xxh3_64_with_seed(b"", 1337), 15128690059815094969);
}

#[test]
fn sequence_hashes_chain_from_any_block_hash() {
    assert_eq!(sequence(&[1, 2]), [1, 16740963408272063728], "V16");
    assert_eq!(sequence(&[11, 22, 33]), [11, 750553365844651409, 3257565445809651757], "V16b");
    assert_eq!(sequence(&[]), [0; 0]);
}

#[test]
fn seeds_of_identities() {
    // V17.
    let seed = |lora, salt| Identity::new(lora, salt).seed();
    assert_eq!(seed(None, None), 1337);
    assert_eq!(seed(Some("adapter-a"), None), 8842669519798868182);
    assert_eq!(seed(None, Some("tenant-a")), 1948188790972764086);
    assert_eq!(seed(Some("adapter-a"), Some("tenant-a")), 10790858310771630931);
    assert_eq!(seed(None, Some("adapter-a")), 11153061953553528754);
}

#[test]
fn object_ids_and_pad_tokens() {
    // V18.
    let digest = "0123456789abcdef".repeat(4);
    assert_eq!(object_hash(&digest), Some(81985529216486895));
    assert_eq!(object_hash(&digest.to_uppercase()), Some(81985529216486895));
    assert_eq!(object_hash("opaque-renderer-image-0"), Some(14437604544409538977));
    assert_eq!(pad_token(0x0123_4567_89ab_cdef), 163254319);
    assert_eq!(pad_token(u64::MAX), 1_000_000 + (1 << 30) - 1);
    assert_eq!(object_hash(""), None);
    // Not digests, though nearly: one digit short, one long, a sign, a letter outside ASCII across digit 16.
    for id in [&digest[..63], &format!("{digest}0"), &format!("+{}", &digest[1..]), &"é".repeat(32)] {
        assert_eq!(object_hash(id), Some(xxh3_64_with_seed(id.as_bytes(), 0)), "{id}");
    }
}

#[test]
fn prompts_shorter_than_a_block_have_no_hash() {
    for eagle in [false, true] {
        for tokens in [&[][..], &[1, 2, 3]] {
            let objects = [BlockObjects { block: 0, objects: &[1] }];
            let prompt = Prompt { tokens, multimodal: &objects, eagle };
            assert_eq!(hash(4, Identity::plain(), &prompt), [0; 0]);
            assert_eq!(hash(u32::MAX, Identity::plain(), &prompt), [0; 0]);
        }
    }
}

#[test]
fn objects_of_blocks_that_are_not_there_are_ignored() {
    let tokens = [1, 2, 3, 4, 5];
    let stray = [1, usize::MAX].map(|block| BlockObjects { block, objects: &[7] });
    let with = hash(4, Identity::plain(), &Prompt { multimodal: &stray, ..Prompt::text(&tokens) });
    assert_eq!(with, hash(4, Identity::plain(), &Prompt::text(&tokens)));
}

#[test]
fn out_is_replaced_and_does_not_grow_again() {
    let tokens: Vec<u32> = (0..4096).collect();
    let hasher = BlockHasher::new(size(16), Identity::plain());
    let mut out = vec![BlockHash(1); 3];
    hasher.hash(&Prompt::text(&tokens), &mut out);
    assert_eq!(out.len(), 256);
    let (place, capacity) = (out.as_ptr(), out.capacity());
    hasher.hash(&Prompt::text(&tokens[1..]), &mut out);
    assert_eq!((out.len(), out.as_ptr(), out.capacity()), (255, place, capacity));
}

/// The rule as it is written down: bytes of the window, then the sorted objects, one seeded hash.
fn reference(block_size: usize, seed: u64, prompt: &Prompt<'_>) -> Vec<u64> {
    let look_ahead = usize::from(prompt.eagle);
    let mut hashes = Vec::new();
    let mut start = 0;
    while start + block_size + look_ahead <= prompt.tokens.len() {
        let mut bytes = Vec::new();
        for token in &prompt.tokens[start..start + block_size + look_ahead] {
            bytes.extend(token.to_le_bytes());
        }
        let block = hashes.len();
        if let Some(entry) = prompt.multimodal.iter().rfind(|entry| entry.block == block) {
            let mut objects = entry.objects.to_vec();
            objects.sort();
            for object in objects {
                bytes.extend(object.to_le_bytes());
            }
        }
        hashes.push(xxh3_64_with_seed(&bytes, seed));
        start += block_size;
    }
    hashes
}

/// Pseudo-random tokens that depend on nothing but `salt`.
fn tokens(salt: u64, count: usize) -> Vec<u32> {
    let mut rng = fastrand::Rng::with_seed(salt);
    (0..count).map(|_| rng.u32(..)).collect()
}

#[test]
fn every_length_of_input_agrees_with_the_reference() {
    // One block of each size, so every XXH3 path and both sides of each of its borders, several scrambles
    // of the long path included.
    let identity = Identity::new(Some("adapter"), Some("tenant"));
    let all = tokens(3, 1_301);
    for block_size in 1..=1_300_u32 {
        for eagle in [false, true] {
            let prompt = Prompt { tokens: &all, multimodal: &[], eagle };
            let expected = reference(block_size as usize, identity.seed(), &prompt);
            assert_eq!(hash(block_size, identity, &prompt), expected, "size {block_size}, eagle {eagle}");
        }
    }
}

#[test]
fn any_number_of_objects_agrees_with_the_reference() {
    // From text to more objects than the inline buffers hold.
    let all = tokens(4, 33);
    let mut rng = fastrand::Rng::with_seed(5);
    let objects: Vec<u64> = (0..600).map(|_| rng.u64(..)).collect();
    for count in (0..80).chain([255, 256, 257, 600]) {
        for eagle in [false, true] {
            let entry = [BlockObjects { block: 1, objects: &objects[..count] }];
            let prompt = Prompt { tokens: &all, multimodal: &entry, eagle };
            let expected = reference(16, 1337, &prompt);
            assert_eq!(hash(16, Identity::plain(), &prompt), expected, "{count} objects, eagle {eagle}");
        }
    }
}

fn name() -> impl Strategy<Value = Option<String>> {
    proptest::option::of("[a-zé/0-9]{0,300}")
}

fn objects() -> impl Strategy<Value = Vec<(usize, Vec<u64>)>> {
    // A small range of hashes beside the full one, for duplicates.
    let hash = prop_oneof![0..4_u64, any::<u64>()];
    prop::collection::vec((0..12_usize, prop::collection::vec(hash, 0..6)), 0..6)
}

proptest! {
    #[test]
    fn any_prompt_agrees_with_the_reference(
        block_size in prop_oneof![1..=80_u32, Just(16), Just(32), Just(64), Just(128)],
        count in 0..700_usize,
        salt in any::<u64>(),
        lora in name(),
        tenant in name(),
        objects in objects(),
        eagle in any::<bool>(),
    ) {
        let tokens = tokens(salt, count);
        let entries: Vec<_> =
            objects.iter().map(|(block, objects)| BlockObjects { block: *block, objects }).collect();
        let prompt = Prompt { tokens: &tokens, multimodal: &entries, eagle };
        let identity = Identity::new(lora.as_deref(), tenant.as_deref());
        let term = |name: &Option<String>, kind| {
            name.as_ref().filter(|name| !name.is_empty()).map_or(0, |name| xxh3_64_with_seed(name.as_bytes(), kind))
        };
        let seed = 1337_u64.wrapping_add(term(&lora, 0)).wrapping_add(term(&tenant, 1));

        let hasher = BlockHasher::new(size(block_size), identity);
        let mut out = Vec::new();
        hasher.hash(&prompt, &mut out);
        let expected = reference(block_size as usize, seed, &prompt);
        prop_assert_eq!(hasher.count(&prompt), expected.len());
        prop_assert_eq!(out.iter().map(|hash| hash.0).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_chain_step_is_the_hash_of_both_numbers(blocks in prop::collection::vec(any::<u64>(), 0..40)) {
        let mut expected: Vec<u64> = Vec::new();
        for &block in &blocks {
            let next = expected.last().map_or(block, |last| {
                xxh3_64_with_seed(&[last.to_le_bytes(), block.to_le_bytes()].concat(), 1337)
            });
            expected.push(next);
        }
        prop_assert_eq!(sequence(&blocks), expected);
    }

    #[test]
    fn a_batch_is_its_prompts_one_by_one(
        prompts in prop::collection::vec((0..60_usize, 0..3_usize, any::<bool>()), 0..12),
        block_size in 1..=20_u32,
    ) {
        let identities = [Identity::plain(), Identity::new(Some("a"), None), Identity::new(None, Some("a"))];
        let inputs: Vec<_> =
            prompts.iter().map(|&(count, who, eagle)| (tokens(count as u64, count), identities[who], eagle)).collect();
        let entry = [BlockObjects { block: 0, objects: &[5] }];
        let batch: Vec<_> = inputs
            .iter()
            .map(|(tokens, identity, eagle)| BatchPrompt {
                identity: *identity,
                prompt: Prompt { tokens, multimodal: &entry, eagle: *eagle },
            })
            .collect();

        let mut hasher = CpuBatchHasher::new(size(block_size));
        let mut hashed = HashedBatch::new();
        // The second run starts from a full result and another identity.
        for _ in 0..2 {
            hasher.hash(&batch, &mut hashed).unwrap();
            prop_assert_eq!(hashed.len(), batch.len());
            for (one, item) in hashed.iter().zip(&batch) {
                let one: Vec<u64> = one.iter().map(|hash| hash.0).collect();
                prop_assert_eq!(one, hash(block_size, item.identity, &item.prompt));
            }
            prop_assert_eq!(hashed.all().len(), hashed.iter().map(<[_]>::len).sum::<usize>());
            prop_assert_eq!(hashed.get(batch.len()), None);
        }
    }
}
