//! How tests are written, as far as no lint looks at it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a failed expectation is how a test reports"
)]

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Every source beneath a folder, with its text.
fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push((path.clone(), fs::read_to_string(&path).unwrap()));
        }
    }
    found
}

/// The lines that import something anywhere but at the head of a module. A module's head is what comes before the first
/// line that neither imports, nor opens a module, nor is an attribute, a comment or the rest of an import.
fn local_imports(source: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let (mut at_head, mut open_import) = (true, false);
    for line in source.lines() {
        let text = line.trim();
        let is_import = text.starts_with("use ") || text.starts_with("pub(crate) use ");
        let opens_module = text.ends_with('{') && text.split(' ').any(|word| word == "mod");
        let neutral = text.is_empty() || ["//", "#[", "#!["].iter().any(|start| text.starts_with(start));
        if open_import {
            open_import = !text.ends_with(';');
        } else if is_import {
            if !at_head && line.starts_with(' ') {
                found.push(text);
            }
            open_import = !text.ends_with(';');
        } else if opens_module {
            at_head = true;
        } else if !neutral {
            at_head = false;
        }
    }
    found
}

#[test]
fn a_local_import_is_told_from_one_at_the_head_of_a_module() {
    let head =
        "use a::b;\nuse c::{\n    d,\n};\nmod tests {\n    // why\n    use super::*;\n\n    fn f() {}\n}\n";
    assert_eq!(local_imports(head), [""; 0]);
    assert_eq!(local_imports("use a::b;\nfn f() {\n    use c::d;\n    d();\n}\n"), ["use c::d;"]);
    assert_eq!(
        local_imports("mod m {\n    fn f() {\n        use c::{\n            d,\n        };\n    }\n}\n"),
        ["use c::{"]
    );
}

/// An import in the middle of a test hides from whoever reads the head of the file what the test depends on.
#[test]
fn review_finding_04_tests_import_at_the_head_of_their_modules() {
    let sources = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"));
    assert!(sources.len() > 50, "not all of them");
    let local: Vec<_> = sources
        .iter()
        .flat_map(|(path, source)| {
            local_imports(source).into_iter().map(move |line| format!("{}: {line}", path.display()))
        })
        .collect();
    assert!(local.is_empty(), "imports that belong to the head of a module: {local:#?}");
}
