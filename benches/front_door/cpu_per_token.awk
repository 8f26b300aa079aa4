# Of runs (FRONTEND REQUESTS_A_SECOND CPU_MICROSECONDS_FOR_1000_TOKENS, two lines a pair in either order) the table's rows and the ratio. After median.awk.

{ rps[$1, ++runs[$1]] = $2; cpu[$1, runs[$1]] = $3 }

END {
    n = runs["kvroute"]
    split("kvroute " peer, routers, " ")
    for (r = 1; r <= 2; r++) {
        for (i = 1; i <= n; i++) { a[i] = rps[routers[r], i]; b[i] = cpu[routers[r], i] }
        sorted(a, n); sorted(b, n)
        printf "| %s | %s | %.0f | %.1f |\n", name, routers[r], middle(a, n), middle(b, n)
    }
    for (i = 1; i <= n; i++) a[i] = cpu["kvroute", i] / cpu[peer, i]
    tell("front_door_cpu_per_token", a, n)
}
