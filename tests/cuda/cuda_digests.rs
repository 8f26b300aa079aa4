//! What the device makes is what the CPU makes, bit for bit.

use kvroute::{
    accel::{DeviceState, Where},
    hash::{
        BatchHasher, BatchPrompt, BlockObjects, BlockSize, CpuBatchHasher, HashedBatch, Identity, Prompt,
    },
};

use crate::{
    batches::{accelerator, expected, text, tokens},
    child::{self, Library},
};

#[test]
fn cuda_hashes_every_length_as_xxh3_does() {
    child::run("cuda_digests::cuda_hashes_every_length_as_xxh3_does", Library::StandIn(""), || {
        let accelerator = accelerator();
        let mut out = HashedBatch::new();
        for words in 1..=320 {
            // More than a CUDA block has threads, some of the time.
            let blocks = if words % 16 == 0 { 300 } else { 40 };
            // The tail fills no block.
            let tokens = tokens(words * blocks + words / 2, words as u64);
            let identity = Identity::new(Some(&words.to_string()), None);
            let prompts = [BatchPrompt { identity, prompt: Prompt::text(&tokens) }];
            let size = BlockSize::new(words as u32).unwrap();
            accelerator.hasher(size).hash(&prompts, &mut out).unwrap();
            assert_eq!(out.all(), expected(&tokens, words as u32, identity.seed()), "{words} tokens");
        }
        assert_eq!(accelerator.status().batches(Where::Gpu), 320);
        assert_eq!(accelerator.status().state(), DeviceState::Ready);
    });
}

#[test]
fn cuda_hashes_in_as_many_chunks_as_it_takes_and_gives_all_back() {
    let name = "cuda_digests::cuda_hashes_in_as_many_chunks_as_it_takes_and_gives_all_back";
    child::run(name, Library::StandIn("report=REPORT"), || {
        let accelerator = accelerator();
        let mut out = HashedBatch::new();
        // A slot holds 1 Mi tokens, or 256 Ki hashes: four chunks for three slots, twice, and the last not full.
        for (size, count) in [(1, 4 * (1 << 18) - 77), (48, 4 * (1 << 20) - 1234), (1 << 20, 1 << 20)] {
            let tokens = tokens(count, size);
            let block_size = BlockSize::new(size as u32).unwrap();
            accelerator.hasher(block_size).hash(&text(&tokens), &mut out).unwrap();
            assert_eq!(out.all(), expected(&tokens, size as u32, 1337), "{size} tokens");
        }
        assert_eq!(accelerator.status().batches(Where::Gpu), 3);
        drop(accelerator);
        let report = child::report();
        assert!(report.contains("calls cuLaunchKernel 9\n"), "{report}");
        assert_eq!(
            report.lines().filter(|line| line.starts_with("left ") && line.ends_with(" 0")).count(),
            5
        );
        assert!(!report.contains("wrong "), "{report}");
    });
}

#[test]
fn cuda_hashes_mixed_batches_as_the_cpu_does() {
    let name = "cuda_digests::cuda_hashes_mixed_batches_as_the_cpu_does";
    child::run(name, Library::StandIn(""), || {
        let accelerator = accelerator();
        let (mut ours, mut theirs) = (HashedBatch::new(), HashedBatch::new());
        for seed in 0..60 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let size = BlockSize::new([16, 64, rng.u32(1..100)][rng.usize(..3)]).unwrap();
            let tokens = tokens(3000, seed);
            let objects: Vec<Vec<u64>> = (0..4).map(|n| (0..n).map(|_| rng.u64(..)).collect()).collect();
            let touched: Vec<_> =
                objects.iter().map(|objects| BlockObjects { block: rng.usize(..30), objects }).collect();
            let prompts: Vec<_> = (0..rng.usize(..12))
                .map(|_| BatchPrompt {
                    identity: Identity::new(None, rng.bool().then_some("salt")),
                    prompt: Prompt {
                        tokens: &tokens[..rng.usize(..3000)],
                        multimodal: if rng.bool() { &touched } else { &[] },
                        eagle: rng.bool(),
                    },
                })
                .collect();
            accelerator.hasher(size).hash(&prompts, &mut ours).unwrap();
            CpuBatchHasher::new(size).hash(&prompts, &mut theirs).unwrap();
            assert_eq!(ours, theirs, "seed {seed}, {size} tokens, {} prompts", prompts.len());
        }
        assert!(accelerator.status().batches(Where::Gpu) > 40);
    });
}
