//! Tables and `RATIO` lines.

use crate::{adapter::Contestant, audit::Audit, measure::Samples, workload::Workload};

/// The middle of some numbers, of an even count the mean of the two in the middle; not a number if there are none.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (sorted.get(middle.wrapping_sub(1)), sorted.get(middle)) {
        (Some(below), Some(above)) if sorted.len().is_multiple_of(2) => (below + above) / 2.0,
        (_, middle) => middle.copied().unwrap_or(f64::NAN),
    }
}

/// What a workload is.
pub(crate) fn title(workload: &Workload) {
    let (stored, removed) = workload.size();
    println!(
        "\n## {}: {}\n\n{} events, {stored} blocks stored, {removed} evicted, {} (block, worker) pairs at the end, \
         prompts of {} blocks\n",
        workload.letter,
        workload.title,
        workload.ops.len(),
        workload.resident,
        workload.mean_prompt(),
    );
}

/// Who answers wrongly.
pub(crate) fn audits(workload: &Workload, audits: &[Audit]) {
    for Audit { contestant, pairs, too_high, too_low, .. } in audits {
        println!(
            "WRONG {} {} {} of {pairs} scores ({too_high} too high, {too_low} too low)",
            workload.letter,
            contestant.name(),
            too_high + too_low,
        );
    }
    println!();
}

/// One column of the table: a name with its unit, and where its numbers are.
type Column = (&'static str, usize, fn(&Samples) -> &[f64]);

const COLUMNS: [Column; 8] = [
    ("lookup p50 ns", 0, |samples| &samples.lookup_p50),
    ("lookup p99 ns", 0, |samples| &samples.lookup_p99),
    ("lookup mean ns", 0, |samples| &samples.lookup_mean),
    ("ingest Mblocks/s", 1, |samples| &samples.ingest),
    ("mixed lookup mean ns", 0, |samples| &samples.mixed_lookup),
    ("mixed writer Mevents/s", 2, |samples| &samples.mixed_writer),
    ("one reader M/s", 2, |samples| &samples.one_reader),
    ("two readers M/s", 2, |samples| &samples.two_readers),
];

/// Medians, with the least and the greatest of all repetitions.
pub(crate) fn table(workload: &Workload, all: &[Samples], audits: &[Audit]) {
    print!("| index |");
    for (name, _, _) in COLUMNS {
        print!(" {name} |");
    }
    println!(" bytes per entry |\n|---|{}---|", "---|".repeat(COLUMNS.len()));
    for samples in all {
        print!("| {} |", samples.contestant.name());
        for (_, digits, values) in COLUMNS {
            print!(" {} |", spread(values(samples), digits));
        }
        println!(" {:.1} |", bytes(audits, samples.contestant) / workload.resident as f64);
    }
    println!("\n| tokens to scores | mean ns |\n|---|---|");
    for samples in all {
        for (hashing, values) in &samples.tokens_to_scores {
            println!("| {} + {} | {} |", hashing.name(), samples.contestant.name(), spread(values, 0));
        }
    }
    println!();
}

fn spread(values: &[f64], digits: usize) -> String {
    if values.is_empty() {
        return "-".to_owned();
    }
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let greatest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!("{:.digits$} ({least:.digits$}-{greatest:.digits$})", median(values))
}

fn bytes(audits: &[Audit], contestant: Contestant) -> f64 {
    audits.iter().find(|audit| audit.contestant == contestant).map_or(f64::NAN, |audit| audit.bytes)
}

/// The figures that are ratios: name, whether SMG's two faces differ in it, and where its numbers are.
type Figure = (&'static str, bool, fn(&Samples) -> &[f64]);

const FIGURES: [Figure; 5] = [
    ("lookup_mean", true, |samples| &samples.lookup_mean),
    ("lookup_p99", true, |samples| &samples.lookup_p99),
    ("mixed_lookup_mean", true, |samples| &samples.mixed_lookup),
    ("mixed_writer_rate", true, |samples| &samples.mixed_writer),
    ("ingest_rate", false, |samples| &samples.ingest),
];

/// Ours over theirs, one line a figure.
pub(crate) fn ratios(workload: &Workload, all: &[Samples], audits: &[Audit]) {
    let Some(ours) = all.iter().find(|samples| samples.contestant == Contestant::Kvroute) else { return };
    let line = |what: &str, peer: &str, ratio: f64| {
        if ratio.is_finite() {
            println!("RATIO {what} {} vs {peer} {ratio:.3}", workload.letter);
        }
    };
    for theirs in all.iter().filter(|samples| samples.contestant != Contestant::Kvroute) {
        let peer = theirs.contestant;
        for (what, by_face, values) in FIGURES {
            if by_face || peer != Contestant::SmgMap {
                line(what, peer.name(), ratio(values(ours), values(theirs)));
            }
        }
        if peer != Contestant::SmgMap {
            line("bytes_per_entry", peer.name(), bytes(audits, Contestant::Kvroute) / bytes(audits, peer));
        }
    }
    if let (Some((_, ours)), Some(best)) = (ours.tokens_to_scores.first(), best_pair(all)) {
        line("tokens_to_scores_mean", "best-pair", ratio(ours, best));
    }
    for samples in all {
        println!(
            "SCALING two readers {} {} {:.2}",
            workload.letter,
            samples.contestant.name(),
            ratio(&samples.two_readers, &samples.one_reader),
        );
    }
}

/// The median of the ratios of each repetition.
fn ratio(ours: &[f64], theirs: &[f64]) -> f64 {
    let of_each: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
    median(&of_each)
}

/// The fastest of a peer's block hashing followed by a peer's lookup.
fn best_pair(all: &[Samples]) -> Option<&[f64]> {
    let peers = all.iter().filter(|samples| samples.contestant != Contestant::Kvroute);
    let pairs = peers.flat_map(|samples| &samples.tokens_to_scores).map(|(_, means)| &means[..]);
    pairs.min_by(|one, other| median(one).total_cmp(&median(other)))
}
