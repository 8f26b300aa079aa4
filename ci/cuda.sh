#!/usr/bin/env bash
# The kernels and the stand-in that runs them where there is no GPU: the committed PTX is that of its source, and the
# stand-in finds the mistakes that are planted for it. What the tests of the project do with the two is part of `cargo test`.
set -euo pipefail
cd "$(dirname "$0")/.."

bash ci/ptx.sh
package=(--locked --manifest-path tests/cuda-stand-in/Cargo.toml)
target=(--target-dir target/cuda-stand-in)
cargo fmt --check --manifest-path tests/cuda-stand-in/Cargo.toml
cargo clippy "${package[@]}" "${target[@]}" --all-targets -- -D warnings
cargo test --quiet "${package[@]}" "${target[@]}"
