#!/usr/bin/env bash
# What is too slow for every change: property tests with many more cases, a hundred thousand worlds of engines and faults, an hour's
# worth of blocks that come and go, a trace looped for a day of its time, ten minutes of fuzzing, more of the model checker, the
# kernels through NVIDIA's assembler, then the sanitizers.
# PROPTEST_CASES sets the number of cases; a failure prints its seed and the smallest input. KVROUTE_TURNOVERS,
# KVROUTE_TRACE and KVROUTE_TRACE_HOURS are tests/index_memory.rs's, KVROUTE_WORLDS and KVROUTE_FIRST_WORLD are tests/fault_world's:
# other worlds every time, unless said.
set -euo pipefail
cd "$(dirname "$0")/.."

cases="${PROPTEST_CASES:-20000}"
# Optimised, or most of the time would go into unoptimised code; debug assertions stay on, they are half of the test.
export CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true
long=(cargo test --locked --release --no-default-features --target-dir target/long)
PROPTEST_CASES="$cases" "${long[@]}" --lib --tests
KVROUTE_TURNOVERS="${KVROUTE_TURNOVERS:-600000}" KVROUTE_TRACE_HOURS="${KVROUTE_TRACE_HOURS:-24}" \
    "${long[@]}" --test index_memory -- --nocapture
KVROUTE_WORLDS="${KVROUTE_WORLDS:-100000}" KVROUTE_FIRST_WORLD="${KVROUTE_FIRST_WORLD:-$((RANDOM * 1000000))}" \
    cargo test --locked --release --target-dir target/long --test fault_world -- --nocapture
unset CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS

bash ci/fuzz.sh 600
bash ci/fuzz-input.sh 600
LOOM_MAX_PREEMPTIONS=2 LOOM_MAX_DURATION=120 bash ci/loom.sh
bash ci/ptxas.sh
# The property tests under a sanitizer have cases of their own number.
unset PROPTEST_CASES
bash ci/asan.sh
bash ci/tsan.sh
