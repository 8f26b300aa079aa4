#!/usr/bin/env bash
# kernels/block_hash.ptx is what compiling kernels/block_hash.cu gives. `ci/ptx.sh write` compiles it anew; without that word
# the two are compared.
#
# One compiler makes the committed file (its name is in the first line): clang needs nothing of NVIDIA's, and writes the same
# bytes everywhere. PTX for sm_70 in version 6.0 of the language is what every driver since CUDA 9 takes, for every
# device since. Another clang makes other bytes that are as good; then both are interpreted and must agree. With no clang
# there is nothing to compare with, and that is said loudly.
set -euo pipefail
cd "$(dirname "$0")/.."

clang="${CLANG:-clang-19}"
committed=kernels/block_hash.ptx
fresh=target/ptx/block_hash.ptx

if ! command -v "$clang" >/dev/null; then
    cat <<MESSAGE
**********************************************************************
SKIPPED: kernels/block_hash.ptx was NOT compared with its source, since
there is no $clang. On Debian and Ubuntu:

    apt-get install --no-install-recommends clang-19
    bash ci/ptx.sh
**********************************************************************
MESSAGE
    [ "${1:-check}" = check ]
    exit
fi

mkdir -p target/ptx
{
    echo "// Compiled from block_hash.cu by ci/ptx.sh with $("$clang" --version | head -n 1)"
    # Everything is inlined and no header of a toolkit is there, hence the flags; -fms-extensions is for `threadIdx.x`,
    # a member that is a function.
    "$clang" -x cuda --cuda-device-only --cuda-gpu-arch=sm_70 -nocudainc -nocudalib -O3 -fms-extensions \
        -Wall -Werror -DWITHOUT_TOOLKIT -S -o - kernels/block_hash.cu
} >"$fresh"

if [ "${1:-check}" = write ]; then
    cp "$fresh" "$committed"
    echo "wrote $committed"
elif cmp -s "$fresh" "$committed"; then
    echo "$committed is what its source gives"
elif [ "$(head -n 1 "$fresh")" = "$(head -n 1 "$committed")" ]; then
    echo "$committed is not what its source gives: run 'just ptx' and commit both"
    exit 1
else
    echo "another compiler made $committed:"
    head -qn 1 "$committed" "$fresh"
    echo "so the kernels of both are interpreted, and must agree"
    KVROUTE_OTHER_PTX="$PWD/$fresh" cargo test --quiet --locked --manifest-path tests/cuda-stand-in/Cargo.toml \
        --target-dir target/cuda-stand-in --test kernels
fi
