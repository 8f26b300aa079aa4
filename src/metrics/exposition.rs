//! The page that a Prometheus server scrapes.

use std::{fmt, time::Duration};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, NoLabelSet, prometheus_text},
    metrics::MetricType,
    registry::Registry,
};

use super::histogram::{BOUNDS, Snapshot};

/// The content type of [`Exposition::text`]: the classic text format, which every scraper reads.
pub const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// Everything that is exposed: a list of sources, read in order when asked.
#[derive(Debug)]
pub struct Exposition {
    registry: Registry,
}

/// Something that has numbers to show. It is asked on every scrape, and only then.
pub trait Source: fmt::Debug + Send + Sync + 'static {
    /// Writes the numbers as they are now.
    ///
    /// # Errors
    ///
    /// Those of the page, to be passed on.
    fn write(&self, page: &mut Page<'_>) -> fmt::Result;
}

/// Where a [`Source`] writes to.
///
/// Names are given without the `kvroute_` that all of them get, and counters also without the `_total` that they
/// get; they hold letters, digits and underscores, and their unit, if they have one. A name is written once, with
/// all its label sets together: a scraper refuses a page that repeats one.
pub struct Page<'a> {
    encoder: DescriptorEncoder<'a>,
}

/// The labels of one value, as pairs of name and value. Values may hold anything, names only letters, digits and
/// underscores.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

impl Exposition {
    /// An empty page.
    #[must_use]
    pub fn new() -> Self {
        Self { registry: Registry::with_prefix("kvroute") }
    }

    /// Adds a source, after those that are there.
    pub fn add(&mut self, source: impl Source) {
        self.registry.register_collector(Box::new(Adapter(source)));
    }

    /// Reads all sources.
    ///
    /// # Errors
    ///
    /// When a source fails, which one that only writes to the page does not.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl Default for Exposition {
    fn default() -> Self {
        Self::new()
    }
}

impl Page<'_> {
    /// Writes a number that only grows.
    ///
    /// # Errors
    ///
    /// When the page cannot be written.
    pub fn counter(&mut self, name: &str, help: &str, value: impl EncodeCounterValue) -> fmt::Result {
        self.counters(name, help, [(&[][..], value)])
    }

    /// Writes numbers that only grow, one for each set of labels.
    ///
    /// # Errors
    ///
    /// When the page cannot be written.
    pub fn counters<'l, V: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels<'l>, V)>,
    ) -> fmt::Result {
        let mut metric = self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            metric.encode_family(&labels)?.encode_counter::<NoLabelSet, V, f64>(&value, None)?;
        }
        Ok(())
    }

    /// Writes numbers that only grow, told apart by one label.
    ///
    /// # Errors
    ///
    /// When the page cannot be written.
    pub fn counters_by<'l>(
        &mut self,
        label: &'static str,
        name: &str,
        help: &str,
        counts: impl IntoIterator<Item = (&'l str, u64)>,
    ) -> fmt::Result {
        let counts: Vec<_> = counts.into_iter().map(|(value, count)| ([(label, value)], count)).collect();
        self.counters(name, help, counts.iter().map(|(labels, count)| (&labels[..], *count)))
    }

    /// Writes a number that is as it is.
    ///
    /// # Errors
    ///
    /// When the page cannot be written.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl EncodeGaugeValue) -> fmt::Result {
        self.gauges(name, help, [(&[][..], value)])
    }

    /// Writes numbers that are as they are, one for each set of labels.
    ///
    /// # Errors
    ///
    /// When the page cannot be written.
    pub fn gauges<'l, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels<'l>, V)>,
    ) -> fmt::Result {
        let mut metric = self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            metric.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    /// Writes a histogram of durations, in seconds: its name ends with `_seconds`.
    ///
    /// # Errors
    ///
    /// When the page cannot be written.
    pub fn histogram(&mut self, name: &str, help: &str, snapshot: &Snapshot) -> fmt::Result {
        self.histograms(name, help, [(&[][..], snapshot)])
    }

    /// Writes histograms of durations, in seconds, one for each set of labels.
    ///
    /// # Errors
    ///
    /// When the page cannot be written.
    pub fn histograms<'l, 's>(
        &mut self,
        name: &str,
        help: &str,
        snapshots: impl IntoIterator<Item = (Labels<'l>, &'s Snapshot)>,
    ) -> fmt::Result {
        let mut metric = self.encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, snapshot) in snapshots {
            let bounds = BOUNDS.iter().map(Duration::as_secs_f64).chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(snapshot.buckets).collect();
            metric.encode_family(&labels)?.encode_histogram::<NoLabelSet>(
                snapshot.sum.as_secs_f64(),
                snapshot.count(),
                &buckets,
                None,
            )?;
        }
        Ok(())
    }
}

impl fmt::Debug for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page").finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Adapter<S>(S);

impl<S: Source> Collector for Adapter<S> {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.write(&mut Page { encoder })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::metrics::Histogram;

    /// One metric as a strict reader of the text format sees it.
    #[derive(Default, Debug)]
    struct Family {
        kind: String,
        /// Suffix, labels and value, in order.
        samples: Vec<(String, BTreeMap<String, String>, f64)>,
    }

