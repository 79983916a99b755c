#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command as root, by sudo where it must, and leaves nothing behind that the
# user cannot write: what root made in the user's folders is given to the user.
# Usage: test/as-root.sh COMMAND [ARG...]
set -uo pipefail
cd "$(dirname "$0")/.." || exit
if [ "$(id -u)" != 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "this needs root (network namespaces, mounts, containers): run it as root, or install sudo" >&2
    exit 1
  fi
  # sudo sets PATH and HOME anew, whatever it is asked to keep.
  keep=()
  for name in PATH HOME XDG_CACHE_HOME RUSTUP_HOME CARGO_HOME WASMPLANE_TOOLCHAINS WASMPLANE_BIN \
    GOFLAGS GOPROXY GOSUMDB GONOSUMDB GOPRIVATE GOTOOLCHAIN GOROOT GOPATH GOCACHE GOMODCACHE CGO_ENABLED \
    HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy SSL_CERT_FILE SSL_CERT_DIR NODE_EXTRA_CA_CERTS \
    PIP_CERT PIP_INDEX_URL REQUESTS_CA_BUNDLE npm_config_registry \
    ONCE KEEP NODES LISTEN CLUSTER ALL RELEASES FRESH_AS COMMAND DEBIAN_MIRROR UBUNTU_MIRROR AGAIN FAILED_BEFORE PACKAGES; do
    [ -z "${!name+set}" ] || keep+=("$name=${!name}")
  done
  exec sudo env "${keep[@]}" "$PWD/test/as-root.sh" "$@"
fi
[ -n "${SUDO_UID:-}" ] || exec "$@"

# theirs FOLDER: whether it is of the user who asked sudo.
theirs() { [ "$(stat -c %u "$1" 2>/dev/null)" = "$SUDO_UID" ]; }
give_back() {
  local cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache} f
  if theirs .; then
    for f in bin build core/kubelet/containerd/embedded; do give "$f" -true; done
    chown -h "$SUDO_UID:$SUDO_GID" .wasmplane .wasmplane/*.log 2>/dev/null
  fi
  for f in "${GOCACHE:-$cache/go-build}" "${GOMODCACHE:-${GOPATH:-${HOME:-/root}/go}/pkg/mod}" "${WASMPLANE_TOOLCHAINS:-$cache/wasmplane}"; do
    # Caches are large: of these only what this command made.
    if theirs "$f" || theirs "$(dirname "$f")"; then give "$f" -newerct "@$began"; fi
  done
}
# give FOLDER FIND-TEST...
give() {
  [ ! -e "$1" ] || find "$1" -xdev -user 0 "${@:2}" -exec chown -h "$SUDO_UID:$SUDO_GID" {} +
}
began=$(date +%s)
# Ctrl-C is for the command, which ends by itself.
trap : INT
status=0
"$@" || status=$?
give_back
exit $status
