# Of runs (ROUTER REQUESTS_A_SECOND MEDIAN, three lines a pair: direct, kvroute and the peer in either order) the table's rows and the ratios. After median.awk.

{ rps[$1, ++runs[$1]] = $2; p50[$1, runs[$1]] = $3 }

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
