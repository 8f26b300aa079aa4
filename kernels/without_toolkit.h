// The few names of CUDA C++ that block_hash.cu uses, for clang without a CUDA toolkit.
#pragma once

#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(threads) __attribute__((launch_bounds(threads)))

struct ThreadIndex {
    __declspec(property(get = get_x)) unsigned int x;
    static inline __device__ __attribute__((always_inline)) unsigned int get_x() { return __nvvm_read_ptx_sreg_tid_x(); }
};

struct BlockIndex {
    __declspec(property(get = get_x)) unsigned int x;
    static inline __device__ __attribute__((always_inline)) unsigned int get_x() { return __nvvm_read_ptx_sreg_ctaid_x(); }
};

extern const __device__ ThreadIndex threadIdx;
extern const __device__ BlockIndex blockIdx;

static inline __device__ __attribute__((always_inline)) unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}
