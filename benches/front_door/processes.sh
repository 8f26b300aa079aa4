# shellcheck shell=bash
# What the scripts of this folder share: processes that end with the script, and ports for them. Sourced by them, after
# `set -euo pipefail`; a folder `scratch` is theirs until they end.

scratch="$(mktemp -d)"
running=()
finish() {
    for process in "${running[@]}"; do kill "$process" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$scratch"
}
trap finish EXIT

# start NAME COMMAND...: runs it in the background, its words in a file of that name, its process in `started`.
started=''
start() {
    local name="$1"
    shift
    "$@" >"$scratch/$name.log" 2>&1 &
    started=$!
    running+=("$started")
}

# A port nobody listens on; the next one each time.
port=18200
free_port() {
    while port=$((port + 1)) && (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
}

# await NAME PORT: until a chat is answered there.
await() {
    local body='{"stream":false,"max_tokens":1,"model":"bench","messages":[{"role":"user","content":"Hi"}]}'
    for _ in $(seq 300); do
        if curl -sf -o "$scratch/answer" -H 'content-type: application/json' -d "$body" \
            "http://127.0.0.1:$2/v1/chat/completions"; then return; fi
        sleep 0.2
    done
    echo "$1 does not answer:" >&2
    tail -20 "$scratch/$1.log" >&2
    exit 1
}
