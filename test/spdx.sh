#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every source file begins with the line that names its license (https://spdx.dev/ids).
# Usage: test/spdx.sh check|fix
# Left out: what is generated (its generator's matter), test data, and the templates of
# wasmplane plugin init, whose copies belong to the plugin's author.
set -euo pipefail
cd "$(dirname "$0")/.."
line='SPDX-License-Identifier: Apache-2.0'
missing=()
while IFS= read -r f; do
  case $f in */testdata/* | testdata/* | plugins/author/templates/*) continue ;; esac
  top=$(head -n 5 "$f")
  case $top in *"$line"* | *'Code generated'*'DO NOT EDIT'*) continue ;; esac
  missing+=("$f")
done < <(git ls-files '*.go' '*.rs' '*.ts' '*.zig' '*.c' '*.h' '*.sh')
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$1" = check ]; then
  printf '%s\n' "${missing[@]}"
  echo "${#missing[@]} files do not name their license: make spdx" >&2
  exit 1
fi
for f in "${missing[@]}"; do
  new=$(mktemp)
  case $f in
    *.sh) # behind the line that names the shell
      head -n 1 "$f"; echo "# $line"; tail -n +2 "$f" ;;
    *) # a line of its own: it belongs to no documentation
      echo "// $line"; echo; cat "$f" ;;
  esac >"$new"
  chmod --reference="$f" "$new"
  mv "$new" "$f" # a new file: the shell may be reading this one
done
echo "${#missing[@]} files name their license now"
