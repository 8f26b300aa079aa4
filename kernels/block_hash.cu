// XXH3-64 with a seed, one digest for each block of tokens.
//
// The rule is that of src/hash/xxh3.rs, bit for bit: the digest of a block's tokens as little-endian 32-bit words. The
// published algorithm (xxHash specification, XXH3 64-bit, default secret) has a path for each class of lengths, and each path
// is a kernel here. One kernel with all of them would need the registers of the greediest, and every launch knows its class.
//
// One thread hashes one block. Blocks lie one after another without gaps, `words` words each. A warp reads 32 neighbouring
// blocks, so what one load fetches beside its word is what the next loads of the same threads want, and is in the cache
// by then. Tokens come over PCIe, which takes far longer than any of this (docs/gpu.md has the figures); that is why nothing
// here is tuned further.
//
// No header of CUDA is included, so that clang alone compiles it: see ci/ptx.sh. nvcc and NVRTC take it as it is.

#ifdef WITHOUT_TOOLKIT
#include "without_toolkit.h"
#endif

typedef unsigned int u32;
typedef unsigned long long u64;

// Never more threads in a CUDA block than this (src/accel/kernels.rs launches so many): the compiler may then give
// each up to 255 registers, and no launch fails for want of them.
#define THREADS 256
#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS)
// Inlined always: PTX without calls has no stack.
#define INLINE static __device__ __forceinline__

#define PRIME32_1 0x9E3779B1u
#define PRIME32_2 0x85EBCA77u
#define PRIME32_3 0xC2B2AE3Du
#define PRIME64_1 0x9E3779B185EBCA87ull
#define PRIME64_2 0xC2B2AE3D27D4EB4Full
#define PRIME64_3 0x165667B19E3779F9ull
#define PRIME64_4 0x85EBCA77C2B2AE63ull
#define PRIME64_5 0x27D4EB2F165667C5ull
#define AVALANCHE 0x165667919E3779F9ull
#define RRMXMX 0x9FB21C651E98DF25ull

// Words in a stripe, and stripes between two scrambles: each stripe's key starts one lane further into the secret.
#define STRIPE 16
#define STRIPES 16

// The default secret in lanes of eight bytes.
static __constant__ const u64 SECRET[24] = {
    0xbe4ba423396cfeb8ull, 0x1cad21f72c81017cull, 0xdb979083e96dd4deull, 0x1f67b3b7a4a44072ull,
    0x78e5c0cc4ee679cbull, 0x2172ffcc7dd05a82ull, 0x8e2443f7744608b8ull, 0x4c263a81e69035e0ull,
    0xcb00c391bb52283cull, 0xa32e531b8b65d088ull, 0x4ef90da297486471ull, 0xd8acdea946ef1938ull,
    0x3f349ce33f76faa8ull, 0x1d4f0bc7c7bbdcf9ull, 0x3159b4cd4be0518aull, 0x647378d9c97e9fc8ull,
    0xc3ebd33483acc5eaull, 0xeb6313faffa081c5ull, 0x49daf0b751dd0d17ull, 0x9e68d429265516d3ull,
    0xfca1477d58be162bull, 0xce31d07ad1b8f88full, 0x280416958f3acb45ull, 0x7e404bbbcafbd7afull,
};

// A lane of the secret with the seed in it: added in even lanes, subtracted in odd ones.
INLINE u64 key(u32 lane, u64 seed) {
    return (lane & 1) ? SECRET[lane] - seed : SECRET[lane] + seed;
}

// Eight bytes of two lanes that follow each other, from a byte that is not the start of one.
INLINE u64 straddle(u64 lane, u64 next, u32 byte) {
    return (lane >> (8 * byte)) | (next << (64 - 8 * byte));
}

// Eight bytes of the secret from any byte that is not the start of a lane.
INLINE u64 secret_at(u32 byte) {
    return straddle(SECRET[byte / 8], SECRET[byte / 8 + 1], byte % 8);
}

// The same of the secret with the seed in it.
INLINE u64 key_at(u32 byte, u64 seed) {
    return straddle(key(byte / 8, seed), key(byte / 8 + 1, seed), byte % 8);
}

INLINE u64 lane(const u32 *words) {
    return (u64)words[0] | ((u64)words[1] << 32);
}

INLINE u64 fold(u64 a, u64 b) {
    return (a * b) ^ __umul64hi(a, b);
}

INLINE u64 mix(const u32 *words, u64 low, u64 high) {
    return fold(lane(words) ^ low, lane(words + 2) ^ high);
}

INLINE u64 avalanche(u64 hash) {
    hash = (hash ^ (hash >> 37)) * AVALANCHE;
    return hash ^ (hash >> 32);
}

INLINE u64 rotate_left(u64 value, u32 by) {
    return (value << by) | (value >> (64 - by));
}

INLINE u32 swap_bytes(u32 word) {
    return (word << 24) | ((word & 0xff00u) << 8) | ((word >> 8) & 0xff00u) | (word >> 24);
}

INLINE u64 swap_bytes(u64 value) {
    return ((u64)swap_bytes((u32)value) << 32) | swap_bytes((u32)(value >> 32));
}

