#!/usr/bin/env bash
# Everything that comes from outside, damaged at random: ci/fuzz-input.sh [SECONDS [FIRST_SEED]]. Twenty seconds for each target by
# default. The targets are tests, built as all others are; a failure prints the input and its seed.
set -euo pipefail
cd "$(dirname "$0")/.."

export KVROUTE_FUZZ_SECONDS="${1:-20}"
if [ -n "${2:-}" ]; then export KVROUTE_FUZZ_SEED="$2"; fi
# One at a time, so that each has the machine to itself for as long as it says.
cargo test --locked --test mutated_input -- --test-threads=1 --nocapture
