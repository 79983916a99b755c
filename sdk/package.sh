#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs the SDKs into what their registries take: a crate, an npm package, a Zig package.
# That of Go is taken from the repository by its tag sdk/go/vX.Y.Z; the C header is a file.
# Usage: sdk/package.sh [FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "${1:-build/sdk}"
out=$(cd "${1:-build/sdk}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Packed outside of the repository, from a copy with the license.
for sdk in rust assemblyscript javascript zig; do
  cp -r "sdk/$sdk" "$work/$sdk"
  cp LICENSE "$work/$sdk/"
done

cargo=$(command -v cargo || echo "$HOME/.cargo/bin/cargo")
(cd "$work/rust" && "$cargo" package --offline --quiet --target-dir "$work/target")
cp "$work"/target/package/wasmplane-*.crate "$out/"

for sdk in assemblyscript javascript; do
  mkdir "$work/packed-$sdk"
  (cd "$work/$sdk" && npm pack --silent --pack-destination "$work/packed-$sdk" >/dev/null)
  tgz=$(basename "$work/packed-$sdk"/wasmplane-*.tgz)
  mv "$work/packed-$sdk/$tgz" "$out/${tgz/wasmplane-/wasmplane-$sdk-}"
done

version=$(sed -n 's/.*\.version = "\(.*\)".*/\1/p' sdk/zig/build.zig.zon)
tar -C "$work/zig" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
  -c build.zig build.zig.zon wasmplane.zig README.md LICENSE | gzip -9n >"$out/wasmplane-zig-$version.tar.gz"
ls "$out"
