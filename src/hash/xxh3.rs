//! XXH3-64 with the seed folded in once, over words instead of bytes.
//!
//! The algorithm is the published one (xxHash specification, XXH3 64-bit, default secret); only two things
//! are arranged differently. XXH3 adds its seed to the secret again in every call, and above 240 bytes
//! derives 192 bytes from it; a router hashes thousands of blocks under one seed, so [`Xxh3`] does it
//! once. And the input is a slice of `u32` words, each standing for its four little-endian bytes: 64-bit
//! lanes are put together from two words by arithmetic, which is one load where the machine is
//! little-endian and right where it is not.
//!
//! The parts are `inline(always)` so that [`Xxh3::digest_block`], whose length the compiler knows, becomes
//! straight code for that length.

use xxhash_rust::const_xxh3::const_custom_default_secret;

/// Words of four bytes in a 64-byte stripe.
const STRIPE: usize = 16;
/// Words in a block of the long path: 16 stripes, each with a key 8 bytes further into the secret.
const BLOCK: usize = 16 * STRIPE;
/// Words in 240 bytes, the most that does not take the long path.
const SHORT: usize = 60;
/// 64-bit lanes of the 192-byte secret.
const LANES: usize = 24;

const PRIME32_1: u64 = 0x9E37_79B1;
const PRIME32_2: u64 = 0x85EB_CA77;
const PRIME32_3: u64 = 0xC2B2_AE3D;
const PRIME64_1: u64 = 0x9E37_79B1_85EB_CA87;
const PRIME64_2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const PRIME64_3: u64 = 0x1656_67B1_9E37_79F9;
const PRIME64_4: u64 = 0x85EB_CA77_C2B2_AE63;
const PRIME64_5: u64 = 0x27D4_EB2F_1656_67C5;
const AVALANCHE: u64 = 0x1656_6791_9E37_79F9;
const RRMXMX: u64 = 0x9FB2_1C65_1E98_DF25;

/// The default secret: what a seed of 0 leaves unchanged.
const SECRET: [u64; LANES] = {
    let bytes = const_custom_default_secret(0);
    let (chunks, _) = bytes.as_chunks::<8>();
    let mut lanes = [0; LANES];
    let mut i = 0;
    while i < LANES {
        lanes[i] = u64::from_le_bytes(chunks[i]);
        i += 1;
    }
    lanes
};

/// XXH3-64 under one seed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Xxh3 {
    seed: u64,
    /// The secret with the seed added to even lanes and subtracted from odd ones. From 17 to 128 bytes and
    /// above 240 these are the keys; between, XXH3 also reads the secret at odd offsets *before* it adds
    /// the seed, so that range starts from [`SECRET`] for those.
    keys: [u64; LANES],
    /// Key of the last stripe: `keys` from byte 121.
    last: [u64; 8],
    /// Keys of the final merge: `keys` from byte 11.
    merge: [u64; 8],
}

impl Xxh3 {
    pub(super) const fn new(seed: u64) -> Self {
        let mut keys = SECRET;
        let mut i = 0;
        while i < LANES {
            keys[i] = keys[i].wrapping_add(seed);
            keys[i + 1] = keys[i + 1].wrapping_sub(seed);
            i += 2;
        }
        let (mut last, mut merge) = ([0; 8], [0; 8]);
        let mut i = 0;
        while i < 8 {
            last[i] = lane_at_byte(&keys, 121 + 8 * i);
            merge[i] = lane_at_byte(&keys, 11 + 8 * i);
            i += 1;
        }
        Self { seed, keys, last, merge }
    }

    /// The digest of `words` as little-endian bytes, for a length known when compiling.
    #[inline(always)]
    pub(super) fn digest_block<const N: usize>(&self, words: &[u32; N]) -> u64 {
        if N > SHORT { self.long_block(words) } else { self.digest(words) }
    }

    /// The digest of `words` as little-endian bytes.
    #[inline(always)]
    pub(super) fn digest(&self, words: &[u32]) -> u64 {
        match words.len() {
            0 => self.empty(),
            1..=2 => self.upto_8_bytes(words),
            3..=4 => self.pair_of_length(lane(words, 0), lane(words, words.len() - 2), words.len()),
            5..=32 => self.upto_128_bytes(words),
            33..=SHORT => self.upto_240_bytes(words),
            _ => self.long_slice(words),
        }
    }

