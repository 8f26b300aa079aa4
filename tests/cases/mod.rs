//! How many cases a property is tried with.

use proptest::prelude::ProptestConfig;

/// So many, or as many as PROPTEST_CASES asks for: more in a long run, fewer under a sanitizer.
pub(crate) fn cases(usually: u32) -> ProptestConfig {
    let config = ProptestConfig::default();
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    ProptestConfig { cases: if asked { config.cases } else { usually }, ..config }
}
