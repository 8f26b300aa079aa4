#!/usr/bin/env bash
# What kvroute adds to a request as an HTTP proxy, beside other routers: requests a second, and the median time beyond what the
# same request takes without a router.
#
#   benches/front_door/run.sh [--quick] [PEER ...]
#
# PEER is smg (its policy cache_aware), smg-rr (round_robin) or vllm-router (cache_aware); without any, all that are installed
# take part. --quick takes smg alone, the first three cases, no streams: about five minutes. VENV names a Python environment with
# the peers (pip install smg vllm-router). TOKENIZER names a folder with tokenizer.json, tokenizer_config.json and a chat
# template, with which kvroute makes tokens of every prompt; without it the files come from the wheel litellm, which has
# DeepSeek's. KVROUTE is the binary, target/release/kvroute if nothing is said; PAIRS and SECONDS_A_RUN say how often and how long.
#
# Router, backend and wrk share the machine. Every run has a run of the peer and one without a router right beside it, in turn in
# either order, and ratios are of such neighbours only. It prints, ours over theirs:
#
#   RATIO front_door_rps CASE vs PEER MEDIAN          above 1 is better
#   RATIO front_door_added_p50 CASE vs PEER MEDIAN    below 1 is better
#   INTERVAL ... LOW HIGH                             in which the median lies with a confidence of about 95 %
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
cd "$here/../.."

quick=""
peers=()
for argument in "$@"; do
    case "$argument" in
        --quick) quick=1 ;;
        smg | smg-rr | vllm-router) peers+=("$argument") ;;
        *) echo "$argument: not --quick, smg, smg-rr or vllm-router" >&2; exit 2 ;;
    esac
done
kvroute="${KVROUTE:-target/release/kvroute}"
pairs="${PAIRS:-10}"
seconds="${SECONDS_A_RUN:-1}"
venv="${VENV:-target/front-door/venv}"
cases=(small big_repeat big_turn)
streams=("")
if [ -z "$quick" ]; then
    cases+=(big_new)
    streams+=(stream)
fi
if [ "${#peers[@]}" -eq 0 ]; then
    for peer in smg smg-rr vllm-router; do
        if [ -x "$venv/bin/${peer%-rr}" ] && { [ -z "$quick" ] || [ "$peer" = smg ]; }; then peers+=("$peer"); fi
    done
fi
if [ "${#peers[@]}" -eq 0 ]; then
    echo "no peer is installed: python3 -m venv $venv && $venv/bin/pip install smg vllm-router" >&2
    exit 1
fi
command -v wrk >/dev/null || { echo "wrk is not installed: apt-get install wrk" >&2; exit 1; }

# shellcheck source-path=SCRIPTDIR source=processes.sh
. "$here/processes.sh"

if [ -z "${TOKENIZER:-}" ]; then
    TOKENIZER=target/front-door/tokenizer
    if [ ! -f "$TOKENIZER/tokenizer.json" ]; then
        mkdir -p "$TOKENIZER"
        python3 -m pip download --quiet --no-deps --dest "$scratch/wheel" litellm
        python3 - "$scratch"/wheel/*.whl "$TOKENIZER" <<'PYTHON'
import json, sys, zipfile
wheel, folder = sys.argv[1:]
name = "litellm/litellm_core_utils/tokenizers/deepseek_tokenizer.json"
open(f"{folder}/tokenizer.json", "wb").write(zipfile.ZipFile(wheel).read(name))
special = {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"}
json.dump(special, open(f"{folder}/tokenizer_config.json", "w"))
PYTHON
    fi
    cp "$here/chat_template.jinja" "$TOKENIZER/chat_template.jinja"
fi

cargo build --quiet --release --manifest-path "$here/Cargo.toml" --target-dir target/front-door/build
free_port; first=$port
free_port; second=$port
start backend target/front-door/build/release/kvroute-front-door "$first" "$second"
workers=("http://127.0.0.1:$first" "http://127.0.0.1:$second")
await backend "$first"

declare -A at=([direct]=$first)
free_port; at[kvroute]=$port
start kvroute "$kvroute" frontend --host 127.0.0.1 --port "$port" --admin-port 0 --router-mode kv --log error \
    --tokenizer "$TOKENIZER" --worker "url=${workers[0]},model=bench,block_size=16" --worker "url=${workers[1]},model=bench,block_size=16"
await kvroute "$port"
for peer in "${peers[@]}"; do
    free_port; at[$peer]=$port
    # Both serve their metrics on a port of their own, and do not start where another has it.
    free_port
    common=(--host 127.0.0.1 --port "${at[$peer]}" --prometheus-port "$port" --worker-urls "${workers[@]}" --log-level error)
    case "$peer" in
        smg) start "$peer" "$venv/bin/smg" launch "${common[@]}" --policy cache_aware ;;
        smg-rr) start "$peer" "$venv/bin/smg" launch "${common[@]}" --policy round_robin ;;
        vllm-router) start "$peer" "$venv/bin/vllm-router" "${common[@]}" --policy cache_aware ;;
    esac
    await "$peer" "${at[$peer]}"
done

# load ROUTER CASE CONNECTIONS STREAM: one run; its requests a second and its median.
load() {
    local threads=1 said
    said="$(wrk --threads "$threads" --connections "$3" --duration "${seconds}s" --script "$here/load.lua" \
        "http://127.0.0.1:${at[$1]}/v1/chat/completions" -- "$2" ${4:+"$4"} | grep '^LOAD')"
    read -r _ rps median failed <<<"$said"
    if [ "$failed" -ne 0 ]; then echo "$1, $2: $failed requests failed" >&2; fi
    echo "$rps $median"
}

printf '| case | router | requests/s | p50 us |\n|---|---|---|---|\n'
for streaming in "${streams[@]}"; do
    for case in "${cases[@]}"; do
        for connections in 1 16; do
            name="${case}_c$connections${streaming:+_stream}"
            for router in direct kvroute "${peers[@]}"; do load "$router" "$case" "$connections" "$streaming" >/dev/null; done
            for peer in "${peers[@]}"; do
                for pair in $(seq "$pairs"); do
                    order=(direct kvroute "$peer")
                    if [ $((pair % 2)) -eq 0 ]; then order=("$peer" kvroute direct); fi
                    for router in "${order[@]}"; do
                        echo "$router $(load "$router" "$case" "$connections" "$streaming")"
                    done
                done >"$scratch/runs"
                awk -v name="$name" -v peer="$peer" -f "$here/median.awk" -f "$here/ratios.awk" "$scratch/runs"
            done
        done
    done
done | tee "$scratch/figures"
