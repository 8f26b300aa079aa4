#!/usr/bin/env bash
# The documentation builds and every link in it leads somewhere: with the server, then the core alone, where a link
# from a core room to a server room would break.
#
# One kind of link is let pass: from a public page to a private item. Module docs name the files of their room, which
# are private; contributors follow such a link in the source, and the page shows it as plain text.
set -euo pipefail
cd "$(dirname "$0")/.."

export RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links"
cargo doc --locked --no-deps --lib
cargo doc --locked --no-deps --lib --no-default-features
