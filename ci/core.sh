#!/usr/bin/env bash
# The embeddable core stands by itself: it compiles without the server and its dependencies, and the example that
# embeds it runs.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --locked --no-default-features
cargo run --locked --no-default-features --example embed

# What the core must not know. A dependency that comes in through another crate's features is found as well.
found=0
tree="$(cargo tree --locked --no-default-features --edges normal --prefix none --format '{p}')"
for crate in tokio hyper http axum serde_json clap toml zmq; do
    if grep -q "^$crate v" <<<"$tree"; then
        echo "the core depends on $crate; it must not"
        found=1
    fi
done

# Time and chance are arguments. (fastrand::Rng as a parameter is what is wanted; one made here is not.) The sampler of
# GPUs is a feature, and apart.
for room in slot.rs hash event index load device select; do
    while read -r file; do
        if sed -e '/^#\[cfg(test)\]$/,$d' -e 's://.*$::' "$file" |
            grep -nE '\b(Instant|SystemTime)\b|Rng::(new|with_seed)|fastrand::[a-z]|println!' ; then
            echo "^ $file: the core reads no clock, makes no random source and prints nothing"
            found=1
        fi
    done < <(find "src/$room" -name '*.rs' -not -path 'src/device/nvml/*' | sort)
done
exit "$found"
