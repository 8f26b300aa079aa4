#!/usr/bin/env bash
# What mode kv's cost model is worth beside other rules, in simulation: every load of loads.txt, five seeds, means and how far
# the seeds lie apart, then geometric means over the loads.
#
#   benches/routing/run.sh [OUT] [LOAD ...]
#
# CONV and SYN name Mooncake's two traces; KVROUTE the binary, which is target/release/kvroute if nothing is said. OUT is a folder for
# the tables and the JSON, target/routing if nothing is said. With names of loads only those are run. Figures depend on
# the seeds and the traces alone, not on the machine.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
cd "$here/../.."

kvroute="${KVROUTE:-target/release/kvroute}"
conv="${CONV:?names the conversation trace, a file of JSON lines}"
syn="${SYN:?names the synthetic trace, a file of JSON lines}"
out="${1:-target/routing}"
shift || true
policies="${POLICIES:-blocks,blocks-s20c2,time,time-hold,dynamo-tuned,smg,llm-d,least-loaded,round-robin,pooled}"
seeds="${SEEDS:-5}"
mkdir -p "$out"

while IFS='|' read -r name flags; do
    case "$name" in '' | '#'*) continue ;; esac
    name="${name%"${name##*[![:space:]]}"}"
    if [ "$#" -gt 0 ] && [[ " $* " != *" $name "* ]]; then continue; fi
    flags="${flags//CONV/$conv}"
    flags="${flags//SYN/$syn}"
    printf '\n## %s\n\n`kvroute simulate%s`\n\n' "$name" "${flags//$(dirname "$conv")\//}"
    # The flags are words on purpose.
    # shellcheck disable=SC2086
    "$kvroute" simulate $flags --policy "$policies" --seeds "$seeds" --json "$out/$name.json" | tee "$out/$name.md"
done <"$here/loads.txt"

printf '\n## Geometric means over the loads\n\n'
awk -f "$here/means.awk" "$out"/*.md
