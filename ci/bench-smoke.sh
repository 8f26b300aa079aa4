#!/usr/bin/env bash
# Every bench runs once, unmeasured, so that none of them rots. Started through `cargo test`, criterion does one
# iteration of each; the build is the tests' own, where `cargo bench` would compile everything anew, optimised.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo test --locked --bench '*'
