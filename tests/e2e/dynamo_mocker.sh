#!/usr/bin/env bash
# Two of Dynamo's mock engines as the source of KV events: kvroute routes to them and follows what they say, and what it
# finds of every prompt is held against Dynamo's own RadixTree, fed with the same events. Not part of CI: it needs PyPI
# and 400 MB of disk.
#
# usage: dynamo_mocker.sh FOLDER     the logs and, if need be, the venv are kept there
# KVROUTE_DYNAMO_VENV: a venv with Dynamo (default: FOLDER/dynamo, made if absent)
# KVROUTE: the binary to test (default: target/release/kvroute)
set -euo pipefail
set -m
# shellcheck source-path=SCRIPTDIR source=rig.sh
. "$(dirname "$0")/rig.sh"
mkdir -p "${1:?usage: dynamo_mocker.sh FOLDER}" && folder=$(cd "$1" && pwd)
venv=${KVROUTE_DYNAMO_VENV:-$folder/dynamo}
python=$venv/bin/python
version=1.6.1
if [ ! -x "$python" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet "ai-dynamo-runtime==$version" 'aiohttp>=3.14.3,<4' msgspec packaging \
        'prometheus-client<1' pyyaml pyzmq tokenizers zstandard
    # Without its dependencies: PyPI has one of them, a package for capacity planning, as a placeholder only.
    "$venv/bin/pip" install --quiet --no-deps "ai-dynamo==$version"
fi
"$python" "$here/dynamo_mocker.py" model "$folder/dynamo-model"
read -r -a ports < <("$python" "$here/rig.py" ports 8)
http=(_ "${ports[@]:0:2}") events=(_ "${ports[@]:2:2}") replay=(_ "${ports[@]:4:2}")
public=${ports[6]} admin=${ports[7]}

# Each mock engine has a frontend of its own, because it has no HTTP, and a store of its own, so that the frontends do
# not find each other's engines.
start_engine() { # NUMBER
    local store=$folder/store$1 log=$folder/dynamo$1.log
    local plane=(--discovery-backend file --request-plane tcp --event-plane zmq)
    local dynamo=(env HOME="$folder" HF_HUB_OFFLINE=1 DYN_FILE_KV="$store" DYN_TCP_RPC_HOST=127.0.0.1
        DYN_EVENT_PLANE_HOST=127.0.0.1 DYN_TCP_RESPONSE_STREAM_HOST=127.0.0.1 DYN_SYSTEM_PORT=-1 nice "$python" -m)
    rm -rf "$store" && mkdir "$store"
    start "$log" "${dynamo[@]}" dynamo.mocker --model-path "$folder/dynamo-model" --model-name tiny "${plane[@]}" \
        --speedup-ratio 0 --block-size 16 --num-gpu-blocks-override 192 --kv-bytes-per-token 1 \
        --zmq-kv-events-ports "${events[$1]}" --zmq-replay-ports "${replay[$1]}"
    start "$log" "${dynamo[@]}" dynamo.frontend --http-host 127.0.0.1 --http-port "${http[$1]}" "${plane[@]}"
    wait_for "$started" 120 "http://127.0.0.1:${http[$1]}/health" "$log"
}

rm -f "$folder"/{dynamo1,dynamo2,kvroute-dynamo}.log
workers=()
for number in 1 2; do
    start_engine "$number"
    workers+=(--worker "id=$number,url=http://127.0.0.1:${http[number]},model=tiny,block_size=16,kv_events_endpoint=tcp://*:${events[number]},kv_replay_endpoint=tcp://*:${replay[number]}")
done
start "$folder/kvroute-dynamo.log" "$kvroute" frontend --host 127.0.0.1 --port "$public" --admin-port "$admin" \
    --router-mode kv "${workers[@]}" --tokenizer "$folder/dynamo-model"
wait_for "$started" 30 "http://127.0.0.1:$admin/health" "$folder/kvroute-dynamo.log"
versions ai-dynamo-runtime
# What RadixTree refuses is counted; it need not be logged too.
DYN_LOG=off "$python" "$here/dynamo_mocker.py" compare "$public" "$admin" "${replay[1]}" "${replay[2]}"
