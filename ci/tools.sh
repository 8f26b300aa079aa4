#!/usr/bin/env bash
# Installs what the checks need and a fresh machine may lack. Says so when it does; does nothing otherwise.
set -euo pipefail

say() { printf 'tools: %s\n' "$*"; }

if ! command -v cargo >/dev/null; then
    say "there is no cargo; install Rust's stable toolchain with rustup (https://rustup.rs), then run this again"
    exit 1
fi

for component in rustfmt clippy; do
    # `cargo fmt` is provided by the component rustfmt, `cargo clippy` by clippy.
    if ! cargo "${component/rustfmt/fmt}" --version >/dev/null 2>&1; then
        say "adding the component $component to the Rust toolchain"
        rustup component add "$component"
    fi
done

# libzmq, esaxx and a few others are C and C++ that cargo compiles.
missing=()
command -v cc >/dev/null || missing+=(gcc libc6-dev)
command -v c++ >/dev/null || missing+=(g++)
if [ "${#missing[@]}" -gt 0 ]; then
    if ! command -v apt-get >/dev/null; then
        say "there is no C or C++ compiler; install one (cc and c++ on the PATH), then run this again"
        exit 1
    fi
    say "installing with apt-get: ${missing[*]}"
    as_root=()
    [ "$(id -u)" -eq 0 ] || as_root=(sudo)
    "${as_root[@]}" apt-get update -q
    "${as_root[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}"
fi

say "$(rustc --version), $(cargo fmt --version), $(cargo clippy --version), $(cc --version | head -n 1)"
