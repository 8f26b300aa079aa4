# Of runs (ROUTER REQUESTS_A_SECOND MEDIAN, three lines a pair: direct, kvroute and the peer in either order) the table's rows and the ratios.

{ rps[$1, ++runs[$1]] = $2; p50[$1, runs[$1]] = $3 }

function sorted(values, n,    i, j, held) {
    for (i = 2; i <= n; i++) {
        held = values[i]
        for (j = i - 1; j > 0 && values[j] > held; j--) values[j + 1] = values[j]
        values[j + 1] = held
    }
}

function middle(values, n) { return n % 2 ? values[(n + 1) / 2] : (values[n / 2] + values[n / 2 + 1]) / 2 }

# The median, and the order statistics between which that of all runs lies with a confidence of 95 % or more: half of n, less
# about one standard deviation of a fair coin's heads times two.
function tell(what, values, n,    low) {
    sorted(values, n)
    low = int(n / 2 - sqrt(n) + 0.5)
    if (low < 1) low = 1
    printf "INTERVAL %s %s vs %s %.3f %.3f\n", what, name, peer, values[low], values[n + 1 - low]
    printf "RATIO %s %s vs %s %.3f\n", what, name, peer, middle(values, n)
}

END {
    n = runs["kvroute"]
    split("direct kvroute " peer, routers, " ")
    for (r = 1; r <= 3; r++) {
        for (i = 1; i <= n; i++) { a[i] = rps[routers[r], i]; b[i] = p50[routers[r], i] }
        sorted(a, n); sorted(b, n)
        printf "| %s | %s | %.0f | %.0f |\n", name, routers[r], middle(a, n), middle(b, n)
    }
    for (i = 1; i <= n; i++) a[i] = rps["kvroute", i] / rps[peer, i]
    tell("front_door_rps", a, n)
    for (i = 1; i <= n; i++) {
        added = p50[peer, i] - p50["direct", i]
        # A peer that adds nothing cannot be measured against.
        b[i] = added > 0 ? (p50["kvroute", i] - p50["direct", i]) / added : 999
    }
    tell("front_door_added_p50", b, n)
}
