#!/usr/bin/env bash
# What only builds with the feature `otel` have: the lints over it, and its test with a collector of its own.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo clippy --locked --features otel --lib --bins --test traces -- -D warnings
cargo test --locked --features otel --test traces
