//! The figures as a table.

use std::fmt::Write as _;

use super::sweep::Row;
use crate::simulate::Figures;

/// A line for each policy at each rate, as Markdown: means over the runs, and for two of them how far the runs lie apart.
pub(super) fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    let sweeps = rows.iter().any(|row| row.rate != rows[0].rate);
    let (head, rule) = if sweeps { ("| rate ", "|---") } else { ("", "") };
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "{head}| policy | requests | TTFT mean | ± | p50 | p90 | p99 | total mean | ± | hit rate | prefill tokens | \
         busiest/mean | missed |\n{rule}|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    );
    for row in rows {
        let mean = |of: fn(&Figures) -> f64| row.over(of).0;
        let (first, first_apart) = row.over(|run| run.first_token.mean);
        let (total, total_apart) = row.over(|run| run.total.mean);
        if sweeps {
            let _ = write!(text, "| {} ", row.rate);
        }
        let _ = writeln!(
            text,
            "| {} | {:.0} | {first:.3} s | {first_apart:.3} | {:.3} s | {:.3} s | {:.3} s | {total:.2} s | {total_apart:.2} \
             | {:.1} % | {:.0} | {:.2} | {:.1} % |",
            row.policy,
            mean(|run| run.requests),
            mean(|run| run.first_token.p50),
            mean(|run| run.first_token.p90),
            mean(|run| run.first_token.p99),
            100.0 * mean(|run| run.hit_rate),
            mean(|run| run.prefill_tokens),
            mean(|run| run.busiest),
            100.0 * mean(|run| run.missed),
        );
    }
    for row in rows.iter().filter(|row| row.unserved > 0) {
        let _ = writeln!(
            text,
            "\n{}: {} requests were not served: they did not fit an engine's cache (--cache-tokens makes it larger), or there \
             was no engine.",
            row.policy, row.unserved
        );
    }
    for row in rows.iter().filter(|row| row.broken > 0) {
        let _ = writeln!(text, "\n{}: {} answers broke off with their engine.", row.policy, row.broken);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::Times;

    fn row(rate: f64, unserved: usize) -> Row {
        let run = |mean, prefill_tokens| Figures {
            requests: 10.0,
            first_token: Times { mean, p50: 0.5, p90: 1.5, p99: 2.0 },
            hit_rate: 0.25,
            prefill_tokens,
            missed: 0.125,
            ..Figures::default()
        };
        let runs = vec![run(1.0, 100.0), run(2.0, 300.0)];
        Row { policy: "time".to_owned(), rate, runs, unserved, broken: 0 }
    }

    #[test]
    fn there_is_a_line_for_each_policy_with_means_over_the_runs() {
        let text = table(&[row(1.0, 2)]);
        assert_eq!(
            text.lines().nth(2).unwrap(),
            "| time | 10 | 1.500 s | 0.500 | 0.500 s | 1.500 s | 2.000 s | 0.00 s | 0.00 | 25.0 % | 200 | 0.00 | 12.5 % |"
        );
        assert!(text.contains("2 requests were not served"));
        let columns = |line: usize| text.lines().nth(line).unwrap().matches('|').count();
        assert_eq!((columns(0), columns(1)), (columns(2), columns(2)));
    }

    #[test]
    fn a_sweep_s_lines_say_their_rate() {
        let text = table(&[row(1.0, 0), row(2.5, 0)]);
        assert!(text.lines().nth(3).unwrap().starts_with("| 2.5 | time |"), "{text}");
    }
}
