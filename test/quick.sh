#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Vets and tests, without root and within three minutes, the packages that differ
# from main (or, on main, from the last commit) and those that import them directly.
# Usage: test/quick.sh [BASE]
set -euo pipefail
cd "$(dirname "$0")/.."
base=${1:-}
if [ -z "$base" ]; then
  base=$(git merge-base HEAD main 2>/dev/null || git merge-base HEAD origin/main 2>/dev/null || echo HEAD)
  if [ "$base" = "$(git rev-parse HEAD)" ] && [ -z "$(git status --porcelain)" ]; then base=HEAD~1; fi
fi
# Folders with changed files; a file in testdata belongs to the package above it.
mapfile -t changed < <({ git diff --name-only "$base"; git ls-files --others --exclude-standard; } | sed 's|/testdata/.*|/x|' | xargs -r -d '\n' -n1 dirname | sort -u)
# These need root, real nodes, or longer than three minutes: make test runs them.
heavy='^(core/kubelet/(realnode|machine|containerd)|cmd/wasmplane/localsocket|test/(story|chaos|clients|bench|walk|differential|conformance))(/|$)'
module=$(go list -m)
list=$(go list -e -f '{{.ImportPath}} {{range .Imports}}{{.}} {{end}}{{range .TestImports}}{{.}} {{end}}{{range .XTestImports}}{{.}} {{end}}' ./...)
packages=$(awk -v module="$module" -v dirs="${changed[*]}" -v heavy="$heavy" '
  BEGIN {n = split(dirs, d, " "); for (i = 1; i <= n; i++) wanted[d[i] == "." ? module : module "/" d[i]] = 1}
  {
    path = substr($1, length(module) + 2); hit = 0
    for (i = 1; i <= NF; i++) if ($i in wanted) hit = 1
    if (hit && path !~ heavy) print $1
    else if (hit) print "left to make test: " path > "/dev/stderr"
  }' <<<"$list")
if [ -z "$packages" ]; then
  echo "no package has changed since $(git rev-parse --short "$base")"
  exit 0
fi
echo "$(wc -l <<<"$packages") packages, changed since $(git rev-parse --short "$base") or importing one that has"
export CGO_ENABLED=0
status=0
# shellcheck disable=SC2086 # one word for each package
timeout 180 bash -c 'go vet "$@" && go test -timeout 150s "$@"' quick $packages || status=$?
[ $status != 124 ] || echo "three minutes are over before all were tested: make test, or go test for the packages that matter"
exit $status