// 1 or 2 words.
INLINE u64 upto_8_bytes(const u32 *words, u32 count, u64 seed) {
    u64 flip = (SECRET[1] ^ SECRET[2]) - (seed ^ ((u64)swap_bytes((u32)seed) << 32));
    u64 hash = (((u64)words[0] << 32) | words[count - 1]) ^ flip;
    hash ^= rotate_left(hash, 49) ^ rotate_left(hash, 24);
    hash *= RRMXMX;
    hash ^= (hash >> 35) + 4 * count;
    hash *= RRMXMX;
    return hash ^ (hash >> 28);
}

// 3 or 4 words: the first and the last eight bytes, which may overlap.
INLINE u64 upto_16_bytes(const u32 *words, u32 count, u64 seed) {
    u64 low = lane(words) ^ ((SECRET[3] ^ SECRET[4]) + seed);
    u64 high = lane(words + count - 2) ^ ((SECRET[5] ^ SECRET[6]) - seed);
    return avalanche(4 * count + swap_bytes(low) + high + fold(low, high));
}

// 5 to 32 words: pairs of 16 bytes, one from the front and one from the back, until they meet in the middle.
INLINE u64 upto_128_bytes(const u32 *words, u32 count, u64 seed) {
    u64 sum = 4ull * count * PRIME64_1;
    u32 pairs = (count + 7) / 8;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        if (i < pairs) {
            sum += mix(words + 4 * i, key(4 * i, seed), key(4 * i + 1, seed));
            sum += mix(words + count - 4 * (i + 1), key(4 * i + 2, seed), key(4 * i + 3, seed));
        }
    }
    return avalanche(sum);
}

// 33 to 60 words. From the ninth chunk on, and for the last, the keys start at odd bytes of the secret, and the seed is
// added to what is read there.
INLINE u64 upto_240_bytes(const u32 *words, u32 count, u64 seed) {
    u64 sum = 4ull * count * PRIME64_1;
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        sum += mix(words + 4 * i, key(2 * i, seed), key(2 * i + 1, seed));
    }
    sum = avalanche(sum);
    u32 chunks = count / 4;
#pragma unroll
    for (u32 i = 8; i < 15; i++) {
        if (i < chunks) {
            u32 byte = 3 + 16 * (i - 8);
            sum += mix(words + 4 * i, secret_at(byte) + seed, secret_at(byte + 8) - seed);
        }
    }
    sum += mix(words + count - 4, secret_at(119) + seed, secret_at(127) - seed);
    return avalanche(sum);
}

// Eight accumulators, one for each lane of a stripe.
struct Lanes {
    u64 of[8];
};

INLINE void add_lane(Lanes &lanes, const u32 *stripe, u32 i, u64 key) {
    u64 data = lane(stripe + 2 * i);
    u64 keyed = data ^ key;
    lanes.of[i ^ 1] += data;
    lanes.of[i] += (keyed & 0xffffffffu) * (keyed >> 32);
}

// 61 words and more.
INLINE u64 above_240_bytes(const u32 *words, u32 count, u64 seed) {
    Lanes lanes = {{PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1}};
    // The last stripe is taken from the end and may overlap the one before it, so the final word never completes a stripe.
    u32 stripes = (count - 1) / STRIPE;
    for (u32 stripe = 0; stripe < stripes; stripe++) {
        u32 first = stripe % STRIPES;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            add_lane(lanes, words + (u64)stripe * STRIPE, i, key(first + i, seed));
        }
        if (first == STRIPES - 1) {
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                lanes.of[i] = (lanes.of[i] ^ (lanes.of[i] >> 47) ^ key(16 + i, seed)) * PRIME32_1;
            }
        }
    }
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        add_lane(lanes, words + count - STRIPE, i, key_at(121 + 8 * i, seed));
    }
    u64 sum = 4ull * count * PRIME64_1;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u64 low = lanes.of[2 * i] ^ key_at(11 + 16 * i, seed);
        sum += fold(low, lanes.of[2 * i + 1] ^ key_at(19 + 16 * i, seed));
    }
    return avalanche(sum);
}

// What all kernels share: which block is this thread's, if any. 64 bits, since a chunk may have more bytes than 32 can say.
#define EACH_BLOCK(digest)                                                                   \
    u64 block = (u64)blockIdx.x * THREADS + threadIdx.x;                                     \
    if (block < blocks) {                                                                    \
        hashes[block] = digest(tokens + block * words, words, seed);                         \
    }

INLINE u64 upto_16_bytes_of_any(const u32 *words, u32 count, u64 seed) {
    return count < 3 ? upto_8_bytes(words, count, seed) : upto_16_bytes(words, count, seed);
}

// `hashes` of `blocks` blocks of 1 to 4 words in `tokens`.
KERNEL hash_1_to_4_words(const u32 *tokens, u64 *hashes, u32 blocks, u32 words, u64 seed) {
    EACH_BLOCK(upto_16_bytes_of_any)
}

KERNEL hash_5_to_32_words(const u32 *tokens, u64 *hashes, u32 blocks, u32 words, u64 seed) {
    EACH_BLOCK(upto_128_bytes)
}

KERNEL hash_33_to_60_words(const u32 *tokens, u64 *hashes, u32 blocks, u32 words, u64 seed) {
    EACH_BLOCK(upto_240_bytes)
}

KERNEL hash_61_words_and_more(const u32 *tokens, u64 *hashes, u32 blocks, u32 words, u64 seed) {
    EACH_BLOCK(above_240_bytes)
}
