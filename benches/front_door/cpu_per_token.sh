#!/usr/bin/env bash
# The CPU time that a frontend takes for a thousand tokens of prompts of which nothing was seen before: kvroute's beside Dynamo's, both
# with routing by prefix and the same tokenizer and chat template.
#
#   benches/front_door/cpu_per_token.sh
#
# It needs what run.sh needs (run it once before, with --quick: it makes the tokenizer's files), and Dynamo's wheels: VENV names a
# Python environment that has them, made from PyPI if absent. kvroute stands before the project's own backend, Dynamo's frontend before
# Dynamo's mock engine, which it reaches in a way of its own, so that only the CPU time of the frontends' own processes is
# compared, not requests a second. PAIRS and SECONDS_A_RUN say how often each has its turn, and for how long. It prints, ours over theirs:
#
#   RATIO front_door_cpu_per_token CASE vs dynamo MEDIAN     below 1 is better
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
cd "$here/../.."

kvroute="${KVROUTE:-target/release/kvroute}"
pairs="${PAIRS:-10}"
seconds="${SECONDS_A_RUN:-2}"
venv="${VENV:-target/front-door/dynamo}"
tokenizer="${TOKENIZER:-target/front-door/tokenizer}"
version=1.6.1
for needed in "$tokenizer/tokenizer.json" "$tokenizer/chat_template.jinja" target/front-door/build/release/kvroute-front-door; do
    if [ ! -f "$needed" ]; then echo "$needed is missing: run benches/front_door/run.sh --quick first" >&2; exit 1; fi
done
if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet "ai-dynamo-runtime==$version" 'aiohttp>=3.14.3,<4' msgspec packaging 'prometheus-client<1' pyyaml pyzmq tokenizers zstandard
    # Without its dependencies: PyPI has one of them, a package for capacity planning, as a placeholder only.
    "$venv/bin/pip" install --quiet --no-deps "ai-dynamo==$version"
fi

# shellcheck source-path=SCRIPTDIR source=processes.sh
. "$here/processes.sh"

declare -A at process
free_port; first=$port
free_port; second=$port
start backend target/front-door/build/release/kvroute-front-door "$first" "$second"
free_port; at[kvroute]=$port
free_port; admin=$port
start kvroute "$kvroute" frontend --host 127.0.0.1 --port "${at[kvroute]}" --admin-port "$admin" --router-mode kv --log error \
    --tokenizer "$tokenizer" --worker "url=http://127.0.0.1:$first,model=bench,block_size=16" --worker "url=http://127.0.0.1:$second,model=bench,block_size=16"
process[kvroute]=$started
await kvroute "${at[kvroute]}"

# A model's folder as Dynamo reads it: the tokenizer, and what a configuration has to say.
cp -r "$tokenizer" "$scratch/model"
cat >"$scratch/model/config.json" <<'JSON'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": 131072, "bos_token_id": 0, "eos_token_id": 1, "vocab_size": 129280,
 "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "num_hidden_layers": 2, "num_key_value_heads": 1}
JSON
plane=(--discovery-backend file --request-plane tcp --event-plane zmq)
dynamo=(env HOME="$scratch" HF_HUB_OFFLINE=1 DYN_FILE_KV="$scratch/store" DYN_TCP_RPC_HOST=127.0.0.1 DYN_EVENT_PLANE_HOST=127.0.0.1
    DYN_TCP_RESPONSE_STREAM_HOST=127.0.0.1 DYN_SYSTEM_PORT=-1 DYN_LOG=error "$venv/bin/python" -m)
mkdir "$scratch/store"
start engine "${dynamo[@]}" dynamo.mocker --model-path "$scratch/model" --model-name bench "${plane[@]}" --speedup-ratio 0 --block-size 16 \
    --num-gpu-blocks-override 100000 --kv-bytes-per-token 1
free_port; at[dynamo]=$port
start dynamo "${dynamo[@]}" dynamo.frontend --http-host 127.0.0.1 --http-port "$port" --router-mode kv "${plane[@]}"
process[dynamo]=$started
await dynamo "${at[dynamo]}"

# Clock ticks that a process has had, all its threads together.
ticks() { awk '{ sub(/.*\) /, ""); print $12 + $13 }' "/proc/$1/stat"; }
ticks_a_second="$(getconf CLK_TCK)"

# One connection: of more, those that the end of a run cuts off would have cost time and count as nothing.
load() { # ROUTER WORD...
    local router="$1"
    shift
    wrk --threads 1 --connections 1 --duration "${seconds}s" --timeout 20s --script "$here/load.lua" \
        "http://127.0.0.1:${at[$router]}/v1/chat/completions" -- "$@"
}

# Tokens of one such prompt, as kvroute counts them.
load kvroute big_new print | sed -n 's/^BODY //p' | head -1 >"$scratch/body"
tokens="$(curl -sf -H 'content-type: application/json' --data-binary "@$scratch/body" "http://127.0.0.1:$admin/v1/route/explain" |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["prompt_tokens"])')"
echo "$tokens tokens a prompt"

printf '| case | frontend | requests/s | CPU us for 1000 tokens |\n|---|---|---|---|\n'
for router in kvroute dynamo; do load "$router" big_new limited >/dev/null; done
for pair in $(seq "$pairs"); do
    order=(kvroute dynamo)
    if [ $((pair % 2)) -eq 0 ]; then order=(dynamo kvroute); fi
    for router in "${order[@]}"; do
        before="$(ticks "${process[$router]}")"
        read -r _ rps _ failed <<<"$(load "$router" big_new limited | grep '^LOAD')"
        after="$(ticks "${process[$router]}")"
        if [ "$failed" -ne 0 ]; then echo "$router: $failed requests failed" >&2; fi
        awk -v router="$router" -v rps="$rps" -v ticks="$((after - before))" -v second="$ticks_a_second" -v seconds="$seconds" -v tokens="$tokens" \
            'BEGIN { print router, rps, ticks / second * 1e9 / (rps * seconds * tokens) }'
    done
done >"$scratch/runs"
awk -v name=big_new_c1 -v peer=dynamo -f "$here/median.awk" -f "$here/cpu_per_token.awk" "$scratch/runs"