    /// Reads a page, and fails on whatever a scraper might not accept.
    fn parse(page: &str) -> BTreeMap<String, Family> {
        let mut families: BTreeMap<String, Family> = BTreeMap::new();
        let mut current = String::new();
        assert!(page.ends_with('\n'));
        for line in page.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').expect("a help text");
                assert!(!help.is_empty() && valid(name), "{line}");
                assert!(families.insert(name.to_owned(), Family::default()).is_none(), "{name} comes twice");
                current = name.to_owned();
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').expect("a type");
                assert_eq!(name, current, "a type follows its help");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                kind.clone_into(&mut families.get_mut(name).unwrap().kind);
            } else {
                let (name, labels, value) = sample(line);
                let family = families.get_mut(&current).expect("a sample follows its family's head");
                let suffix = name.strip_prefix(current.as_str()).expect("a sample of the family");
                let suffixes: &[&str] =
                    if family.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
                assert!(suffixes.contains(&suffix), "{line}");
                let known = family.samples.iter().any(|(other, set, _)| other == suffix && *set == labels);
                assert!(!known, "{line} comes twice");
                family.samples.push((suffix.to_owned(), labels, value));
            }
        }
        families
    }

    fn valid(name: &str) -> bool {
        name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    }

    fn sample(line: &str) -> (String, BTreeMap<String, String>, f64) {
        let end = line.find(['{', ' ']).expect("a value");
        let (name, mut rest) = line.split_at(end);
        let mut labels = BTreeMap::new();
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside;
            loop {
                let (key, value) = rest.split_once("=\"").expect("a label");
                assert!(valid(key), "{line}");
                let mut text = String::new();
                let mut letters = value.char_indices();
                let close = loop {
                    match letters.next().expect("a closing quote") {
                        (at, '"') => break at,
                        (_, '\\') => text.push(match letters.next().unwrap().1 {
                            'n' => '\n',
                            escaped @ ('"' | '\\') => escaped,
                            other => panic!("\\{other} in {line}"),
                        }),
                        (_, letter) => text.push(letter),
                    }
                };
                assert!(labels.insert(key.to_owned(), text).is_none(), "{line}");
                rest = &value[close + 1..];
                match rest.strip_prefix(',') {
                    Some(more) => rest = more,
                    None => break,
                }
            }
            rest = rest.strip_prefix('}').expect("a closing brace");
        }
        let value = rest.strip_prefix(' ').expect("one space");
        (name.to_owned(), labels, value.parse().expect("a number"))
    }

    #[derive(Debug)]
    struct Sample(Histogram);

    const STRANGE: &str = "a \"quoted\" \\ name\nwith everything, } and é";

    impl Source for Sample {
        fn write(&self, page: &mut Page<'_>) -> fmt::Result {
            page.counter("requests", "requests so far", 3_u64)?;
            page.counters(
                "refusals",
                "requests refused, by reason",
                [(&[("reason", "busy")][..], 1_u64), (&[("reason", STRANGE), ("set", "s")], 2)],
            )?;
            page.gauge("ratio", "a backslash \\ and a\nline feed", 0.25)?;
            page.gauges("empty", "of which there is none", std::iter::empty::<(Labels<'_>, u64)>())?;
            let snapshot = self.0.snapshot();
            page.histograms(
                "decision_seconds",
                "time to decide",
                [(&[("mode", "kv")][..], &snapshot), (&[("mode", "random")], &Histogram::new().snapshot())],
            )
        }
    }

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_page_reads_back_as_it_was_written() {
        let histogram = Histogram::new();
        for microseconds in [1, 3, 3, 70_000_000] {
            histogram.observe(Duration::from_micros(microseconds));
        }
        let mut exposition = Exposition::new();
        exposition.add(Sample(histogram));
        let families = parse(&exposition.text().unwrap());
        let names: Vec<&str> = families.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "kvroute_decision_seconds",
                "kvroute_empty",
                "kvroute_ratio",
                "kvroute_refusals_total",
                "kvroute_requests_total",
            ]
        );
        assert_eq!(families["kvroute_requests_total"].samples, [(String::new(), labels(&[]), 3.0)]);
        assert_eq!(
            families["kvroute_refusals_total"].samples[1],
            (String::new(), labels(&[("reason", STRANGE), ("set", "s")]), 2.0)
        );
        assert_eq!(families["kvroute_ratio"].samples, [(String::new(), labels(&[]), 0.25)]);
        check_histogram(&families["kvroute_decision_seconds"]);
    }

    fn check_histogram(family: &Family) {
        let of = |suffix: &str| -> Vec<_> {
            let kv = |labels: &BTreeMap<String, String>| labels["mode"] == "kv";
            family.samples.iter().filter(|(this, labels, _)| this == suffix && kv(labels)).collect()
        };
        let buckets: Vec<(f64, f64)> = of("_bucket")
            .iter()
            .map(|(_, labels, value)| (labels["le"].replace("+Inf", "inf").parse().unwrap(), *value))
            .collect();
        assert_eq!(buckets.len(), BOUNDS.len() + 1);
        assert!(buckets.is_sorted_by(|(bound, count), (above, more)| bound < above && count <= more));
        assert_eq!(buckets[..3], [(1e-6, 1.0), (2e-6, 1.0), (5e-6, 3.0)]);
        assert_eq!(buckets[BOUNDS.len() - 1..], [(60.0, 3.0), (f64::INFINITY, 4.0)]);
        assert_eq!(of("_count")[0].2, 4.0);
        assert!((of("_sum")[0].2 - 70.000_007).abs() < 1e-9);
    }
}
