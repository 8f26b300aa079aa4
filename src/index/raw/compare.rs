//! How far a prompt and a run agree.
//!
//! The run's words may be recycled under a reader. Its loads are therefore relaxed atomics, or loads inside `asm!`,
//! which the compiler treats alike: whatever they yield is used only once the run's version was seen unchanged.

use std::sync::atomic::Ordering::Relaxed;

use super::sync::AtomicU64;
use crate::hash::BlockHash;

/// The number of leading blocks in which `prompt` and the words at `run` agree.
///
/// # Safety
/// `run` points at `prompt.len()` readable words at least.
#[inline]
pub(super) unsafe fn agree(prompt: &[BlockHash], run: *const AtomicU64) -> usize {
    let count = prompt.len();
    let mut at = 0;
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    if count >= 4 && std::arch::is_x86_feature_detected!("avx2") {
        let wanted = prompt.as_ptr().cast::<u64>();
        if count >= 16 {
            // SAFETY: AVX2 is there, and `count / 16` groups of 16 words lie on both sides.
            at = unsafe { groups_of_16(wanted, run, count / 16) } * 16;
        }
        if count - at >= 4 {
            // SAFETY: AVX2 is there, and that many groups of 4 words are left on both sides.
            let (groups, equal) = unsafe { groups_of_4(wanted.add(at), run.add(at), (count - at) / 4) };
            at += groups * 4;
            if equal != 0b1111 {
                return at + (!equal).trailing_zeros() as usize;
            }
        }
    }
    // SAFETY: `at < count`, and the caller vouches for that many words.
    while at < count && prompt[at].0 == unsafe { (*run.add(at)).load(Relaxed) } {
        at += 1;
    }
    at
}

/// Code that was compiled without AVX is slow while the upper halves of its registers are in use, and keeps nothing there that zeroes
/// could destroy. Code that was compiled with it may, and is not slow.
#[cfg(all(target_arch = "x86_64", not(loom), not(target_feature = "avx")))]
macro_rules! leave_avx {
    () => {
        "vzeroupper"
    };
}
#[cfg(all(target_arch = "x86_64", not(loom), target_feature = "avx"))]
macro_rules! leave_avx {
    () => {
        ""
    };
}

/// How many leading groups of 16 words are equal.
///
/// # Safety
/// AVX2 is there, `groups` is not 0, and that many groups are readable at both addresses.
#[cfg(all(target_arch = "x86_64", not(loom)))]
#[inline(always)]
unsafe fn groups_of_16(wanted: *const u64, run: *const AtomicU64, groups: usize) -> usize {
    let mut left = groups;
    // SAFETY: reads `groups` times 128 bytes at both addresses and writes no memory. Of the registers that are not named it zeroes upper
    // halves at most, in which nobody has anything: `leave_avx` leaves them alone otherwise, and no caller enables AVX for itself.
    unsafe {
        core::arch::asm!(
            "2:",
            "vmovdqu {x0:y}, [{run}]",
            "vmovdqu {x1:y}, [{run} + 32]",
            "vmovdqu {x2:y}, [{run} + 64]",
            "vmovdqu {x3:y}, [{run} + 96]",
            "vpcmpeqq {x0:y}, {x0:y}, [{wanted}]",
            "vpcmpeqq {x1:y}, {x1:y}, [{wanted} + 32]",
            "vpcmpeqq {x2:y}, {x2:y}, [{wanted} + 64]",
            "vpcmpeqq {x3:y}, {x3:y}, [{wanted} + 96]",
            "vpand {x0:y}, {x0:y}, {x1:y}",
            "vpand {x2:y}, {x2:y}, {x3:y}",
            "vpand {x0:y}, {x0:y}, {x2:y}",
            "vpmovmskb {mask:e}, {x0:y}",
            "cmp {mask:e}, -1",
            "jne 3f",
            "add {wanted}, 128",
            "add {run}, 128",
            "dec {left}",
            "jnz 2b",
            "3:",
            leave_avx!(),
            wanted = inout(reg) wanted => _,
            run = inout(reg) run => _,
            left = inout(reg) left,
            mask = out(reg) _,
            x0 = out(xmm_reg) _,
            x1 = out(xmm_reg) _,
            x2 = out(xmm_reg) _,
            x3 = out(xmm_reg) _,
            options(nostack, readonly),
        );
    }
    groups - left
}

/// How many leading groups of 4 words are equal, and which words of the group that ended it: all four if none did.
///
/// # Safety
/// As [`groups_of_16`], with groups of 4.
#[cfg(all(target_arch = "x86_64", not(loom)))]
#[inline(always)]
unsafe fn groups_of_4(wanted: *const u64, run: *const AtomicU64, groups: usize) -> (usize, u32) {
    let mut left = groups;
    let mut equal: u32;
    // SAFETY: reads `groups` times 32 bytes at both addresses and writes no memory. Registers: as in `groups_of_16`.
    unsafe {
        core::arch::asm!(
            "2:",
            "vmovdqu {x:y}, [{run}]",
            "vpcmpeqq {x:y}, {x:y}, [{wanted}]",
            "vmovmskpd {equal:e}, {x:y}",
            "cmp {equal:e}, 15",
            "jne 3f",
            "add {wanted}, 32",
            "add {run}, 32",
            "dec {left}",
            "jnz 2b",
            "3:",
            leave_avx!(),
            wanted = inout(reg) wanted => _,
            run = inout(reg) run => _,
            left = inout(reg) left,
            equal = out(reg) equal,
            x = out(xmm_reg) _,
            options(nostack, readonly),
        );
    }
    (groups - left, equal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_first_difference_at_every_length_and_position() {
        for count in 0..80 {
            let prompt: Vec<BlockHash> =
                (0..count as u64).map(|at| BlockHash(at.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
            for differs in 0..=count {
                let run: Vec<AtomicU64> = prompt.iter().map(|hash| AtomicU64::new(hash.0)).collect();
                if differs < count {
                    run[differs].store(prompt[differs].0 ^ 1 << (differs % 64), Relaxed);
                }
                // SAFETY: both have `count` words.
                assert_eq!(unsafe { agree(&prompt, run.as_ptr()) }, differs, "of {count}");
            }
        }
    }
}
