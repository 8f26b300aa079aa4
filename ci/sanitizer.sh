#!/usr/bin/env bash
# Runs the core's tests under a sanitizer: ci/sanitizer.sh address|thread [filter of tests]. Called by ci/asan.sh and ci/tsan.sh.
#
# The sanitizers' runtimes come with the stable toolchain, but the flag that turns them on is unstable; RUSTC_BOOTSTRAP
# unlocks it without a nightly. The standard library is not instrumented: a bad access inside it is not seen.
set -euo pipefail
cd "$(dirname "$0")/.."

sanitizer="$1"
shift
target="$(rustc -vV | sed -n 's/^host: //p')"

export RUSTC_BOOTSTRAP=1
export CARGO_INCREMENTAL=0
export RUSTFLAGS="-Zsanitizer=$sanitizer"
if [ "$sanitizer" = thread ]; then
    # TSan changes the ABI, and the compiler refuses to mix; the prebuilt standard library is such a mix, harmless
    # but for what is not seen inside it.
    RUSTFLAGS+=" -Cunsafe-allow-abi-mismatch=sanitizer"
    # What the prebuilt standard library hides from TSan; each entry says what.
    export TSAN_OPTIONS="suppressions=$PWD/ci/tsan.supp ${TSAN_OPTIONS:-}"
fi
# Fewer cases: everything is about ten times slower, and what is looked for here does not depend on rare input.
export PROPTEST_CASES="${PROPTEST_CASES:-32}"

# --target, even for the host: without it build scripts and procedural macros are instrumented too, and do not load.
# Another target directory, because other flags would have the usual one rebuilt, and rebuilt again afterwards.
# --lib --tests leaves out documentation tests, which take their flags from elsewhere and prove nothing here.
# One test at a time: the test runner's own threads talk through the standard library, which TSan takes for races.
# Tests of threads start theirs themselves.
cargo test --locked --no-default-features --lib --tests --no-fail-fast \
    --target "$target" --target-dir "target/sanitizer-$sanitizer" -- --test-threads=1 "$@"
