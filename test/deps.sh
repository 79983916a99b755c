#!/usr/bin/env bash
# Installs, by apt, what is missing on this machine to run and to test, and says
# what it installs and why. Does nothing where everything is there.
set -euo pipefail

missing=()
need() { # need COMMAND PACKAGE WHY
  if ! PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null; then
    echo "missing: $1 ($3); it comes with the package $2"
    missing+=("$2")
  fi
}

if ! command -v go >/dev/null; then
  echo "Go is missing: install Go 1.26 or newer, from your distribution or from the Go project" >&2
  exit 1
fi
need runc runc "runs containers"
need nft nftables "routes Services and pods' traffic"
need ip iproute2 "sets up pods' network"
need mount mount "mounts volumes"

# The Rust examples need a compiler with the wasm32 target.
rust_has_wasm() { # rust_has_wasm RUSTC
  [ -d "$("$1" --print sysroot 2>/dev/null)/lib/rustlib/wasm32-unknown-unknown" ]
}
rust=no
for r in rustc /usr/bin/rustc; do
  if command -v "$r" >/dev/null && rust_has_wasm "$r"; then rust=yes; fi
done
if [ $rust = no ]; then
  echo "missing: a Rust compiler with the wasm32-unknown-unknown target (builds the Rust example plugins)"
  missing+=(rustc cargo libstd-rust-dev-wasm32 lld)
fi
# Zig and AssemblyScript plugins are built by compilers that come from npm, in
# versions that plugins/toolchain pins; C plugins by clang where it is there, else by zig.
need npm npm "installs the compilers of the Zig and AssemblyScript example plugins"
compilers() { # they go into the user's cache folder, once
  (cd "$(dirname "$0")/.." && CGO_ENABLED=0 go run ./plugins/toolchain/wasmbuild -install zig,assemblyscript)
  # And the waPC project's SDK for AssemblyScript, which a test builds a policy with.
  cache=${WASMPLANE_TOOLCHAINS:-${XDG_CACHE_HOME:-$HOME/.cache}/wasmplane/toolchains}
  [ -d "$cache/as-guest-0.3.1/node_modules/@wapc/as-guest" ] ||
    npm install --prefix "$cache/as-guest-0.3.1" --no-audit --no-fund --ignore-scripts --loglevel=error @wapc/as-guest@0.3.1
}
# The stories of other people's clients have the Python client in a folder of its own.
need python3 python3 "runs the Python client's story"
if ! python3 -c 'import ensurepip' 2>/dev/null; then
  echo "missing: Python's venv module (installs the Python client for its story); it comes with the package python3-venv"
  missing+=(python3-venv)
fi
packages=("${missing[@]}")
[ ${#packages[@]} -gt 0 ] || { compilers; exit 0; }
if ! command -v apt-get >/dev/null; then
  echo "please install: ${packages[*]} (this script knows only apt)" >&2
  exit 1
fi
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
echo "installing with apt-get: ${packages[*]}"
$sudo apt-get update -q
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -qy --no-install-recommends "${packages[@]}"
compilers
