# The commands of daily work. `just` alone lists them.

# Say what there is
default:
    @just --list

# Format everything
fmt:
    cargo fmt

# Formatting, file sizes, layers, lints, documentation links
lint:
    cargo fmt --check
    bash ci/file-sizes.sh
    bash ci/layers.sh
    bash ci/clippy.sh
    bash ci/doc.sh

# All tests; arguments go to cargo: `just test hash` runs those whose names contain it
test *ARGS:
    cargo test --locked {{ARGS}}

# What has to pass before a change lands; CI runs the same
check:
    bash .ci/run

# What is too slow for that: property tests with many cases (PROPTEST_CASES), AddressSanitizer, ThreadSanitizer
check-long:
    bash ci/long.sh

# Mixed load for so many minutes while engines die, clients leave and the configuration changes
soak MINUTES="3":
    bash ci/soak.sh {{MINUTES}}

# Measure; arguments go to criterion: `just bench hash` runs one bench
bench *ARGS="'*'":
    cargo bench --locked --bench {{ARGS}}

# The GPU against the CPU, on a machine that has one: hashes, times and readings into one report, in less than four minutes
bench-gpu REPORT="gpu-report.md" *ARGS:
    cargo bench --locked --bench gpu -- --report "$PWD/{{REPORT}}" {{ARGS}}

# Compile the CUDA kernels anew; they are in the tree, compiled, and CI compares them with their source
ptx:
    bash ci/ptx.sh write

# The prefix index beside SMG's and Dynamo's; `just bench-peers --help` lists the arguments
bench-peers *ARGS:
    cargo run --locked --release --manifest-path benches/peers/Cargo.toml -- {{ARGS}}

# Build the documentation and say where it is
doc:
    cargo doc --locked --no-deps --lib
    @echo "file://$PWD/target/doc/kvroute/index.html"

# A frontend and mock engines on this machine; `just up --help` lists the flags
up *ARGS:
    cargo run --locked --release -- up {{ARGS}}
