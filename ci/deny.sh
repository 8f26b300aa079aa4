#!/usr/bin/env bash
# Licences, duplicate and banned crates, and where crates come from: the rules are in deny.toml.
#
# In CI a missing cargo-deny is compiled, once a machine (it takes some minutes). Elsewhere nobody is made to wait for
# it, and the skip is said loudly. Advisories need the database that cargo-deny clones from GitHub, which not every
# machine reaches, so they are asked for by name: `ci/deny.sh advisories`.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.20.2

if ! cargo deny --version >/dev/null 2>&1 && [ "${CI:-false}" = true ]; then
    echo "installing cargo-deny $version with cargo"
    cargo install --locked "cargo-deny@$version" || echo "cargo-deny could not be installed"
fi
if ! cargo deny --version >/dev/null 2>&1; then
    cat <<MESSAGE
**********************************************************************
SKIPPED: licences, duplicates and sources of dependencies were NOT
checked, because there is no cargo-deny. To check them:

    cargo install --locked cargo-deny@$version
    bash ci/deny.sh
**********************************************************************
MESSAGE
    exit 0
fi

if [ "$#" -eq 0 ]; then
    set -- bans licenses sources
fi
cargo deny --locked check "$@"
