#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every test. Those of the real node need root (network namespaces,
# mounts, containers): without it, this asks sudo.
# Usage: test/run.sh [TIMEOUT]
# PACKAGES="./core/..." runs those alone; AS_ROOT=0 without root, which most need not.
# Up to three tests that failed are run once more, alone; AGAIN=0 has no second try.
set -euo pipefail
cd "$(dirname "$0")/.."
timeout=${1:-40m}
if [ "$(id -u)" != 0 ] && [ "${AS_ROOT:-}" != 0 ]; then
  exec test/as-root.sh test/run.sh "$timeout"
fi
export CGO_ENABLED=0 PATH="$PATH:/usr/sbin:/sbin"
# A test that cannot run here fails: a skip counts as a failure. The report prints
# packages as they end, and what failed at the end.
report=$(mktemp -d)
trap 'rm -rf "$report"' EXIT
go build -o "$report/report" ./test/internal/report
# The Go SDK is a module of its own, whose tests are run with the others.
packages=${PACKAGES:-}
before=("${FAILED_BEFORE:-}")
if [ -z "$packages" ]; then
  packages=$(go list ./... github.com/wasmplane/wasmplane/sdk/go/... | grep -v '/test/bench$')
  (cd test/conformance && go test ./...) || before+=("test/conformance: go test ./... there ends with $?; what it printed stands above the first package")
fi
status=0
again=(-again "$timeout")
if [ "${AGAIN:-}" = 0 ]; then
  again=()
fi
# FAILED_BEFORE says what has failed already, and is counted. What failed, and whether it passed at the second try, the
# report says; go test itself ends with 1 where a test failed, and with another number where it was ended itself.
set +e
go test -p 2 -timeout "$timeout" -json $packages 2>&1 | "$report/report" "${again[@]}" "${before[@]}"
ends=("${PIPESTATUS[@]}")
if [ "${ends[0]}" -gt 1 ]; then # whatever its log has by then: the report finds no test in an empty one
  echo "go test was ended: ${ends[0]}"
  status=${ends[0]}
elif [ "${ends[1]}" != 0 ]; then
  status=${ends[1]}
fi
exit "$status"
