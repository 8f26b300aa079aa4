#!/usr/bin/env bash
# The index against its reference on random lists of operations: ci/fuzz.sh [SECONDS [FIRST_SEED]]. A minute by default.
# A failure prints the shortest list of operations found that shows it, and the seed to begin with for seeing it again.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"

cargo run --locked --release --target-dir ../target/fuzz -- "${1:-60}" ${2:+"$2"}
