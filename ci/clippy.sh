#!/usr/bin/env bash
# The lints of Cargo.toml and clippy.toml, over everything there is: with the server, then the core alone, where
# an import or a function that only the server uses would be unused.
set -euo pipefail
cd "$(dirname "$0")/.."

# -D warnings after the `--` reaches this crate only. In RUSTFLAGS it would reach every dependency and have all of
# them compiled again.
cargo clippy --locked --all-targets -- -D warnings
cargo clippy --locked --all-targets --no-default-features -- -D warnings
