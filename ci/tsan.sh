#!/usr/bin/env bash
# Data races: the core's tests under ThreadSanitizer.
# Not part of .ci/run: it compiles the core's dependencies anew. Run it after touching an atomic or a lock.
exec bash "$(dirname "$0")/sanitizer.sh" thread "$@"
