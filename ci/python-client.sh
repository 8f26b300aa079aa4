#!/usr/bin/env bash
# OpenAI's own Python client against the frontend, in the clear and over TLS with an API key: tests/openai_client.rs with a
# Python that has the package.
# Skipped, and said so, where there is no Python or the package cannot be had.
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

command -v python3 >/dev/null || skip "there is no python3"
venv="${CARGO_TARGET_DIR:-target}/python-client"
if ! "$venv/bin/python" -c 'import openai' 2>/dev/null; then
    python3 -m venv "$venv" || skip "python3 cannot make a virtual environment (Debian: apt-get install python3-venv)"
    "$venv/bin/pip" install --quiet 'openai>=3,<4' || skip "pip cannot install the package openai"
fi
KVROUTE_PYTHON="$(realpath -s "$venv")/bin/python" cargo test --locked --test openai_client -- --nocapture
