#!/usr/bin/env bash
# No file under src/ has more than 500 lines before its tests.
#
# An idea is a file. A longer one holds two ideas, and whoever looks for the second does not find it in the
# listing. All lines count, comments and blank ones too, because all of them are read; unit tests do not, so
# that nobody saves on them. The tests begin at a line `#[cfg(test)]` that is followed by a `mod`.
set -euo pipefail
cd "$(dirname "$0")/.."

find src -name '*.rs' -print0 | sort -z | xargs -0 awk -v limit=500 '
    function close_file() {
        if (file == "") return
        files++
        if (lines > longest) { longest = lines; longest_file = file }
        if (lines > limit) { printf "%s: %d lines before its tests, %d are allowed\n", file, lines, limit; bad++ }
    }
    FNR == 1 { close_file(); file = FILENAME; lines = 0; in_tests = 0; attribute = 0 }
    in_tests { next }
    attribute && /^(pub(\([a-z]+\))? )?mod / { in_tests = 1; lines--; next }
    { attribute = /^#\[cfg\(test\)\]$/; lines++ }
    END {
        close_file()
        printf "%d files; the longest is %s with %d lines before its tests\n", files, longest_file, longest
        if (bad) { printf "%d too long: split by idea, not by length\n", bad; exit 1 }
    }
'
