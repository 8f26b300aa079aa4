//! `docs/metrics.md` and the page that a frontend exports name the same metrics, types and labels.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

mod rig;

use std::collections::{BTreeMap, BTreeSet};

use kvroute::{fleet::WorkerSpec, select::Mode};
use serde_json::json;

use crate::rig::{Rig, chat, eventually, prose};

const REFERENCE: &str = include_str!("../docs/metrics.md");

/// A metric's type and the names of its labels.
type Metric = (String, BTreeSet<String>);

/// What the tables of the reference say.
fn documented() -> BTreeMap<String, Metric> {
    let quoted = |cell: &str| -> BTreeSet<String> {
        cell.split(',')
            .map(|label| label.trim().trim_matches('`').to_owned())
            .filter(|l| !l.is_empty())
            .collect()
    };
    let mut metrics = BTreeMap::new();
    for row in REFERENCE.lines().filter(|line| line.starts_with("| `kvroute_")) {
        let cells: Vec<_> = row.trim_matches('|').splitn(4, '|').map(str::trim).collect();
        let [name, kind, labels, meaning] = cells.as_slice() else { panic!("not four cells: {row}") };
        assert!(meaning.ends_with('.'), "no sentence: {row}");
        let name = name.trim_matches('`').to_owned();
        assert!(metrics.insert(name, ((*kind).to_owned(), quoted(labels))).is_none(), "twice: {row}");
    }
    metrics
}

/// What a page says. A family without samples has no labels to compare, so none may be.
fn exported(page: &str) -> BTreeMap<String, Metric> {
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    types
        .map(|(name, kind)| {
            let samples = page.lines().filter(|line| {
                let rest = line.strip_prefix(name).unwrap_or_default();
                let rest =
                    if kind == "histogram" { rest.strip_prefix("_bucket").unwrap_or_default() } else { rest };
                rest.starts_with(['{', ' '])
            });
            let labels: BTreeSet<_> = samples
                .map(|line| {
                    let inside = line.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}'));
                    let pairs =
                        inside.map_or("", |(pairs, _)| pairs).split("\",").filter(|pair| !pair.is_empty());
                    let names = pairs.map(|pair| pair.split_once('=').unwrap().0.to_owned());
                    names.filter(|name| name != "le").collect::<BTreeSet<_>>()
                })
                .collect();
            assert_eq!(
                labels.len(),
                1,
                "{name} has no samples, or samples with different labels: {labels:?}"
            );
            (name.to_owned(), (kind.to_owned(), labels.into_iter().next().unwrap()))
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reference_and_the_page_agree() {
    let rig = Rig::start(Mode::Kv, 1).await;
    // A worker whose block size is not its engine's: the one metric that has no samples while all is well.
    let WorkerSpec { url, kv_events_endpoint, .. } = rig::worker(2, &rig.engines[0]);
    let wrong = json!({
        "url": url,
        "model": "other",
        "block_size": 32,
        "kv_events_endpoint": kv_events_endpoint,
        "lease_secs": 600,
    });
    assert_eq!(rig.ask("/v1/workers", &wrong).await.status, 201);
    // The gauges of prefill workers are about decode sets.
    let decode = json!({ "url": url, "model": "split", "worker_type": "decode", "lease_secs": 600 });
    assert_eq!(rig.ask("/v1/workers", &decode).await.status, 201);
    let gpu = json!({ "uuid": "GPU-a", "readings": { "power_watts": 500, "nvlinks": "not_supported" } });
    let beat = json!({ "devices": { "ranks": [{ "capability": 0.5, "gpus": [gpu] }] } });
    assert_eq!(rig.ask("/v1/workers/1/heartbeat", &beat).await.status, 200);
    let page = async || rig.client.get(&format!("{}/metrics", rig.admin())).await;
    // Its stream misses what is published before it is connected, so there has to be something new each time.
    let mut seed = 0;
    eventually("an event is rejected", async || {
        seed += 1;
        assert_eq!(rig.post("/v1/chat/completions", &chat(&prose(seed, 60), "hello")).await.status, 200);
        page().await.text.contains("block_size_mismatch")
    })
    .await;
    rig.wait_for_idle().await;
    let page = page().await.text;
    let (documented, exported) = (documented(), exported(&page));
    assert!(exported.len() > 40, "not the whole page: {page}");
    for (name, metric) in &exported {
        assert_eq!(documented.get(name), Some(metric), "docs/metrics.md on {name}");
    }
    for name in documented.keys() {
        assert!(exported.contains_key(name), "docs/metrics.md has {name}, which nothing exports");
    }
}

/// The selectors in a text of queries: a metric's name, and the labels that it is filtered by.
fn selectors(text: &str) -> Vec<(&str, BTreeSet<String>)> {
    let name_ends =
        |rest: &str| rest.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(rest.len());
    text.match_indices("kvroute_")
        .map(|(at, _)| {
            let (name, rest) = text[at..].split_at(name_ends(&text[at..]));
            let inside = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
            let pairs = inside.map_or("", |(pairs, _)| pairs).split(',').filter(|pair| !pair.is_empty());
            (name, pairs.map(|pair| pair[..name_ends(pair)].to_owned()).collect())
        })
        .collect()
}

#[test]
fn dashboards_and_alerts_ask_for_metrics_that_are_exported() {
    let documented = documented();
    let dashboard: serde_json::Value =
        serde_json::from_str(include_str!("../dashboards/kvroute.json")).unwrap();
    let mut queries: Vec<_> = dashboard["templating"]["list"].as_array().unwrap().iter().collect();
    queries.retain(|variable| variable["type"] == "query");
    let mut texts: Vec<_> =
        queries.iter().map(|variable| variable["query"]["query"].as_str().unwrap()).collect();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    texts.extend(targets.map(|target| target["expr"].as_str().unwrap()));
    assert!(texts.len() > 50, "not the whole dashboard");
    texts.push(include_str!("../dashboards/alerts.yaml"));
    for (name, filters) in texts.into_iter().flat_map(selectors) {
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| {
            let family = name.strip_suffix(suffix)?;
            (documented.get(family)?.0 == "histogram").then_some(family)
        });
        let (kind, labels) = documented
            .get(family.unwrap_or(name))
            .unwrap_or_else(|| panic!("{name} is asked for, and nothing exports it"));
        assert_eq!(kind == "histogram", family.is_some(), "{name} is a {kind}");
        for label in filters {
            assert!(label == "job" || labels.contains(&label), "{name} has no label {label}");
        }
    }
}
