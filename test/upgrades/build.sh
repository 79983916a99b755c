#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds wasmplane of an older commit, from git's own copy of it, unless it is built already.
# Usage: test/upgrades/build.sh COMMIT VERSION FOLDER
# Prints the file: FOLDER/COMMIT/VERSION/wasmplane.
set -euo pipefail
cd "$(dirname "$0")/../.."
commit=$(git rev-parse --verify --quiet "$1^{commit}") || {
  echo "there is no commit $1 here: fetch it (git fetch --unshallow), or name another" >&2
  exit 1
}
version=$2
mkdir -p "$3"
folder=$(cd "$3" && pwd)/${commit:0:12}
file=$folder/$version/wasmplane
if [ ! -x "$file" ]; then
  rm -rf "$folder/tree.new"
  mkdir -p "$folder/tree.new" "$folder/$version"
  git archive "$commit" | tar -x -C "$folder/tree.new"
  rm -rf "$folder/tree"
  mv "$folder/tree.new" "$folder/tree"
  make -s -C "$folder/tree" build VERSION="$version" COMMIT="$commit" BINARY="$file.new" >&2
  mv "$file.new" "$file"
  rm -rf "$folder/tree"
fi
echo "$file"
