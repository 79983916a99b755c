#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every fuzz target in turn, each for FUZZTIME. What one finds lies as a seed below its testdata/fuzz: mend it, and
# commit the seed, which is a test from then on.
# Usage: test/fuzz.sh [list]
# Environment: FUZZTIME (10s for each target), FUZZ (which targets, a regular expression over DIR:NAME).
set -uo pipefail
cd "$(dirname "$0")/.."

targets() { # DIR:NAME, one a line
  local file name
  while IFS=: read -r file name; do
    echo "$(dirname "$file"):$name"
  done < <(git grep -o -E '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' | sed 's/func //') | grep -E "${FUZZ:-.}"
}

[ "${1:-}" != list ] || { targets; exit; }
failed=()
while IFS=: read -r dir name; do
  echo "== $name in $dir"
  # In its folder, since sdk/go is a module of its own.
  env -C "$dir" nice -n 19 go test -run '^$' -fuzz "^$name\$" -fuzztime "${FUZZTIME:-10s}" -timeout 60m . || failed+=("$dir:$name")
done < <(targets)
[ ${#failed[@]} = 0 ] || { printf 'failed: %s\n' "${failed[@]}"; exit 1; }
