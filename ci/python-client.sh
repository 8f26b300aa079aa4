#!/usr/bin/env bash
# OpenAI's own Python client against `kvroute up`: what its users do, by its own parser.
# Skipped, and said so, where Python or the package `openai` is missing. To have it: pip install openai
set -euo pipefail
cd "$(dirname "$0")/.."

skip() {
    cat <<MESSAGE
**********************************************************************
SKIPPED: the Python client test did NOT run: $*
**********************************************************************
MESSAGE
    exit 0
}

python="${PYTHON:-python3}"
command -v "$python" >/dev/null || skip "there is no $python (PYTHON names another)"
"$python" -c 'import openai' 2>/dev/null || skip "$python has no package openai (pip install openai)"

# The binary that the tests are built with. `cargo build` leaves the dev-dependencies out, resolves other features for
# the rest, and would compile half of it again.
cargo test --locked --no-run
log="$(mktemp)"
"${CARGO_TARGET_DIR:-target}/debug/kvroute" up --engines 2 --port 0 --admin-port 0 >"$log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null; wait "$server" 2>/dev/null; rm -f "$log"' EXIT

# The line of its welcome that says where clients go; it comes once everything listens.
url=""
for _ in $(seq 100); do
    url="$(sed -n 's/^ *clients *\(http:[^ ]*\)$/\1/p' "$log")"
    [ -z "$url" ] || break
    kill -0 "$server" || break
    sleep 0.1
done
if [ -z "$url" ]; then
    echo "kvroute up did not start; it said:"
    cat "$log"
    exit 1
fi

"$python" tests/python/openai_client.py "$url" || {
    echo "the log of kvroute up:"
    cat "$log"
    exit 1
}
