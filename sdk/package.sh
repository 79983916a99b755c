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
for sdk in rust assemblyscript zig; do
  cp -r "sdk/$sdk" "$work/$sdk"
  cp LICENSE "$work/$sdk/"
done

cargo=$(command -v cargo || echo "$HOME/.cargo/bin/cargo")
(cd "$work/rust" && "$cargo" package --offline --quiet --target-dir "$work/target")
cp "$work"/target/package/wasmplane-*.crate "$out/"

(cd "$work/assemblyscript" && npm pack --silent --pack-destination "$out" >/dev/null)
tgz=$(ls "$out"/wasmplane-*.tgz)
mv "$tgz" "${tgz/wasmplane-/wasmplane-assemblyscript-}"

version=$(sed -n 's/.*\.version = "\(.*\)".*/\1/p' sdk/zig/build.zig.zon)
tar -C "$work/zig" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
  -c build.zig build.zig.zon wasmplane.zig README.md LICENSE | gzip -9n >"$out/wasmplane-zig-$version.tar.gz"
ls "$out"