    /// The digest of two 64-bit numbers, each as eight little-endian bytes.
    #[inline(always)]
    pub(super) const fn pair(&self, low: u64, high: u64) -> u64 {
        self.pair_of_length(low, high, 4)
    }

    fn empty(&self) -> u64 {
        let mut hash = self.seed ^ SECRET[7] ^ SECRET[8];
        hash = (hash ^ (hash >> 33)).wrapping_mul(PRIME64_2);
        hash = (hash ^ (hash >> 29)).wrapping_mul(PRIME64_3);
        hash ^ (hash >> 32)
    }

    #[inline(always)]
    fn upto_8_bytes(&self, words: &[u32]) -> u64 {
        let seed = self.seed ^ (u64::from((self.seed as u32).swap_bytes()) << 32);
        let flip = (SECRET[1] ^ SECRET[2]).wrapping_sub(seed);
        let first = u64::from(words[0]);
        let last = u64::from(words[words.len() - 1]);
        let mut hash = ((first << 32) | last) ^ flip;
        hash ^= hash.rotate_left(49) ^ hash.rotate_left(24);
        hash = hash.wrapping_mul(RRMXMX);
        hash ^= (hash >> 35).wrapping_add(bytes(words.len()));
        hash = hash.wrapping_mul(RRMXMX);
        hash ^ (hash >> 28)
    }

    /// 9 to 16 bytes: the first and the last eight of them, which may overlap.
    #[inline(always)]
    const fn pair_of_length(&self, low: u64, high: u64, words: usize) -> u64 {
        let low = low ^ (SECRET[3] ^ SECRET[4]).wrapping_add(self.seed);
        let high = high ^ (SECRET[5] ^ SECRET[6]).wrapping_sub(self.seed);
        avalanche(
            bytes(words).wrapping_add(low.swap_bytes()).wrapping_add(high).wrapping_add(fold(low, high)),
        )
    }

    #[inline(always)]
    fn upto_128_bytes(&self, words: &[u32]) -> u64 {
        let mut sum = bytes(words.len()).wrapping_mul(PRIME64_1);
        // Pairs of 16 bytes, one from the front and one from the back, until they meet in the middle.
        let (front, _) = words.as_chunks::<4>();
        let (_, back) = words.as_rchunks::<4>();
        let (keys, _) = self.keys.as_chunks::<4>();
        for ((front, back), key) in
            front.iter().zip(back.iter().rev()).zip(keys).take(words.len().div_ceil(8))
        {
            sum = sum.wrapping_add(mix(front, key[0], key[1])).wrapping_add(mix(back, key[2], key[3]));
        }
        avalanche(sum)
    }

    #[inline(always)]
    fn upto_240_bytes(&self, words: &[u32]) -> u64 {
        let mut sum = bytes(words.len()).wrapping_mul(PRIME64_1);
        let (chunks, _) = words.as_chunks::<4>();
        let (keys, _) = self.keys.as_chunks::<2>();
        for (chunk, key) in chunks.iter().zip(&keys[..8]) {
            sum = sum.wrapping_add(mix(chunk, key[0], key[1]));
        }
        sum = avalanche(sum);
        for (i, chunk) in chunks.iter().skip(8).enumerate() {
            sum = sum.wrapping_add(self.mix_unaligned(chunk, 3 + 16 * i));
        }
        if let Some(end) = words.last_chunk::<4>() {
            sum = sum.wrapping_add(self.mix_unaligned(end, 119));
        }
        avalanche(sum)
    }

    /// [`mix`] with keys that start at any byte of the secret.
    #[inline(always)]
    fn mix_unaligned(&self, chunk: &[u32; 4], byte: usize) -> u64 {
        let low = lane_at_byte(&SECRET, byte).wrapping_add(self.seed);
        let high = lane_at_byte(&SECRET, byte + 8).wrapping_sub(self.seed);
        mix(chunk, low, high)
    }

    /// [`long`](Self::long), kept out of the caller's loop: there the compiler vectorises across two blocks
    /// at a time, and the shuffles cost more than that saves (see `benches/hash.rs` without this attribute).
    #[inline(never)]
    fn long_block<const N: usize>(&self, words: &[u32; N]) -> u64 {
        self.long(words)
    }

