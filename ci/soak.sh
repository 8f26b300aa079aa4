#!/usr/bin/env bash
# Mixed load on a real frontend and engines for so many minutes (3), while engines are killed, clients leave, bodies are malformed and the
# configuration changes: see tests/soak. KVROUTE_SOAK_SEED repeats one, KVROUTE_SOAK_RATE is requests a second (8).
set -euo pipefail
cd "$(dirname "$0")/.."

export KVROUTE_SOAK_MINUTES="${1:-3}"
cargo test --locked --test soak -- --ignored --nocapture --exact soak
