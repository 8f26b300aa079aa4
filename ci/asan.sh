#!/usr/bin/env bash
# Reads and writes where there is no memory, or no longer: the core's tests under AddressSanitizer.
# Not part of .ci/run: it compiles the core's dependencies anew. Run it after touching `unsafe`.
exec bash "$(dirname "$0")/sanitizer.sh" address "$@"