    /// [`long`](Self::long), kept out of the caller's loop so that the short paths have the registers.
    #[inline(never)]
    fn long_slice(&self, words: &[u32]) -> u64 {
        self.long(words)
    }

    #[inline(always)]
    fn long(&self, words: &[u32]) -> u64 {
        let mut lanes =
            [PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1];
        // The last stripe is taken from the end and may overlap the one before it, so the final word
        // never completes a block or a stripe of its own.
        let body = &words[..words.len() - 1];
        let (blocks, rest) = body.as_chunks::<BLOCK>();
        for block in blocks {
            self.accumulate(&mut lanes, block);
            for (lane, key) in lanes.iter_mut().zip(&self.keys[LANES - 8..]) {
                *lane = (*lane ^ (*lane >> 47) ^ key).wrapping_mul(PRIME32_1);
            }
        }
        self.accumulate(&mut lanes, rest);
        if let Some(stripe) = words.last_chunk::<STRIPE>() {
            add_stripe(&mut lanes, stripe, &self.last);
        }
        let mut sum = bytes(words.len()).wrapping_mul(PRIME64_1);
        for i in 0..4 {
            let (low, high) = (2 * i, 2 * i + 1);
            sum = sum.wrapping_add(fold(lanes[low] ^ self.merge[low], lanes[high] ^ self.merge[high]));
        }
        avalanche(sum)
    }

    /// Adds the whole stripes of `words`, of which there are at most 16.
    #[inline(always)]
    fn accumulate(&self, lanes: &mut [u64; 8], words: &[u32]) {
        for (stripe, key) in words.as_chunks::<STRIPE>().0.iter().zip(self.keys.array_windows::<8>()) {
            add_stripe(lanes, stripe, key);
        }
    }
}

#[inline(always)]
fn add_stripe(lanes: &mut [u64; 8], stripe: &[u32; STRIPE], key: &[u64; 8]) {
    let data: [u64; 8] = std::array::from_fn(|i| lane(stripe, 2 * i));
    for i in 0..8 {
        let keyed = data[i] ^ key[i];
        let product = (keyed & 0xFFFF_FFFF).wrapping_mul(keyed >> 32);
        lanes[i] = lanes[i].wrapping_add(product).wrapping_add(data[i ^ 1]);
    }
}

/// The words at `at` and after it as one little-endian 64-bit lane.
#[inline(always)]
fn lane(words: &[u32], at: usize) -> u64 {
    u64::from(words[at]) | (u64::from(words[at + 1]) << 32)
}

/// Eight bytes of `lanes` from any byte that is not the start of a lane.
const fn lane_at_byte(lanes: &[u64; LANES], byte: usize) -> u64 {
    let (at, shift) = (byte / 8, 8 * (byte % 8));
    (lanes[at] >> shift) | (lanes[at + 1] << (64 - shift))
}

#[inline(always)]
fn mix(chunk: &[u32; 4], low: u64, high: u64) -> u64 {
    fold(lane(chunk, 0) ^ low, lane(chunk, 2) ^ high)
}

/// The 128-bit product of two lanes, its halves folded together.
#[inline(always)]
const fn fold(a: u64, b: u64) -> u64 {
    let product = (a as u128).wrapping_mul(b as u128);
    product as u64 ^ (product >> 64) as u64
}

#[inline(always)]
const fn avalanche(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 37)).wrapping_mul(AVALANCHE);
    hash ^ (hash >> 32)
}

const fn bytes(words: usize) -> u64 {
    4 * words as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use xxhash_rust::xxh3::xxh3_64_with_seed;

    #[test]
    fn digests_are_those_of_xxh3_at_every_length() {
        let mut rng = fastrand::Rng::with_seed(1);
        let words: Vec<u32> = (0..600).map(|_| rng.u32(..)).collect();
        let all: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        for seed in [0, 1337, u64::MAX, rng.u64(..)] {
            let xxh3 = Xxh3::new(seed);
            for length in 0..=words.len() {
                let expected = xxh3_64_with_seed(&all[..4 * length], seed);
                assert_eq!(xxh3.digest(&words[..length]), expected, "{length} words, seed {seed}");
            }
        }
    }
}
