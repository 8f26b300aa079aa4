#!/usr/bin/env bash
# What is too slow for every change: property tests with many more cases, ten minutes of fuzzing, more of the model
# checker, the kernels through NVIDIA's assembler, then the sanitizers.
# PROPTEST_CASES sets the number of cases; a failure prints its seed and the smallest input.
set -euo pipefail
cd "$(dirname "$0")/.."

cases="${PROPTEST_CASES:-20000}"
# Optimised, or most of the time would go into unoptimised code; debug assertions stay on, they are half of the test.
CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true PROPTEST_CASES="$cases" \
    cargo test --locked --release --no-default-features --lib --tests --target-dir target/long
bash ci/fuzz.sh 600
LOOM_MAX_PREEMPTIONS=2 LOOM_MAX_DURATION=120 bash ci/loom.sh
bash ci/ptxas.sh
bash ci/asan.sh
bash ci/tsan.sh
