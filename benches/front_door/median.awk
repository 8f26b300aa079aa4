# Medians, and the intervals in which they lie.

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
