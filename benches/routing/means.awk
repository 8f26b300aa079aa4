# Geometric means over the tables of `kvroute simulate`, one a file: each policy over `blocks`, and over `blocks-s20c2`.
BEGIN { FS = "|" }
function trim(text) { gsub(/^ +| +$/, "", text); return text }
/^\| policy/ { for (i = 2; i < NF; i++) { name = trim($i); if (!(name in column)) column[name] = i }; next }
/^\|---/ { next }
/^\| / {
    policy = trim($2)
    if (!(policy in known)) { known[policy] = 1; order[++policies] = policy }
    value[FILENAME, policy, 1] = $column["TTFT mean"] + 0
    value[FILENAME, policy, 2] = $column["p50"] + 0
    value[FILENAME, policy, 3] = $column["p90"] + 0
    value[FILENAME, policy, 4] = $column["p99"] + 0
    value[FILENAME, policy, 5] = $column["total mean"] + 0
    value[FILENAME, policy, 6] = $column["prefill tokens"] + 0
    files[FILENAME] = 1
}
function mean(policy, base, figure,    file, sum, count) {
    sum = count = 0
    for (file in files) {
        if (value[file, base, figure] > 0 && value[file, policy, figure] > 0) {
            sum += log(value[file, policy, figure] / value[file, base, figure])
            count++
        }
    }
    return count ? exp(sum / count) : 0
}
END {
    split("blocks blocks-s20c2", bases, " ")
    for (b = 1; b <= 2; b++) {
        if (!(bases[b] in known)) continue
        printf "Over `%s`:\n\n| policy | TTFT mean | p50 | p90 | p99 | total mean | prefill tokens |\n|---|---|---|---|---|---|---|\n", bases[b]
        for (p = 1; p <= policies; p++) {
            printf "| %s |", order[p]
            for (f = 1; f <= 6; f++) printf " %.3f |", mean(order[p], bases[b], f)
            printf "\n"
        }
        printf "\n"
    }
}
