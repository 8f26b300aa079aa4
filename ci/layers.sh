#!/usr/bin/env bash
# A room uses only rooms to its left. The order is that of ARCHITECTURE.md; rooms between two bars stand side by side and
# do not know each other.
set -euo pipefail
cd "$(dirname "$0")/.."

order="slot | hash | event | index device | load | select | decisions | simulate fleet metrics tls | accel ingest prompt proxy | doctor | worker frontend | config | cli"

# Which rooms a file names after `crate::`, alone or in a list. Comments do not count, since docs may point anywhere, and
# neither does what follows `#[cfg(test)]`, since tests may use what they like.
rooms_used_in() {
    sed -e '/^#\[cfg(test)\]$/,$d' -e 's://.*$::' "$1" | tr '\n' ' ' | awk '
        {
            text = $0
            while (match(text, /(^|[^$A-Za-z0-9_])crate::/)) {
                text = substr(text, RSTART + RLENGTH)
                if (match(text, /^[a-z_]+/)) { print substr(text, 1, RLENGTH); continue }
                # A list: the names at its first level of braces.
                depth = 0; word = ""; wanted = 1
                for (i = 1; i <= length(text); i++) {
                    c = substr(text, i, 1)
                    if (c ~ /[A-Za-z0-9_]/) { word = word c; continue }
                    if (word != "") { if (depth == 1 && wanted) print word; word = ""; wanted = 0 }
                    if (c == "{") { depth++; if (depth == 1) wanted = 1 }
                    if (c == "}" && --depth == 0) break
                    if (c == "," && depth == 1) wanted = 1
                }
            }
        }
    ' | sort -u
}

declare -A level
height=0
for word in $order; do
    if [ "$word" = "|" ]; then
        height=$((height + 1))
    else
        level[$word]=$height
    fi
done

problems=0
while read -r file; do
    room="${file#src/}"
    room="${room%%/*}"
    room="${room%.rs}"
    case "$room" in main | lib) continue ;; esac
    if [ -z "${level[$room]:-}" ]; then
        echo "$file: the room '$room' has no place in the order; give it one in ci/layers.sh and ARCHITECTURE.md"
        problems=$((problems + 1))
        continue
    fi
    for used in $(rooms_used_in "$file"); do
        [ "$used" != "$room" ] || continue
        if [ -z "${level[$used]:-}" ] || [ "${level[$used]}" -ge "${level[$room]}" ]; then
            echo "$file: '$room' uses '$used', which is not to its left"
            problems=$((problems + 1))
        fi
    done
done < <(find src -name '*.rs' | sort)

if [ "$problems" -gt 0 ]; then
    echo "the order is: $order"
    exit 1
fi
echo "every room uses only rooms to its left: $order"
