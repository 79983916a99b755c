#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the first Rust compiler of this machine that has the target
# wasm32-unknown-unknown, for that target and with a linker for it. A rustup of the
# user's own that lacks the target does not hide one of the distribution's that has it.
#   rustc.sh ARGS...         compile
#   rustc.sh --cargo ARGS... the same by the cargo that belongs to it
#   rustc.sh --check         only report whether there is one
set -euo pipefail
target=wasm32-unknown-unknown
compiler= sysroot=
shopt -s nullglob
while read -r candidate; do
  [ -x "$candidate" ] || continue
  sysroot=$("$candidate" --print sysroot 2>/dev/null) || continue
  std=("$sysroot/lib/rustlib/$target/lib/"libstd-*.rlib)
  if [ ${#std[@]} -gt 0 ]; then
    compiler=$candidate
    break
  fi
done < <(type -aP rustc; printf '%s\n' /usr/bin/rustc "${HOME:-/}/.cargo/bin/rustc" "${RUSTUP_HOME:-${HOME:-}/.rustup}"/toolchains/*/bin/rustc)
if [ -z "$compiler" ]; then
  echo "no Rust compiler here has the target $target: rustup target add $target, or apt-get install rustc cargo libstd-rust-dev-wasm32 lld" >&2
  exit 1
fi
# rustup's toolchains bring rust-lld, Debian's takes that of lld.
linker=()
own=("$sysroot"/lib/rustlib/*/bin/rust-lld)
if [ ${#own[@]} = 0 ]; then
  for l in lld lld-{14..25} missing; do
    if command -v "$l" >/dev/null; then break; fi
  done
  if [ "$l" = missing ]; then
    echo "$compiler has no linker for WebAssembly: apt-get install lld" >&2
    exit 1
  fi
  linker=(-C "linker=$l" -C linker-flavor=wasm-ld)
fi
case ${1:-} in
  --check) ;;
  --cargo)
    shift
    export RUSTC=$compiler RUSTFLAGS="${linker[*]}"
    cargo=$(dirname "$compiler")/cargo
    [ -x "$cargo" ] || cargo=cargo
    exec "$cargo" "$@"
    ;;
  *) exec "$compiler" --target "$target" --edition 2021 -C opt-level=3 -C panic=abort "${linker[@]}" "$@" ;;
esac
