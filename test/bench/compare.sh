#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the hot paths and compares them with what was recorded before, in build/bench-baseline.txt.
# Usage: test/bench/compare.sh compare|record; the record is made on the machine that compares, and not committed
# Times are those of one machine and its load, which the record names: compare on the same one, quiet.
# Bytes and allocations hold anywhere.
set -euo pipefail
cd "$(dirname "$0")/../.."
benchstat=golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da
baseline=build/bench-baseline.txt
if [ "$1" = compare ] && [ ! -e "$baseline" ]; then
  echo "there is nothing to compare with: make bench-record, on the commit before the change" >&2
  exit 1
fi
new=$(mktemp)
trap 'rm -f "$new"' EXIT
measure() { # measure PATTERN PACKAGE
  go test -run '^$' -bench "$1" -benchmem -count "${COUNT:-6}" -benchtime "${BENCHTIME:-0.3s}" -timeout 20m "$2"
}
mkdir -p build
{
  echo "load: $(cut -d' ' -f1-3 /proc/loadavg)"
  measure 'PodCreateFloor' ./core/api
  measure 'List|FreshAfterWrite' ./core/watchcache
  measure 'Record' ./core/trace
  measure 'Snapshot' ./core/scheduler/nodecache
  measure 'Decide' ./core/scheduler
  measure 'PodCreate' ./core/admission/builtin
  measure 'Metering' ./plugins/host
} | tee "$new"
case $1 in
  record) cp "$new" "$baseline"; echo "recorded in $baseline" ;;
  compare) go run "$benchstat" "$baseline" "$new" ;;
  *) echo "usage: test/bench/compare.sh compare|record" >&2; exit 2 ;;
esac
