//! What the README shows is what there is.

#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

use std::path::Path;

use kvroute::{
    config::{
        ConfigFile, FrontendArgs,
        flags::{Environment, Frontend, RouterFlags, build_router_config},
    },
    select::Mode,
};

const README: &str = include_str!("../README.md");
const EMBED: &str = include_str!("../examples/embed.rs");
const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The content of the only block of a language.
fn block(language: &str) -> &'static str {
    let (_, rest) = README.split_once(&format!("```{language}\n")).unwrap();
    rest.split_once("```").unwrap().0
}

#[test]
fn the_excerpt_is_from_the_example() {
    for line in block("rust").lines().map(str::trim).filter(|line| !line.is_empty()) {
        assert!(EMBED.contains(line), "not in examples/embed.rs: {line}");
    }
}

#[test]
fn the_file_and_the_flags_in_front_of_vllm_make_the_same_plan() {
    let file: ConfigFile = toml::from_str(block("toml")).unwrap();
    let given = RouterFlags::<Frontend>::none();
    let given = given.resolve(&Environment::empty(), Some((&file.path, &file.router))).unwrap();
    let router = build_router_config(&given).unwrap().config;
    let plan =
        |workers: &[String], file| FrontendArgs::default().plan(router.clone(), workers, file).unwrap();
    let from_file = plan(&[], Some(file));
    let flags: Vec<_> = README.lines().filter_map(|line| line.trim().strip_prefix("--worker '")).collect();
    let workers: Vec<_> =
        flags.iter().map(|flag| flag.trim_end_matches(['\\', ' ', '\'']).to_owned()).collect();
    let from_flags = plan(&workers, None);
    assert_eq!(from_file.workers, from_flags.workers);
    assert_eq!((from_file.workers.len(), from_file.router.mode), (2, Mode::Kv));
}

/// What is written for users, by its path from the root.
fn pages() -> Vec<(String, String)> {
    let docs = std::fs::read_dir(Path::new(ROOT).join("docs")).unwrap();
    let docs = docs.map(|entry| format!("docs/{}", entry.unwrap().file_name().into_string().unwrap()));
    let others = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "benches/README.md"];
    let paths = others.map(str::to_owned).into_iter().chain(docs.filter(|path| path.ends_with(".md")));
    paths.map(|path| (path.clone(), std::fs::read_to_string(Path::new(ROOT).join(path)).unwrap())).collect()
}

#[test]
fn links_lead_somewhere() {
    for (file, text) in pages() {
        let folder = Path::new(ROOT).join(&file).parent().unwrap().to_owned();
        let targets = text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap());
        for target in targets.filter(|target| !target.starts_with("http")) {
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if path.is_empty() { Path::new(ROOT).join(&file) } else { folder.join(path) };
            let found = if anchor.is_empty() && path.exists() {
                Ok(String::new())
            } else {
                std::fs::read_to_string(&path)
            };
            let found = found.unwrap_or_else(|error| panic!("{file}: {target}: {error}"));
            assert!(anchor.is_empty() || anchors(&found).contains(&anchor.to_owned()), "{file}: {target}");
        }
    }
}

/// A blank line within a table makes the rest of it a paragraph of bars.
#[test]
fn tables_are_whole() {
    for (file, text) in pages() {
        let lines: Vec<_> = text.lines().collect();
        let is_row = |at: usize| lines.get(at).is_some_and(|line| line.starts_with('|'));
        let mut fenced = false;
        for at in 0..lines.len() {
            fenced ^= lines[at].starts_with("```");
            if !fenced && is_row(at) && (at == 0 || !is_row(at - 1)) {
                let below = lines.get(at + 1).copied().unwrap_or_default();
                assert!(
                    below.starts_with("|-") || below.starts_with("|:"),
                    "{file}:{}: a row without a head",
                    at + 1
                );
            }
        }
    }
}

/// The anchors that headings get: lower case, blanks to hyphens, and little else kept.
fn anchors(text: &str) -> Vec<String> {
    let headings =
        text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches(['#', ' ']));
    let kept = |c: char| (c.is_alphanumeric() || "-_ ".contains(c)).then_some(if c == ' ' { '-' } else { c });
    headings.map(|heading| heading.to_lowercase().chars().filter_map(kept).collect()).collect()
}
