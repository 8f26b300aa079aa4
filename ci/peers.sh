#!/usr/bin/env bash
# Whether the package that measures kvroute beside its peers still compiles: format and lints, nothing is run.
#
# Not part of `just check`: it compiles a hundred crates that kvroute itself does not need.
set -euo pipefail
cd "$(dirname "$0")/../benches/peers"

cargo fmt --check
cargo clippy --locked --all-targets
