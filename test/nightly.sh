#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs what takes too long for every change: each fuzz target for a while, concurrent writes against
# a model, kills under load, the same questions to upstream and to us, upstream's tests
# of kubectl and its integration tests, a slice of the conformance suite. Writes one page: build/nightly/report.md, with a log of each part beside it.
# Usage: test/nightly.sh
# Environment: FUZZTIME (2m for each target), FUZZ (which targets, a regular expression), PARTS ("fuzz history chaos random-walk differential test-cmd integration templates conformance"),
# and what the parts themselves take (CHAOS_KILLS, HISTORY_WRITES, PACKAGES, FOCUS, LIMIT).
set -uo pipefail
cd "$(dirname "$0")/.."
out=build/nightly
parts=${PARTS:-fuzz history chaos random-walk differential test-cmd integration templates conformance}
mkdir -p "$out"
rm -f "$out"/*.log
page=$out/report.md
failed=()
{
  echo "# Nightly, $(git rev-parse --short HEAD), $(date -u +%Y-%m-%d)"
  echo
  echo "$(nproc) processors, load $(cut -d' ' -f1-3 /proc/loadavg) at the beginning, $(go version | cut -d' ' -f3)."
  echo
  echo "| part | result | time | last words |"
  echo "|---|---|---|---|"
} >"$page"

run() { # run NAME COMMAND...: a line of the page
  local name=$1 log begin status=passed
  shift
  log=$out/${name//[^A-Za-z0-9]/-}.log
  begin=$SECONDS
  "$@" >"$log" 2>&1 || { status="**failed**"; failed+=("$log"); }
  echo "| $name | $status | $((SECONDS - begin)) s | $(grep -v '^\s*$' "$log" | tail -n 1 | cut -c1-120 | tr '|' '/') |" >>"$page"
  echo "$name: $status"
}

fuzz() {
  local dir name
  while IFS=: read -r dir name; do
    run "fuzz $name in $dir" env FUZZTIME="${FUZZTIME:-2m}" FUZZ="^$dir:$name\$" test/fuzz.sh
  done < <(test/fuzz.sh list)
}

for part in $parts; do
  case $part in
    fuzz) fuzz ;;
    history | chaos | random-walk | differential | test-cmd | integration) run "$part" make -s "$part" ;;
    templates) run templates make -s test-templates ;;
    conformance) run conformance make -s conformance LIMIT="${LIMIT:-1h}" ;;
    *) echo "PARTS: there is no part $part" >&2; exit 2 ;;
  esac
done
{
  echo
  echo "Load $(cut -d' ' -f1-3 /proc/loadavg) at the end. What failed, at length:"
  for log in "${failed[@]}"; do
    printf '\n## %s\n\n```\n%s\n```\n' "$(basename "$log" .log)" "$(tail -n 60 "$log")"
  done
} >>"$page"
echo "the page is $page"
[ ${#failed[@]} = 0 ]
