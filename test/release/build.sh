#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds a commit for both architectures, in a copy of its own, and makes the release's files.
# Usage: test/release/build.sh VERSION OUT [KEY]
# Environment: WORK, the folder to build in (default build/release/work); ARCHS (default "amd64 arm64");
# COMMIT (default HEAD, as it is at the beginning).
set -euo pipefail
cd "$(dirname "$0")/../.."
version=$1 out=$2 key=${3:-}
commit=$(git rev-parse "${COMMIT:-HEAD}")
seconds=$(git log -1 --format=%ct "$commit")
work=${WORK:-build/release/work}
archs=${ARCHS:-amd64 arm64}
rm -rf "$work" "$out"
mkdir -p "$work" "$out"
out=$(cd "$out" && pwd)
folders=()
for arch in $archs; do
  mkdir -p "$work/$arch"
  git archive "$commit" | tar -x -C "$work/$arch"
  echo "building $version for $arch"
  # Plugins in JavaScript are built by a release without any compiler.
  make -s -C "$work/$arch" javascript-runtime
  GOARCH=$arch make -s -C "$work/$arch" VERSION="$version" COMMIT="$commit" build
  folders+=("$arch=$work/$arch")
done
go run ./test/release -version "$version" -commit "$commit" -time "$seconds" -out "$out" \
  -modules "$(go env GOMODCACHE)" ${key:+-key "$key"} "${folders[@]}"
