#!/usr/bin/env bash
# Whether the simulator says what the live system does: the first requests of a trace through a frontend and mock engines over
# sockets, in real time, and through the simulator, with the same engine times, cache and page size.
#
#   benches/routing/agreement.sh TRACE [REQUESTS] [ENGINES] [RATE]
#
# The live side runs SPEED times as fast as it says (engines and arrivals alike), so its seconds are multiplied by that. What the
# router and the machine take is multiplied too: on a busy machine choose a smaller SPEED. KVROUTE names the binary.
set -euo pipefail
cd "$(dirname "$0")/../.."

kvroute="${KVROUTE:-target/release/kvroute}"
trace="${1:?a trace, a file of JSON lines}"
requests="${2:-2000}"
engines="${3:-8}"
rate="${4:-1.5}"
speed="${SPEED:-4}"
# Of a cell with several numbers the first.
column() { awk -F'|' -v row="$1" -v name="$2" '
    { for (i = 2; i < NF; i++) { cell = $i; gsub(/^ +| +$/, "", cell); cells[i] = cell } }
    !at { for (i = 2; i < NF; i++) if (cells[i] == name) at = i; next }
    cells[2] == row { split(cells[at], words, " "); print words[1]; exit }'; }

live="$("$kvroute" drive --trace "$trace" --requests "$requests" --engines "$engines" --router-mode kv \
    --rate "$(awk "BEGIN { print $rate * $speed }")" --engine-speedup "$speed" --engine-times h100x4 \
    --engine-cache-tokens 448000 --block-size 512 --log error)"
simulated="$("$kvroute" simulate --trace "$trace" --requests "$requests" --engines "$engines" --policy time \
    --rate "$rate" --arrivals recorded --warm-up 0 --seeds 5)"

hit_live="$(column kv 'hit rate' <<<"$live")"
hit_simulated="$(column time 'hit rate' <<<"$simulated")"
ttft_live="$(column kv 'TTFT mean' <<<"$live" | awk -v speed="$speed" '{ print $1 * speed }')"
ttft_simulated="$(column time 'TTFT mean' <<<"$simulated")"
awk -v hl="$hit_live" -v hs="$hit_simulated" -v tl="$ttft_live" -v ts="$ttft_simulated" 'BEGIN {
    printf "| | live | simulated | apart |\n|---|---|---|---|\n"
    printf "| hit rate | %.1f %% | %.1f %% | %+.1f points |\n", hl, hs, hs - hl
    printf "| TTFT mean | %.3f s | %.3f s | %+.1f %% |\n", tl, ts, 100 * (ts / tl - 1)
}'
