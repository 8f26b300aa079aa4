#!/usr/bin/env bash
# What `cargo publish` would upload: complete, and nothing that is nobody's business.
set -euo pipefail
cd "$(dirname "$0")/.."

# --allow-dirty: the check is as good on a work tree with changes in it.
files="$(cargo package --locked --allow-dirty --list)"

for file in LICENSE NOTICE README.md CHANGELOG.md Cargo.lock examples/embed.rs; do
    if ! grep -qxF "$file" <<<"$files"; then
        echo "$file is not in the package"
        exit 1
    fi
done
if grep -E '^(\.ci/|target/|docs/images/)' <<<"$files"; then
    echo "these files do not belong in the package: see 'exclude' in Cargo.toml"
    exit 1
fi
# Files that the code includes at compile time must travel with it, whatever 'exclude' says.
missing="$(
    git ls-files assets kernels | while read -r file; do
        grep -qxF "$file" <<<"$files" || echo "$file"
    done
)"
if [ -n "$missing" ]; then
    printf 'compiled in, but not in the package:\n%s\n' "$missing"
    exit 1
fi

# --no-verify: the sources have just been compiled; compiling them from the archive again proves little more.
# --offline: Cargo.lock and what the build has fetched are enough; a registry that does not answer is no fault here.
# crates.io refuses archives above 10 MiB.
cargo package --locked --offline --allow-dirty --no-verify
archive="$(find "${CARGO_TARGET_DIR:-target}/package" -maxdepth 1 -name 'kvroute-*.crate' -printf '%T@ %p\n' | sort -n | tail -n 1 | cut -d' ' -f2)"
size="$(stat -c %s "$archive")"
printf '%d files, %d KiB\n' "$(wc -l <<<"$files")" "$((size / 1024))"
[ "$size" -lt $((10 * 1024 * 1024)) ]
