//! How many cases a property is tried with, and where those that failed once are.

use proptest::{prelude::ProptestConfig, test_runner::FileFailurePersistence};

/// So many, or as many as PROPTEST_CASES asks for: more in a long run, fewer under a sanitizer. Seeds of cases that failed are in a file
/// beside the test's own, `NAME.proptest-regressions`: proptest's own place is one for all tests that are folders.
pub(crate) fn cases(usually: u32) -> ProptestConfig {
    let config = ProptestConfig::default();
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    ProptestConfig {
        cases: if asked { config.cases } else { usually },
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("proptest-regressions"))),
        ..config
    }
}
