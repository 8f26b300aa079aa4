//! The libraries that stand in for a driver's, built on first use from packages of their own beside the tests.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// Builds the package `tests/{package}`; where its library lies.
pub(crate) fn build(package: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(package);
    // Beside the folder for temporary files, where `ci/cuda.sh` builds it too.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name(package);
    let build = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--locked", "--manifest-path"])
        .arg(source.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        // Flags that this test was built with, of a sanitizer say, are not for a library that is loaded.
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET")
        .output()
        .unwrap();
    assert!(build.status.success(), "{}", String::from_utf8_lossy(&build.stderr));
    target.join(format!("debug/lib{}.so", package.replace('-', "_")))
}
