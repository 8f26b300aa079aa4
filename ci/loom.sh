#!/usr/bin/env bash
# The index's lookups against its writer under loom, a model checker that tries the orders in which threads may see each
# other's stores: all of them with up to LOOM_MAX_PREEMPTIONS switches at any moment, but for no longer than
# LOOM_MAX_DURATION seconds a test. Arguments go to the tests.
set -euo pipefail
cd "$(dirname "$0")/.."

# --cfg reaches every dependency, so the build has a directory of its own. Optimised: models run thousands of times.
export RUSTFLAGS="--cfg loom"
export CARGO_PROFILE_RELEASE_LTO=off
export CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true
export LOOM_MAX_PREEMPTIONS="${LOOM_MAX_PREEMPTIONS:-1}"
cargo test --locked --release --no-default-features --test prefix_index_loom --target-dir target/loom -- "$@"
