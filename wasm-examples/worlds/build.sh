#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the plugin of this folder in one language, by the generator of others that its README names, and by nothing
# of wasmplane's but sdk/wit. What the generator needs is installed once into the cache folder of the toolchains.
# Usage: wasm-examples/worlds/build.sh python|javascript|starlingmonkey|rust OUT.wasm
set -euo pipefail
language=$1
mkdir -p "$(dirname "$2")"
out=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
cd "$(dirname "$0")"
cache=${WASMPLANE_TOOLCHAINS:-${XDG_CACHE_HOME:-$HOME/.cache}/wasmplane/toolchains}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/wit/deps" "$cache"
cp team.wit "$work/wit/"
cp ../../sdk/wit/plugin.wit "$work/wit/deps/"

. ../once.sh

case $language in
  python)
    (cd ../.. && CGO_ENABLED=0 go run ./plugins/toolchain/wasmbuild -install python)
    cp python/app.py "$work/"
    cd "$work"
    # What the command componentize-py does, which knows only the folder that it was installed in.
    "$cache/componentize-py-0.25.1/bin/python" -c 'import sys; from componentize_py import script; sys.exit(script())' \
      -d wit -w team componentize app -o team.wasm >&2
    ;;
  javascript)
    once componentize-qjs-0.4.5 "componentize-qjs 0.4.5 from npm (17 MB to download)" npm_packages componentize-qjs@0.4.5
    cp javascript/team.js "$work/"
    cd "$work"
    # Not its bin/componentize-qjs, which needs a node of version 20: Debian 12 has 18.
    node "$cache/componentize-qjs-0.4.5/node_modules/componentize-qjs/cli.mjs" \
      --wit wit -n team --js team.js --sync -m -o team.wasm >&2
    ;;
  starlingmonkey)
    once componentize-js-0.23.0 "componentize-js 0.23.0 from npm (390 MB unpacked)" npm_packages @bytecodealliance/componentize-js@0.23.0
    cp javascript/team.js "$work/"
    cd "$work"
    node "$cache/componentize-js-0.23.0/node_modules/.bin/componentize-js" \
      team.js --wit wit -n team --disable stdio random clocks http fetch-event -o team.wasm >&2
    ;;
  rust)
    once wit-bindgen-0.30.0 "wit-bindgen-cli 0.30.0 from crates.io (two to three minutes of a processor)" \
      cargo install --quiet --root . --locked --no-default-features --features rust wit-bindgen-cli@0.30.0
    cp -r rust/. "$work/"
    root=$(cd ../.. && pwd)
    cd "$work"
    "$cache/wit-bindgen-0.30.0/bin/wit-bindgen" rust --world team --generate-all --runtime-path wit_bindgen_rt --out-dir src wit >&2
    sed -i 's/\.cast_mut()/ as *mut _/g' src/team.rs # a method of Rust 1.65: Debian 12 has 1.63
    # The cargo that belongs to the compiler may be too old to ask the registry.
    cargo --quiet vendor >/dev/null
    mkdir -p .cargo
    printf '[source.crates-io]\nreplace-with = "vendored"\n[source.vendored]\ndirectory = "vendor"\n' >.cargo/config.toml
    rm Cargo.lock
    # As wasmplane plugin build --component does it.
    (cd "$root" && CGO_ENABLED=0 go run ./plugins/toolchain/wasmbuild -component "$work" "$work/team.wasm")
    ;;
  *)
    echo "expected python, javascript, starlingmonkey or rust, found $language" >&2
    exit 2
    ;;
esac
mv team.wasm "$out"
