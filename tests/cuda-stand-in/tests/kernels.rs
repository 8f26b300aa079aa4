//! The kernels that ship, under mistakes planted in them or in their launch; and beside those of another compiler, if
//! `KVROUTE_OTHER_PTX` names a file. (That they are right is tested by the package that they belong to, which has the reference.)

#![allow(clippy::disallowed_methods, reason = "a script says by a variable which file it means")]

use cuda_stand_in::{
    machine::{self, Fault, FaultKind, Launch},
    memory::Memory,
    module::Module,
};

const SHIPPED: &str = include_str!("../../../kernels/block_hash.ptx");

/// A kernel that is for blocks of so many words, at both ends of what it is for and in the middle.
const CLASSES: [(&str, &[u32]); 4] = [
    ("hash_1_to_4_words", &[1, 2, 3, 4]),
    ("hash_5_to_32_words", &[5, 8, 9, 16, 17, 31, 32]),
    ("hash_33_to_60_words", &[33, 35, 36, 47, 59, 60]),
    ("hash_61_words_and_more", &[61, 64, 65, 80, 81, 257, 320, 513]),
];

const BLOCKS: u32 = 40;

/// The digests of 40 blocks of `words` words by the kernel `name`.
fn digests(ptx: &str, name: &str, words: u32, claimed: u32) -> Result<Vec<u64>, Fault> {
    let module = Module::parse(ptx).unwrap();
    let mut memory = Memory::new(1 << 24);
    let mut state = u64::from(words);
    let tokens: Vec<u8> = (0..BLOCKS * words)
        .flat_map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) as u32).to_le_bytes()
        })
        .collect();
    let from = memory.allocate(tokens.len()).unwrap();
    memory.put(from, &tokens).unwrap();
    let to = memory.allocate(8 * claimed as usize).unwrap();
    let mut parameters = [from.to_le_bytes(), to.to_le_bytes()].concat();
    parameters.extend([claimed.to_le_bytes(), words.to_le_bytes()].concat());
    parameters.extend(1337_u64.to_le_bytes());
    let launch = Launch { blocks: claimed.div_ceil(256), threads: 256, parameters };
    machine::run(&module, &module.kernels[name], &launch, &mut memory)?;
    let bytes = memory.get(to, 8 * BLOCKS as usize)?;
    Ok(bytes.chunks_exact(8).map(|digest| u64::from_le_bytes(digest.try_into().unwrap())).collect())
}

#[test]
fn a_launch_over_more_blocks_than_there_are_is_found() {
    for (name, words) in CLASSES {
        let fault = digests(SHIPPED, name, words[0], BLOCKS + 1).expect_err(name);
        assert_eq!(fault.kind, FaultKind::Illegal, "{}", fault.what);
    }
}

/// Replaces one constant of the kernel, where it stands first.
fn with_planted(name: &str, from: &str, to: &str) -> String {
    let start = SHIPPED.find(&format!(".entry {name}(")).unwrap();
    let (before, kernel) = SHIPPED.split_at(start);
    assert!(kernel.contains(from), "{name}: {from}");
    before.to_owned() + &kernel.replacen(from, to, 1)
}

#[test]
fn a_wrong_constant_shows() {
    for (name, words) in CLASSES {
        // A shift of the final mixing, which every path ends with.
        let shift = if name == "hash_1_to_4_words" { ", 35;" } else { ", 37;" };
        let planted = with_planted(name, shift, ", 36;");
        let right = digests(SHIPPED, name, words[0], BLOCKS).unwrap();
        assert_ne!(digests(&planted, name, words[0], BLOCKS).unwrap(), right, "{name}");
    }
}

#[test]
fn a_guard_that_lets_one_thread_too_many_through_is_found() {
    for (name, words) in CLASSES {
        let planted = with_planted(name, "setp.ge.u64", "setp.gt.u64");
        let fault = digests(&planted, name, words[0], BLOCKS).expect_err(name);
        assert_eq!(fault.kind, FaultKind::Illegal, "{}", fault.what);
    }
}

#[test]
fn another_compiler_s_kernels_agree_with_those_that_ship() {
    let Ok(path) = std::env::var("KVROUTE_OTHER_PTX") else { return };
    let other = std::fs::read_to_string(&path).unwrap();
    for (name, lengths) in CLASSES {
        for &words in lengths {
            let [ours, theirs] = [SHIPPED, &other].map(|ptx| digests(ptx, name, words, BLOCKS).unwrap());
            assert_eq!(theirs, ours, "{name}, {words} words, {path}");
        }
    }
}
