//! What decisions take in a log; docs/decision-log.md quotes it.

use std::time::Duration;

use kvroute::decisions::{Decision, Encoder};

use crate::recorded_fleet::Fleet;

/// Bytes of a decision whose rows are those of `decision`, repeated or cut to so many.
fn bytes(decision: &Decision, rows: usize) -> usize {
    let mut decision = decision.clone();
    // A fleet's time is hours, not the seconds of a test, and names are sixteen bytes in hexadecimal.
    let later = Duration::from_secs(200_000);
    decision.now += later;
    decision.request = "0123456789abcdef0123456789abcdef".to_owned();
    decision.rows = decision.rows.iter().cycle().take(rows).copied().collect();
    for row in &mut decision.rows {
        row.backlog.head_since += later;
    }
    let (mut out, mut encoder) = (Vec::new(), Encoder::new());
    encoder.decision(&decision, &mut out);
    let with_rule = out.len();
    encoder.decision(&decision, &mut out);
    out.len() - with_rule
}

#[test]
fn a_decision_takes_some_sixty_bytes_a_candidate() {
    let fleet = Fleet::record(51, 4_000);
    // Candidates that are busy, hold something and have shown their speed: the most that there is to say.
    let busy: Vec<_> =
        fleet.decisions[2_000..].iter().filter(|decision| decision.rule.mode.name() == "kv").collect();
    let mean = |rows| busy.iter().map(|decision| bytes(decision, rows)).sum::<usize>() / busy.len();
    let (one, eight, many) = (mean(1), mean(8), mean(64));
    let each = (many - eight) / 56;
    println!(
        "{one} bytes with 1 candidate, {eight} with 8, {many} with 64: {each} for each; {} decisions",
        busy.len()
    );
    assert!(each < 80 && one < 350, "{each} and {one}");
    let memory = size_of::<kvroute::select::Row>();
    println!("a candidate is {memory} bytes in memory");
    assert!(each < memory / 3);
}
